//! Whatever arrives, a decoder answers: it never panics.

use proptest::prelude::*;

use super::{golden, types};

/// Decodes bytes as every type; what is read can be written.
fn feed(body: &[u8]) -> usize {
    types()
        .into_iter()
        .filter(|(_, decode)| match decode(body) {
            Ok(decoded) => decoded.items > 0 && !decoded.encoded.is_empty(),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        })
        .count()
}

/// A golden message with a few bytes replaced, removed or put in.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, any::<u8>()), 1..8);
    (0..types().len(), any::<bool>(), edits).prop_map(|(index, batch, edits)| {
        let mut body = golden(types()[index].0, if batch { ".batch" } else { "" });
        for (at, kind, byte) in edits {
            let at = at.index(body.len());
            match kind {
                0 => body[at] = byte,
                1 => {
                    body.remove(at);
                }
                _ => body.insert(at, byte),
            }
        }
        body
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_no_message(body in prop::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert_eq!(feed(&body), 0);
    }

    #[test]
    fn arbitrary_text_is_no_message(body in "[\\[\\]{}\":,0-9a-z.\\\\ \\PC]{0,512}") {
        prop_assert_eq!(feed(body.as_bytes()), 0);
    }

    #[test]
    fn a_damaged_message_is_read_as_its_own_type_or_not_at_all(body in damaged()) {
        prop_assert!(feed(&body) <= 1);
    }
}
