//! Messages that cannot be used are refused with words that say why.

use attune_messages::v1::{EnforcementCreated, ExecutionCompleted, ForceRelease, OnReject, Submit};
use attune_messages::v2::WorkerReport;
use attune_messages::{DecodeError, Envelope, decode, decode_batch};

use super::{MAX_BYTES, all, golden, types, version};

/// An envelope with the given parts.
fn envelope(message_type: &str, version: &str, payload: &str) -> Vec<u8> {
    format!(
        r#"{{"message_id":"0198c1f0-5a00-7000-8000-000000000001","message_type":"{message_type}","version":{version},"timestamp":"2026-01-02T03:04:05Z","payload":{payload}}}"#
    )
    .into_bytes()
}

fn enforcement(payload: &str) -> Result<Vec<EnforcementCreated>, DecodeError> {
    decode_batch(&envelope("enforcement.created", "1", payload), MAX_BYTES)
}

#[test]
fn a_message_is_too_large_by_one_byte() {
    let body = golden("enforcement.created", "");
    assert!(decode::<EnforcementCreated>(&body, body.len()).is_ok());
    let error = decode::<EnforcementCreated>(&body, body.len() - 1).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { .. }));
    let words = format!(
        "the message has {} bytes; at most {} are allowed",
        body.len(),
        body.len() - 1
    );
    assert_eq!(error.to_string(), words);
}

#[test]
fn what_is_no_envelope_is_refused() {
    let whole = golden("enforcement.created", "");
    let text = String::from_utf8(whole.clone()).unwrap();
    let cases: [(&str, Vec<u8>); 14] = [
        ("nothing", vec![]),
        ("not JSON", b"hello".to_vec()),
        ("an array", b"[]".to_vec()),
        ("an empty object", b"{}".to_vec()),
        ("null", b"null".to_vec()),
        (
            "a NUL byte in a string",
            text.replace("alice", "al\0ice").into_bytes(),
        ),
        (
            "no UTF-8",
            [&whole[..20], &[0xff, 0xfe], &whole[20..]].concat(),
        ),
        ("something after it", [&whole[..], b"{}"].concat()),
        ("a byte order mark", [b"\xef\xbb\xbf", &whole[..]].concat()),
        (
            "another id",
            text.replace("0198c1f0-5a00-7000-8000-000000000001", "7")
                .into_bytes(),
        ),
        (
            "another time",
            text.replace("2026-01-02T03:04:05.678901Z", "yesterday")
                .into_bytes(),
        ),
        (
            "a negative version",
            envelope("enforcement.created", "-1", "{}"),
        ),
        (
            "a version that is text",
            envelope("enforcement.created", "\"1\"", "{}"),
        ),
        (
            "no payload",
            text.replace("\"payload\"", "\"pay_load\"").into_bytes(),
        ),
    ];
    for (what, body) in cases {
        for (message_type, decode) in types() {
            match decode(&body) {
                Err(DecodeError::Envelope(_)) => {}
                Err(other) => panic!("{what} as {message_type}: {other}"),
                Ok(_) => panic!("{what} was read as {message_type}"),
            }
        }
    }
}

#[test]
fn no_truncation_of_a_message_is_a_message() {
    for (message_type, decode) in types() {
        let whole = golden(message_type, ".batch");
        let end = whole.trim_ascii_end().len();
        for length in 0..end {
            match decode(&whole[..length]) {
                Err(DecodeError::Envelope(_)) => {}
                Err(other) => panic!("{message_type}, {length} bytes: {other}"),
                Ok(_) => panic!("{length} of {end} bytes were read as {message_type}"),
            }
        }
    }
}

#[test]
fn a_type_that_does_not_belong_is_named() {
    for (message_type, decode) in types() {
        let body = envelope("execution.unheard_of", "1", "{}");
        match decode(&body) {
            Err(error @ DecodeError::Type { .. }) => {
                let words = error.to_string();
                assert!(words.contains("execution.unheard_of"), "{words}");
                assert!(words.contains(message_type), "{words}");
            }
            other => panic!("{message_type}: {:?}", other.err()),
        }
    }
    // A sender's words are cut before they reach a log.
    let body = envelope(&"x".repeat(10_000), "1", "{}");
    let error = decode_batch::<Submit>(&body, MAX_BYTES).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
}

#[test]
fn only_known_versions_are_read() {
    for of in all() {
        let message_type = of.name;
        for version in [0, of.version + 1, u32::MAX] {
            let body = String::from_utf8(golden(message_type, "")).unwrap();
            let own = format!("\"version\": {}", of.version);
            let body = body.replacen(&own, &format!("\"version\": {version}"), 1);
            match (of.decode)(body.as_bytes()) {
                Err(DecodeError::Version {
                    message_type: named,
                }) => assert_eq!((named, 0), (message_type, version)),
                // It waits for a program that can read it.
                Err(
                    error @ DecodeError::Newer {
                        message_type: named,
                        found,
                        known,
                    },
                ) => {
                    let expected = (message_type, version, of.version);
                    assert_eq!((named, found, known), expected);
                    assert!(error.is_newer());
                }
                other => panic!("{message_type} version {version}: {:?}", other.err()),
            }
        }
    }
}

/// What was written before a grant named its worker may begin nowhere.
#[test]
fn a_version_that_was_given_up_is_refused_in_words() {
    let mut given_up = 0;
    for of in all() {
        for version in 1..of.oldest {
            given_up += 1;
            let body = envelope(
                of.name,
                &version.to_string(),
                r#"{"execution_id":256,"attempt":1}"#,
            );
            let error = (of.decode)(&body).err().unwrap();
            assert!(!error.is_newer(), "it waits for nothing");
            let words = format!(
                "version {version} of `{}` is not used any more; this program reads {} to {}",
                of.name, of.oldest, of.version
            );
            assert_eq!(error.to_string(), words);
        }
    }
    assert_eq!(given_up, 1);
}

#[test]
fn an_empty_batch_is_refused() {
    for (message_type, decode) in types() {
        let version = version(message_type).to_string();
        let body = envelope(message_type, &version, " [ ] ");
        assert!(
            matches!(decode(&body), Err(DecodeError::Empty)),
            "{message_type}"
        );
    }
}

#[test]
fn a_payload_of_another_shape_is_refused() {
    for (message_type, decode) in types() {
        let version = version(message_type).to_string();
        for payload in ["null", "1", "\"text\"", "{}", "[null]", "[[]]", "[{}]"] {
            let body = envelope(message_type, &version, payload);
            match decode(&body) {
                Err(DecodeError::Payload { .. }) => {}
                other => panic!("{message_type} {payload}: {:?}", other.err()),
            }
        }
    }
}

#[test]
fn a_misspelt_field_is_refused_by_name() {
    for (payload, word) in [
        (
            r#"{"action_ref":"core.echo","prioritty":"high"}"#,
            "prioritty",
        ),
        (
            r#"{"action_ref":"core.echo","priority":"urgent"}"#,
            "urgent",
        ),
        (r#"{"parameters":{}}"#, "action_ref"),
        (
            r#"{"action_ref":"core.echo","request_id":"order-7"}"#,
            "UUID",
        ),
        (r#"{"action_ref":"core.echo","timeout_seconds":-1}"#, "-1"),
        (
            r#"{"action_ref":"core.echo","timeout_seconds":4294967296}"#,
            "4294967296",
        ),
        (r#"{"action_ref":"core.echo","labels":{"a":1}}"#, "string"),
        (
            r#"{"action_ref":"core.echo","action_ref":"core.noop"}"#,
            "duplicate",
        ),
        (r#"[{"action_ref":"core.echo"},{"action_ref":7}]"#, "string"),
    ] {
        match enforcement(payload) {
            Err(DecodeError::Payload { message_type, why }) => {
                assert_eq!(message_type, "enforcement.created");
                assert!(why.contains(word), "{payload}: {why}");
            }
            other => panic!("{payload}: {other:?}"),
        }
    }
    let completion =
        r#"{"execution_id":1,"attempt":1,"action_id":1,"status":"succeeded","exitcode":0}"#;
    let body = envelope("execution.completed", "1", completion);
    let error = decode_batch::<ExecutionCompleted>(&body, MAX_BYTES).unwrap_err();
    assert!(matches!(error, DecodeError::Payload { .. }));
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (field, value) in [
        ("execution_id", "9223372036854775808"),
        ("execution_id", "1.5"),
        ("execution_id", "\"1\""),
        ("attempt", "2147483648"),
        ("action_id", "1e30"),
        ("status", "\"done\""),
        ("partition", "65536"),
        ("exit_code", "2147483648"),
    ] {
        let mut fields = vec![
            ("execution_id", "1"),
            ("attempt", "1"),
            ("action_id", "1"),
            ("status", "\"succeeded\""),
        ];
        fields.retain(|(name, _)| *name != field);
        fields.push((field, value));
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        let body = envelope(
            "execution.completed",
            "1",
            &format!("{{{}}}", fields.join(",")),
        );
        match decode_batch::<ExecutionCompleted>(&body, MAX_BYTES) {
            Err(DecodeError::Payload { .. }) => {}
            other => panic!("{field} = {value}: {other:?}"),
        }
    }
}

#[test]
fn what_the_types_cannot_see_is_left_to_the_check() {
    for (payload, field) in [
        (
            r#"{"action_ref":"core.echo","parameters":{"a":"\u0000"}}"#.to_owned(),
            "parameters.a",
        ),
        (
            r#"{"action_ref":"core.echo","requested_by":"a\u0000"}"#.to_owned(),
            "requested_by",
        ),
        (
            r#"{"action_ref":"core.echo","parameters":[1]}"#.to_owned(),
            "parameters",
        ),
        (
            r#"{"action_ref":"core.echo","parameters":{"n":1e999}}"#.to_owned(),
            "parameters.n",
        ),
        (r#"{"action_ref":"Core.Echo"}"#.to_owned(), "action_ref"),
        // Deep enough to end a decoder that recurses.
        (
            format!(
                r#"{{"action_ref":"core.echo","parameters":{{"a":{}{}}}}}"#,
                "[".repeat(200_000),
                "]".repeat(200_000)
            ),
            "parameters.a",
        ),
    ] {
        let items = enforcement(&payload).unwrap();
        let reject = items[0].0.check().unwrap_err();
        let place = reject.field.unwrap();
        assert!(place.starts_with(field), "{field}: {place}");
    }
}

#[test]
fn unknown_fields_of_the_frame_and_white_space_are_no_matter() {
    let body = br#"
        { "trace": {"id": "abc"}, "version": 1, "message_type": "enforcement\u002ecreated",
          "payload" :  [ { "action_ref" : "core.echo" } ] , "timestamp": "2026-01-02T03:04:05.678901234Z",
          "message_id": "0198C1F05A007000800000000000000A" }
    "#;
    let envelope = Envelope::parse(body, MAX_BYTES).unwrap();
    assert!(envelope.is::<EnforcementCreated>());
    assert_eq!(envelope.items::<EnforcementCreated>().unwrap().len(), 1);
}

/// Whoever sent it finds what is wrong without counting columns.
#[test]
fn what_is_wrong_in_a_payload_is_named_with_its_field() {
    for (item, field) in [
        (r#"{"execution_id": 1, "attempt": {}}"#, "attempt: "),
        (r#"{"execution_id": "one", "attempt": 1}"#, "execution_id: "),
        (
            r#"[{"execution_id": 1, "attempt": 1, "action_id": true}]"#,
            "[0].action_id: ",
        ),
    ] {
        let body = envelope("execution.completed", "1", item);
        let error = decode_batch::<ExecutionCompleted>(&body, MAX_BYTES).unwrap_err();
        let words = error.to_string();
        let begins = format!("the payload is not a `execution.completed`: {field}invalid type");
        assert!(words.starts_with(&begins), "{words}");
    }
}

/// Whoever writes `null` for what has no value is heard, as PROTOCOL says.
#[test]
fn null_in_an_optional_field_of_a_command_is_no_value() {
    let submit = r#"{"submission":{"action_ref":"core.noop"},"on_reject":null}"#;
    let items: Vec<Submit> =
        decode_batch(&envelope("partition.submit", "1", submit), MAX_BYTES).unwrap();
    assert_eq!(items[0].on_reject, OnReject::default());
    let release = r#"{"request_id":"0198c1f0-5a00-7000-8000-0000000000a1","execution_id":512,"attempt":3,
        "who":"me","reason":"it hangs","never_begun":null}"#;
    let body = envelope("partition.force_release", "1", release);
    let items: Vec<ForceRelease> = decode_batch(&body, MAX_BYTES).unwrap();
    assert!(!items[0].never_begun);
}

#[test]
fn null_in_an_optional_field_of_a_report_is_no_value() {
    let read = |payload: &str| {
        decode_batch::<WorkerReport>(&envelope("worker.report", "1", payload), MAX_BYTES)
    };
    let worker = r#""worker":"0198c1f0-5a00-7000-8000-0000000000b1""#;
    let left_out = read(&format!("{{{worker}}}")).unwrap();
    for field in ["elsewhere", "returned", "started", "resync"] {
        let said = read(&format!(r#"{{{worker},"{field}":null}}"#)).unwrap();
        assert_eq!(said, left_out, "{field}");
    }
    let returned = r#"{"execution_id":512,"attempt":3,"why":null,"lacks_key":null}"#;
    let said = read(&format!(r#"{{{worker},"returned":[{returned}]}}"#)).unwrap();
    assert_eq!(said[0].returned[0].why, "");
    assert_eq!(said[0].returned[0].lacks_key, None);
    // What is not optional must be there.
    assert!(read(&format!(r#"{{{worker},"returned":[null]}}"#)).is_err());
    assert!(read(r#"{"worker":null}"#).is_err());
}
