//! The examples in `docs/PROTOCOL.md` are messages of this version, and its figures are right.

use std::collections::BTreeSet;

use attune_core::input::{MAX_DEPTH, MAX_LABELS, MAX_RUN_SECONDS, MAX_TEXT_BYTES};
use attune_core::{ActionRef, PartitionId, RejectCode, RequestId, Status};
use serde_json::Value;
use uuid::Uuid;

use super::types;

fn protocol() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PROTOCOL.md");
    std::fs::read_to_string(path).unwrap()
}

/// The blocks of JSON in the page.
fn examples(page: &str) -> impl Iterator<Item = &str> {
    page.split("```json\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
}

#[test]
fn every_example_of_a_message_decodes() {
    let page = protocol();
    let mut shown = BTreeSet::new();
    for example in examples(&page) {
        let value: Value =
            serde_json::from_str(example).unwrap_or_else(|e| panic!("{e}: {example}"));
        let Some(message_type) = value["message_type"].as_str() else {
            continue;
        };
        let (message_type, decode) = types()
            .into_iter()
            .find(|(name, _)| *name == message_type)
            .unwrap_or_else(|| panic!("{message_type} is no type"));
        let decoded = decode(example.as_bytes()).unwrap_or_else(|e| panic!("{e}: {example}"));
        assert!(decoded.items > 0);
        shown.insert(message_type);
    }
    let all: BTreeSet<_> = types().into_iter().map(|(name, _)| name).collect();
    assert_eq!(shown, all, "each type has an example");
}

#[test]
fn partitions_in_the_table_are_right() {
    let page = protocol();
    let mut rows = 0;
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", name, crc, partition, ""] = cells[..] else {
            continue;
        };
        let (Ok(crc), Ok(partition)) = (crc.parse::<u32>(), partition.parse::<u16>()) else {
            continue;
        };
        let name = name.trim_matches('`');
        assert_eq!(PartitionId::of(name, 16), PartitionId(partition), "{name}");
        assert_eq!(crc % 16, u32::from(partition), "{name}");
        rows += 1;
    }
    assert_eq!(rows, 3);
}

#[test]
fn request_ids_of_items_are_those_that_python_computes() {
    // uuid.uuid5(uuid.UUID("0198c1f0-5a00-7000-8000-000000000001"), "1")
    let message_id = RequestId(Uuid::from_u128(0x0198_c1f0_5a00_7000_8000_0000_0000_0001));
    let second = "087f7f32-1cce-5b43-b94b-f37154f8da20";
    assert_eq!(message_id.of_item(1).to_string(), second);
}

#[test]
fn limits_and_codes_on_the_page_are_those_in_force() {
    let page = protocol();
    for text in [
        format!("| `timeout_seconds` | 1 to {MAX_RUN_SECONDS} (30 days) |"),
        format!("| nesting of `parameters` and `result` | {MAX_DEPTH} |"),
        format!("| labels | {MAX_LABELS} |"),
        format!("| other texts of a submission | 1 to {MAX_TEXT_BYTES} bytes |"),
        format!("| `action_ref` | {} bytes |", ActionRef::MAX_BYTES),
        format!("| partitions | 1 to {} |", PartitionId::MAX_COUNT),
    ] {
        assert!(page.contains(&text), "{text}");
    }
    for code in [
        RejectCode::QueueFull,
        RejectCode::UnknownAction,
        RejectCode::UnknownExecution,
        RejectCode::InvalidInput,
        RejectCode::Conflict,
        RejectCode::AlreadyEnded,
        RejectCode::WrongPartition,
        RejectCode::AlreadyRejected,
    ] {
        assert!(
            page.contains(&format!("| `{}` |", code.as_str())),
            "{}",
            code.as_str()
        );
    }
    for status in Status::ALL
        .into_iter()
        .filter(|status| status.is_reportable())
    {
        assert!(page.contains(&format!("`{status}`")), "{status}");
    }
}
