//! Makes a completion one that can be stored, whatever its worker put into it.
//!
//! The status, the ids and the times always stay as they are: they decide what happens to the
//! slot. Only what people read about the run is changed, and then it says so.

use attune_core::input::{check_json, json_prefix};
use attune_messages::v1::Completion;
use serde_json::value::{RawValue, to_raw_value};

/// What the reason for leaving out a result may take, in bytes.
const NOTE_BYTES: usize = 256;
/// The smallest bound for [`mend`]: below it, not even a completion without output would fit.
pub const MIN_ITEM_BYTES: usize = 3072;

/// A completion, written for its owner.
#[derive(Debug)]
pub(crate) struct Mended {
    /// A [`SlotRelease`](attune_messages::v1::SlotRelease).
    pub(crate) item: Box<RawValue>,
    /// Whether anything had to be changed.
    pub(crate) changed: bool,
}

/// Writes a completion so that it can be stored and takes at most `max_bytes`, which must be at
/// least [`MIN_ITEM_BYTES`].
///
/// It usually fits: it came in a message that was no larger. But it may have grown by a note,
/// and an owner that could not read it would never release its slot.
pub(crate) fn mend(mut completion: Completion, max_bytes: usize) -> Mended {
    let mut changed = replace_nul(&mut completion.error);
    changed |= replace_nul(&mut completion.stdout);
    changed |= replace_nul(&mut completion.stderr);
    if let Some(result) = &completion.result
        && let Err(reject) = check_json("result", result.get())
    {
        leave_out_result(&mut completion, &reject.message);
        changed = true;
    }
    let mut item = write(&completion);
    if item.get().len() > max_bytes {
        changed = true;
        // Three texts of an eighth each leave room for a result; a note and the fixed fields
        // take less than the half of the smallest bound.
        for text in [
            &mut completion.error,
            &mut completion.stdout,
            &mut completion.stderr,
        ] {
            cut(text, max_bytes / 8);
        }
        item = write(&completion);
        if item.get().len() > max_bytes {
            leave_out_result(&mut completion, "it is larger than a message may be");
            item = write(&completion);
        }
    }
    Mended { item, changed }
}

/// A [`SlotRelease`](attune_messages::v1::SlotRelease) is written as the completion in it.
fn write(completion: &Completion) -> Box<RawValue> {
    to_raw_value(completion).expect("completions have string keys and finite numbers")
}

/// PostgreSQL cannot store a NUL in text. Whether there was one.
fn replace_nul(text: &mut Option<String>) -> bool {
    match text {
        Some(text) if text.contains('\0') => {
            *text = text.replace('\0', "\u{fffd}");
            true
        }
        _ => false,
    }
}

fn leave_out_result(completion: &mut Completion, reason: &str) {
    // A reason names the place, and a worker chooses how long the keys in it are.
    let mut reason = Some(reason.replace('\0', "\u{fffd}"));
    cut(&mut reason, NOTE_BYTES);
    let note = format!("[the result was left out: {}]", reason.unwrap_or_default());
    completion.result = None;
    completion.error = Some(match completion.error.take() {
        Some(error) if !error.is_empty() => format!("{error} {note}"),
        _ => note,
    });
}

/// Cuts a text so that it takes at most `max_bytes` when it is written as JSON, with a mark.
fn cut(text: &mut Option<String>, max_bytes: usize) {
    /// A mark with the longest number, and the quotes.
    const MARK_BYTES: usize = 48;
    let Some(text) = text else { return };
    if json_prefix(text, max_bytes.saturating_sub(2)) == text.len() {
        return;
    }
    let kept = json_prefix(text, max_bytes.saturating_sub(MARK_BYTES));
    let mark = format!("… [cut: {} bytes more]", text.len() - kept);
    text.truncate(kept);
    text.push_str(&mark);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use attune_core::{
        ActionId, Attempt, EndCode, Epoch, ExecutionId, PartitionId, Seq, Status, WorkerId,
    };
    use attune_messages::v1::SlotRelease;
    use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

    /// A valid completion of the `n`th execution of a partition.
    pub(crate) fn completion(partition: u16, n: u32) -> Completion {
        Completion {
            execution_id: ExecutionId::new(PartitionId(partition), Seq::new(Epoch(2), n)),
            attempt: Attempt(1),
            action_id: ActionId(9),
            status: Status::Succeeded,
            result: None,
            error: None,
            code: None,
            exit_code: None,
            stdout: None,
            stderr: None,
            partition: None,
            worker: Some(WorkerId(uuid::Uuid::nil())),
            broker_user: None,
            started_at: None,
            finished_at: None,
        }
    }

    fn raw(json: &str) -> Option<Box<RawValue>> {
        Some(RawValue::from_string(json.to_owned()).unwrap())
    }

    fn read(item: &RawValue) -> Completion {
        serde_json::from_str::<SlotRelease>(item.get()).unwrap().0
    }

    #[test]
    fn what_can_be_stored_stays_as_it_is() {
        let good = Completion {
            result: raw(r#"{"a": [1, 2.50, "ünïcode \" \\"], "a": null}"#),
            error: Some(String::new()),
            stdout: Some("tab\tline\n\u{1b}[1m".to_owned()),
            exit_code: Some(-1),
            worker: Some(WorkerId::fresh()),
            started_at: Some("2026-11-21T10:00:00.123456Z".parse().unwrap()),
            ..completion(1, 1)
        };
        let mended = mend(good.clone(), MIN_ITEM_BYTES);
        assert!(!mended.changed);
        assert_eq!(mended.item.get(), write(&good).get());
        assert_eq!(
            read(&mended.item).result.unwrap().get(),
            good.result.unwrap().get()
        );
    }

    #[test]
    fn nul_in_a_text_is_replaced() {
        let text = Some("a\0b".to_owned());
        let bad = Completion {
            error: text.clone(),
            stdout: text.clone(),
            stderr: text,
            ..completion(1, 1)
        };
        let mended = mend(bad, MIN_ITEM_BYTES);
        let after = read(&mended.item);
        assert!(mended.changed);
        for text in [after.error, after.stdout, after.stderr] {
            assert_eq!(text.as_deref(), Some("a\u{fffd}b"));
        }
    }

    #[test]
    fn a_result_that_cannot_be_stored_is_left_out_and_the_error_says_so() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let long_key = format!(r#"{{"{}": 1e999}}"#, "k".repeat(5000));
        for (result, said) in [
            (
                r#"{"a": ["\u0000"]}"#,
                "`result.a.0`: contains a NUL character",
            ),
            (r#""\ud800""#, "`result`: "),
            (r#"{"n": 1e999}"#, "`result.n`: number out of range"),
            (
                r#"{"$serde_json::private::RawValue": "[1]"}"#,
                "a key begins with `$serde_json::private::`",
            ),
            (&*deep, "nested deeper than 32 levels"),
            (&*long_key, "bytes more]"),
        ] {
            let bad = Completion {
                result: raw(result),
                ..completion(1, 1)
            };
            let mended = mend(bad.clone(), MIN_ITEM_BYTES);
            let after = read(&mended.item);
            assert!(mended.changed && after.result.is_none());
            let error = after.error.unwrap();
            assert!(
                error.starts_with("[the result was left out: `result"),
                "{error}"
            );
            assert!(error.contains(said) && error.len() < 400, "{error}");
            // What the run itself said comes first.
            let own = Completion {
                error: Some("exit code 3".to_owned()),
                ..bad
            };
            let after = read(&mend(own, MIN_ITEM_BYTES).item);
            assert_eq!(after.error.unwrap(), format!("exit code 3 {error}"));
        }
    }

    #[test]
    fn what_is_too_large_is_cut_with_a_mark_and_keeps_a_result_that_fits() {
        let chatty = Completion {
            stdout: Some("é".repeat(4000)),
            result: raw(r#"{"kept": true}"#),
            ..completion(1, 1)
        };
        let after = read(&mend(chatty, MIN_ITEM_BYTES).item);
        let (kept, mark) = after.stdout.as_ref().unwrap().split_once("… ").unwrap();
        assert_eq!(mark, format!("[cut: {} bytes more]", 8000 - kept.len()));
        assert!(kept.len() > 300 && kept.chars().all(|character| character == 'é'));
        assert_eq!(after.result.unwrap().get(), r#"{"kept": true}"#);
        assert_eq!(after.error, None);

        let large = Completion {
            result: raw(&format!("\"{}\"", "x".repeat(4000))),
            ..completion(1, 1)
        };
        let after = read(&mend(large, MIN_ITEM_BYTES).item);
        assert!(after.result.is_none());
        assert_eq!(
            after.error.unwrap(),
            "[the result was left out: it is larger than a message may be]"
        );
    }

    fn text() -> impl Strategy<Value = Option<String>> {
        // Control characters take up to six times their size in JSON.
        let character = prop::sample::select(vec!['\0', '\u{1}', '"', '\n', 'a', 'é', '🦀']);
        let text = prop::collection::vec(character, 0..3000);
        prop::option::of(text.prop_map(|characters| characters.into_iter().collect()))
    }

    proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_came_fits_and_can_be_stored(
            texts in [text(), text(), text(), text()],
            all in any::<bool>(),
            extra in 0_usize..20_000,
        ) {
            let [error, stdout, stderr, result] = texts;
            let result = result.map(|text| to_raw_value(&text).unwrap());
            let times = all.then(chrono::Utc::now);
            let before = Completion {
                execution_id: ExecutionId(i64::MAX),
                attempt: Attempt(i32::MAX),
                action_id: ActionId(i64::MIN),
                status: Status::Cancelled,
                code: all.then_some(EndCode::TooManyProcesses),
                exit_code: Some(i32::MIN),
                partition: Some(PartitionId(255)),
                worker: all.then(WorkerId::fresh),
                broker_user: all.then(|| "worker".to_owned()),
                started_at: times,
                finished_at: times,
                result, error, stdout, stderr,
            };
            let max_bytes = MIN_ITEM_BYTES + extra;
            let mended = mend(before.clone(), max_bytes);
            prop_assert!(mended.item.get().len() <= max_bytes);
            prop_assert_eq!(mended.changed, mended.item.get() != write(&before).get());
            let after = read(&mended.item);
            prop_assert_eq!(
                (after.execution_id, after.attempt, after.status, after.exit_code, after.worker),
                (before.execution_id, before.attempt, before.status, before.exit_code, before.worker)
            );
            for text in [after.error, after.stdout, after.stderr].into_iter().flatten() {
                prop_assert!(!text.contains('\0'));
            }
            if let Some(result) = after.result {
                prop_assert!(check_json("result", result.get()).is_ok());
            }
        }
    }
}
