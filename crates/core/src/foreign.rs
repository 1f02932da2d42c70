//! Texts that somebody else may have written, before they are shown or quoted.

use std::borrow::Cow;

/// Whether a letter steers a terminal (control characters, among them those that begin its
/// commands), turns the direction of what follows, or is not seen at all, so that two names look
/// alike. Line ends and tabs do not count, nor do those that join letters.
#[must_use]
pub fn steers(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(letter, '\u{2028}' | '\u{2029}');
    let hides = matches!(letter, '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    turns || breaks || hides || (letter.is_control() && !matches!(letter, '\n' | '\t'))
}

/// What a terminal may be shown of a text: what [`steers`] stands there as JSON writes it,
/// `\u001b`. So JSON stays the JSON that it was.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if steers(letter) {
            shown.push_str(&written_out(letter));
        } else {
            shown.push(letter);
        }
    }
    shown.into()
}

/// A letter as JSON may write it: `\u001b`.
#[must_use]
pub fn written_out(letter: char) -> String {
    format!("\\u{:04x}", u32::from(letter))
}

/// The beginning of a text: as much as takes `most` bytes when JSON writes it. An answer or a log
/// that quotes what was sent must not grow with it.
///
/// ```
/// use attune_core::foreign::cut;
///
/// assert_eq!(cut("short", 10), "short");
/// assert_eq!(cut("rather long", 6), "rather …");
/// assert_eq!(cut("\u{1}\u{1}\u{1}", 12), "\u{1}\u{1} …");
/// ```
#[must_use]
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    let mut bytes = 0;
    let end = text.char_indices().find(|(_, letter)| {
        bytes += match letter {
            '"' | '\\' | '\n' | '\r' | '\t' => 2,
            letter if letter.is_ascii_control() => 6,
            letter => letter.len_utf8(),
        };
        bytes > most
    });
    match end {
        Some((end, _)) => format!("{} …", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_a_terminal_is_written_out() {
        // One-character forms of the same commands, a deletion, a line that is written over, and
        // letters that read from right to left.
        let text = shown("\u{61c}\u{2028}");
        assert_eq!(text, "\\u061c\\u2028");
        let text = shown("\u{9b}2J\u{7f}x\ry\u{202e}z");
        assert_eq!(text, "\\u009b2J\\u007fx\\u000dy\\u202ez");
        assert!(matches!(shown("Grüße\n\t"), Cow::Borrowed(_)));
        let json = serde_json::to_string_pretty(&["\u{9b}\u{202e}"]).unwrap();
        let back: Vec<String> = serde_json::from_str(&shown(&json)).unwrap();
        assert_eq!(back, ["\u{9b}\u{202e}"]);
    }
}
