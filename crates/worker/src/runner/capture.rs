//! Keeps the beginning of what a program writes, as text that can be stored.

use attune_secrets::{Scrub, Secrets};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What was read of a stream, up to a bound; the rest is counted only.
#[derive(Debug)]
pub(crate) struct Capture {
    kept: Vec<u8>,
    /// Bytes seen in all.
    total: u64,
    /// Bytes of text kept, at most.
    max: usize,
    /// Takes out what may not leave this worker, before anything is kept.
    scrub: Scrub,
}

/// Text that can be stored: no invalid UTF-8, no NUL characters, at most the bound.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// How many bytes of the stream it leaves out at the end.
    pub(crate) cut: u64,
}

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;

impl Capture {
    pub(crate) fn new(max: usize, secrets: &Secrets) -> Self {
        Self {
            kept: Vec::new(),
            total: 0,
            max,
            scrub: Scrub::new(secrets.clone()),
        }
    }

    /// Adds what was read.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut passed = Vec::with_capacity(bytes.len());
        self.scrub.take(bytes, &mut passed);
        self.keep(&passed);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(self.max - self.kept.len());
        self.kept.extend_from_slice(&bytes[..fits]);
        self.total += bytes.len() as u64;
    }

    /// Whether more was read than is kept.
    pub(crate) fn is_over(&self) -> bool {
        self.total > self.kept.len() as u64
    }

    /// Reads to the end. What was read stays when the future is dropped.
    pub(crate) async fn read_from(&mut self, mut stream: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; CHUNK];
        // A stream that cannot be read any more has ended for all purposes.
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            self.add(&chunk[..count]);
        }
    }

    /// What was kept, as text. What is not UTF-8 and NUL characters (PostgreSQL cannot store
    /// them) become U+FFFD, which is longer; the bound holds for the text as well.
    pub(crate) fn into_text(mut self) -> Text {
        let mut last = Vec::new();
        self.scrub.end(&mut last);
        self.keep(&last);
        let mut text = String::with_capacity(self.kept.len());
        let used = fill(&mut text, &self.kept, self.max, self.is_over());
        Text {
            text,
            cut: self.total - used as u64,
        }
    }
}

impl Text {
    /// The text, with a mark where it is cut.
    pub(crate) fn marked(mut self) -> String {
        if self.cut > 0 {
            self.text
                .push_str(&format!("… [cut: {} bytes more]", self.cut));
        }
        self.text
    }
}

/// Fills `text` up to `max` bytes and returns how many of `bytes` it stands for. `goes_on` says
/// that `bytes` is only a beginning, whose last character may have been cut in two.
fn fill(text: &mut String, bytes: &[u8], max: usize, goes_on: bool) -> usize {
    let mut used = 0;
    let replace = |text: &mut String| {
        let fits = text.len() + char::REPLACEMENT_CHARACTER.len_utf8() <= max;
        if fits {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        fits
    };
    for chunk in bytes.utf8_chunks() {
        for (index, piece) in chunk.valid().split('\0').enumerate() {
            if index > 0 {
                if !replace(text) {
                    return used;
                }
                used += 1;
            }
            let fits = piece.floor_char_boundary(max - text.len());
            text.push_str(&piece[..fits]);
            used += fits;
            if fits < piece.len() {
                return used;
            }
        }
        let invalid = chunk.invalid();
        let is_last = used + invalid.len() == bytes.len();
        if !invalid.is_empty() {
            if (goes_on && is_last) || !replace(text) {
                return used;
            }
            used += invalid.len();
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(max: usize, written: &[u8], expected: &str) {
        let mut capture = Capture::new(max, &Secrets::default());
        // In pieces, as a pipe delivers them.
        for piece in written.chunks(3) {
            capture.add(piece);
        }
        assert_eq!(capture.into_text().marked(), expected);
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        check(10, b"", "");
        check(10, b"0123456789", "0123456789");
        check(10, "é€😀".as_bytes(), "é€😀");
    }

    #[test]
    fn a_cut_is_marked_and_never_splits_a_character() {
        check(10, b"0123456789ab", "0123456789… [cut: 2 bytes more]");
        check(4, "a€€".as_bytes(), "a€… [cut: 3 bytes more]");
        check(5, "a€€".as_bytes(), "a€… [cut: 3 bytes more]");
        check(0, b"abc", "… [cut: 3 bytes more]");
    }

    #[test]
    fn what_cannot_be_stored_is_replaced_within_the_bound() {
        check(20, b"a\0b\xffc", "a\u{fffd}b\u{fffd}c");
        check(7, b"\0\0\0", "\u{fffd}\u{fffd}… [cut: 1 bytes more]");
        // Cut off by the program itself, not by the bound.
        check(20, b"a\xe2\x82", "a\u{fffd}");
    }
}
