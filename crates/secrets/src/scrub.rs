//! Taking secrets out of what programs write.

use std::fmt;
use std::sync::Arc;

use attune_core::secret::MASK;
use attune_core::{Outcome, RawValue};
use serde_json::Value;

/// What is shorter, in bytes, is not taken out: it would be found everywhere.
pub const MIN_BYTES: usize = 6;

/// The texts that may not leave a worker.
#[derive(Clone, Default)]
pub struct Secrets {
    needles: Arc<[Needle]>,
}

/// A text that is looked for, byte by byte.
struct Needle {
    bytes: Vec<u8>,
    /// For each length of a beginning that was met: the longest beginning that is its end too (Knuth, Morris and
    /// Pratt), so that no byte is looked at twice.
    falls_to: Vec<usize>,
}

impl Secrets {
    /// The texts to look for: each as it is, without white space around it, and in the ways in which it stands in
    /// JSON.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for value in values {
            let trimmed = value.trim().to_owned();
            let forms = [
                in_json(&value),
                in_ascii_json(&value),
                in_json(&trimmed),
                in_ascii_json(&trimmed),
                trimmed,
                value,
            ];
            all.extend(forms.into_iter().map(String::into_bytes));
        }
        all.retain(|bytes| bytes.len() >= MIN_BYTES);
        all.sort();
        all.dedup();
        Self {
            needles: all.into_iter().map(Needle::new).collect(),
        }
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// A text without them.
    #[must_use]
    pub fn hide(&self, text: String) -> String {
        if self.is_empty() {
            return text;
        }
        let mut scrub = Scrub::new(self.clone());
        let mut out = Vec::with_capacity(text.len());
        scrub.take(text.as_bytes(), &mut out);
        scrub.end(&mut out);
        String::from_utf8(out)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// An outcome without them: its result, its error and its output.
    #[must_use]
    pub fn hide_outcome(&self, outcome: Outcome) -> Outcome {
        if self.is_empty() {
            return outcome;
        }
        Outcome {
            result: outcome.result.map(|result| self.hide_json(result)),
            error: outcome.error.map(|text| self.hide(text)),
            stdout: outcome.stdout.map(|text| self.hide(text)),
            stderr: outcome.stderr.map(|text| self.hide(text)),
            ..outcome
        }
    }

    /// What is no JSON without them, because a number was one, becomes a text.
    fn hide_json(&self, json: Box<RawValue>) -> Box<RawValue> {
        let hidden = self.hide(json.get().to_owned());
        if hidden == json.get() {
            return json;
        }
        let as_text = || Value::from(hidden.as_str()).to_string();
        let kept = RawValue::from_string(hidden.clone());
        kept.or_else(|_| RawValue::from_string(as_text()))
            .unwrap_or_default()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.needles.len())
    }
}

/// A text as it stands in JSON, without its quotes.
fn in_json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The same where everything else than ASCII is escaped.
fn in_ascii_json(text: &str) -> String {
    let mut out = String::new();
    for character in in_json(text).chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

impl Needle {
    fn new(bytes: Vec<u8>) -> Self {
        let mut falls_to = vec![0; bytes.len() + 1];
        let mut length = 0;
        for index in 1..bytes.len() {
            while length > 0 && bytes[index] != bytes[length] {
                length = falls_to[length];
            }
            length += usize::from(bytes[index] == bytes[length]);
            falls_to[index + 1] = length;
        }
        Self { bytes, falls_to }
    }

    /// How much of it stands at the end, one byte later.
    fn step(&self, mut length: usize, byte: u8) -> usize {
        if length == self.bytes.len() {
            length = self.falls_to[length];
        }
        while length > 0 && self.bytes[length] != byte {
            length = self.falls_to[length];
        }
        length + usize::from(self.bytes[length] == byte)
    }
}

/// Takes secrets out of a stream, however it is cut into pieces: what may be the beginning of one is held back.
#[derive(Debug)]
pub struct Scrub {
    secrets: Secrets,
    /// How much of each is met at the end of what came.
    met: Vec<usize>,
    /// What came and was not passed on.
    held: Vec<u8>,
    /// So many bytes at the beginning of it belong to a secret.
    covered: usize,
    /// Whether what was passed on last is the mask, which goes on.
    in_mask: bool,
}

impl Scrub {
    /// Of a stream that begins.
    #[must_use]
    pub fn new(secrets: Secrets) -> Self {
        Self {
            met: vec![0; secrets.needles.len()],
            secrets,
            held: Vec::new(),
            covered: 0,
            in_mask: false,
        }
    }

    /// Takes what came and appends to `out` what can be passed on.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.secrets.is_empty() {
            out.extend_from_slice(bytes);
            return;
        }
        for byte in bytes {
            self.held.push(*byte);
            let (mut longest_met, mut longest_found) = (0, 0);
            for (needle, met) in self.secrets.needles.iter().zip(&mut self.met) {
                *met = needle.step(*met, *byte);
                longest_met = longest_met.max(*met);
                if *met == needle.bytes.len() {
                    longest_found = longest_found.max(*met);
                }
            }
            if longest_found > 0 {
                self.found(longest_found, out);
            }
            if longest_met == 0 && !self.held.is_empty() {
                self.pass(self.held.len(), out);
            }
        }
        // What may be the beginning of a secret stays.
        let longest = self.met.iter().copied().max().unwrap_or(0);
        self.pass(self.held.len().saturating_sub(longest), out);
    }

    /// The stream has ended: appends what was held back.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        self.pass(self.held.len(), out);
        self.met.fill(0);
    }

    /// The last `length` bytes are a secret.
    fn found(&mut self, length: usize, out: &mut Vec<u8>) {
        let start = self.held.len().saturating_sub(length);
        if start > self.covered {
            self.pass(start, out);
        }
        self.covered = self.held.len();
    }

    /// Passes on the first bytes of what is held.
    fn pass(&mut self, count: usize, out: &mut Vec<u8>) {
        let hidden = self.covered.min(count);
        if hidden > 0 && !self.in_mask {
            out.extend_from_slice(MASK.as_bytes());
            self.in_mask = true;
        }
        if count > hidden {
            out.extend_from_slice(&self.held[hidden..count]);
            self.in_mask = false;
        }
        self.held.drain(..count);
        self.covered -= hidden;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        Secrets::new(values.iter().map(|value| (*value).to_owned()))
    }

    fn hidden(values: &[&str], text: &str) -> String {
        secrets(values).hide(text.to_owned())
    }

    #[test]
    fn every_secret_is_taken_out_wherever_it_stands() {
        for (values, text, expected) in [
            (&["hunter22"][..], "a hunter22 b", "a ******** b"),
            (&["hunter22"], "hunter22hunter22", "********"),
            (&["hunter22"], "hunter2 and hunter", "hunter2 and hunter"),
            (&["short"], "short", "short"),
            (&["abcdefg", "fgxyzw"], "1abcdefgxyzw2", "1********2"),
            (
                &["abcdef", "abcdefghi"],
                "abcdefghi abcdefgh",
                "******** ********gh",
            ),
            (&["aabaab"], "aaabaabaab!", "a********!"),
            (
                &["a\"b\nc\"d"],
                r#"{"x":"a\"b\nc\"d"}"#,
                r#"{"x":"********"}"#,
            ),
            (&["größer1"], r#""gr\u00f6\u00dfer1""#, r#""********""#),
            (&["from-file\n"], "from-file", "********"),
        ] {
            assert_eq!(hidden(values, text), expected, "{values:?} in {text}");
        }
    }

    #[test]
    fn a_result_stays_json() {
        let secrets = secrets(&["12345678", "hunter22"]);
        let hide = |text: &str| {
            let outcome = Outcome::succeeded(RawValue::from_string(text.to_owned()).ok());
            secrets
                .hide_outcome(outcome)
                .result
                .unwrap()
                .get()
                .to_owned()
        };
        assert_eq!(hide(r#"{"a":"x hunter22"}"#), r#"{"a":"x ********"}"#);
        assert_eq!(hide(r#"{"a":12345678}"#), r#""{\"a\":********}""#);
        assert_eq!(hide(r#"{"a":1}"#), r#"{"a":1}"#);
    }

    proptest! {
        /// However a stream is cut, the same comes out, and nothing of a secret is in it.
        #[test]
        fn where_a_stream_is_cut_changes_nothing(
            values in prop::collection::vec("[ab]{6,9}", 1..4),
            pieces in prop::collection::vec("[abx]{0,12}", 0..20),
        ) {
            let secrets = Secrets::new(values.clone());
            let text = pieces.concat();
            let whole = secrets.hide(text.clone());
            let (mut scrub, mut out) = (Scrub::new(secrets.clone()), Vec::new());
            for piece in &pieces {
                scrub.take(piece.as_bytes(), &mut out);
            }
            scrub.end(&mut out);
            let out = String::from_utf8(out).unwrap();
            prop_assert_eq!(&out, &whole);
            let covered = covered(&values, &text);
            prop_assert_eq!(&whole, &expected(&text, &covered));
            for value in &values {
                prop_assert!(!whole.contains(value.as_str()), "{} in {}", value, whole);
            }
        }
    }

    fn covered(values: &[String], text: &str) -> Vec<bool> {
        let mut covered = vec![false; text.len()];
        for value in values {
            for start in 0..text.len() {
                if text[start..].starts_with(value.as_str()) {
                    covered[start..start + value.len()].fill(true);
                }
            }
        }
        covered
    }

    fn expected(text: &str, covered: &[bool]) -> String {
        let mut out = String::new();
        let mut before = false;
        for (character, hidden) in text.chars().zip(covered) {
            match hidden {
                true if !before => out.push_str(MASK),
                true => {}
                false => out.push(character),
            }
            before = *hidden;
        }
        out
    }
}
