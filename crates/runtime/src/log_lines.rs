//! Lines of the log: bounded, and harmless on a terminal.
//!
//! What a line quotes may come from anybody who can send a message or a request. So one event is one
//! line, it never has more than [`MOST`] bytes (as many lines wait in memory as nobody reads), and it
//! holds nothing that steers a terminal.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use attune_core::foreign::{cut, steers, written_out};
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::log_repeats::left_out;

/// How many bytes a line has at most.
const MOST: usize = 16 * 1024;
/// How much is left of one that has more; what steers a terminal takes three times its bytes at most.
const LEFT: usize = 5 * 1024;

/// What lines look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// Objects, each with these fields first: who logs.
    Json(Arc<str>),
    /// Text, which may have colours of our own.
    Text { colours: bool },
}

/// Makes writers of lines for another one.
pub(crate) struct Lines<W> {
    pub(crate) form: Form,
    pub(crate) writer: W,
}

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for Lines<W> {
    type Writer = Line<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        Line {
            form: self.form.clone(),
            writer: self.writer.make_writer(),
        }
    }
}

/// Writes one event, which comes in one piece.
pub(crate) struct Line<W> {
    form: Form,
    writer: W,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let mut line = line(&self.form, text).into_owned();
        match (&self.form, left_out()) {
            (Form::Json(who), 0) => line.insert_str(1, who),
            (Form::Json(who), left_out) => {
                line.insert_str(1, &format!("{who}\"log.left_out\":{left_out},"));
            }
            (Form::Text { .. }, 0) => {}
            (Form::Text { .. }, left_out) => line.push_str(&format!(" log.left_out={left_out}")),
        }
        line.push('\n');
        self.writer.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn line<'t>(form: &Form, text: &'t str) -> Cow<'t, str> {
    let is_long = text.len() > MOST;
    match form {
        Form::Json(_) if is_long => {
            let (bytes, begins) = (text.len(), cut(text, LEFT));
            let short = json!({"message": "a line is too long for the log", "line.bytes": bytes, "line.begins": begins})
                .to_string();
            tame(&short, false).into_owned().into()
        }
        // Nothing of it stands outside of a string, and in a string it means the same when written out.
        Form::Json(_) => tame(text, false),
        Form::Text { colours } if is_long => {
            let mut begins = tame(&cut(text, LEFT), *colours).into_owned();
            if *colours {
                begins.push_str("\u{1b}[0m");
            }
            begins.into()
        }
        Form::Text { colours } => tame(text, *colours),
    }
}

/// The text with what steers a terminal, line ends among it, as JSON writes it; but for colours, if
/// there are any.
fn tame(text: &str, colours: bool) -> Cow<'_, str> {
    let is_bad = |letter| letter == '\n' || steers(letter);
    if !text.contains(is_bad) {
        return text.into();
    }
    let mut tamed = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let colour = if colours { colour(rest) } else { "" };
        if !colour.is_empty() {
            tamed.push_str(colour);
            rest = &rest[colour.len()..];
            continue;
        }
        match letter {
            '\n' => tamed.push_str("\\n"),
            letter if steers(letter) => tamed.push_str(&written_out(letter)),
            letter => tamed.push(letter),
        }
        rest = &rest[letter.len_utf8()..];
    }
    tamed.into()
}

/// The command at the beginning of a text that sets a colour or the like, or nothing.
fn colour(text: &str) -> &str {
    let Some(numbers) = text.strip_prefix("\u{1b}[") else {
        return "";
    };
    let end = numbers.find(|letter: char| !letter.is_ascii_digit() && letter != ';');
    match end {
        Some(end) if numbers[end..].starts_with('m') => &text[..end + 3],
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json() -> Form {
        Form::Json("\"service\":\"api\",".into())
    }

    #[test]
    fn a_line_is_one_line_and_steers_no_terminal() {
        let plain = Form::Text { colours: false };
        let coloured = Form::Text { colours: true };
        let foreign = "\u{1b}[2mwarn\u{1b}[0m evil\u{1b}]0;pwn\u{7}\n2026 ERROR fake\u{202e}";
        assert_eq!(
            line(&plain, foreign),
            "\\u001b[2mwarn\\u001b[0m evil\\u001b]0;pwn\\u0007\\n2026 ERROR fake\\u202e"
        );
        assert_eq!(
            line(&coloured, foreign),
            "\u{1b}[2mwarn\u{1b}[0m evil\\u001b]0;pwn\\u0007\\n2026 ERROR fake\\u202e"
        );
        assert_eq!(line(&coloured, "\u{1b}[2J"), "\\u001b[2J");
        assert_eq!(line(&plain, "tab\tand ü"), "tab\tand ü");
    }

    #[test]
    fn a_line_of_json_steers_nothing_and_says_the_same() {
        let said = "\u{9b}31m \u{202e} \u{2028} ü";
        let text = json!({"reason": said}).to_string();
        let written = line(&json(), &text);
        assert!(!written.contains(steers), "{written}");
        let read: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read["reason"], said);
    }

    #[test]
    fn a_line_has_a_bound() {
        for form in [json(), Form::Text { colours: true }] {
            let mut written = Vec::new();
            let mut to = Line {
                form: form.clone(),
                writer: &mut written,
            };
            let event = format!("{}\n", "\u{1}x".repeat(MOST));
            to.write_all(event.as_bytes()).unwrap();
            let written = String::from_utf8(written).unwrap();
            assert!(written.len() < MOST, "{}", written.len());
            assert_eq!(written.matches('\n').count(), 1);
            if form == json() {
                let read: serde_json::Value = serde_json::from_str(&written).unwrap();
                assert_eq!(read["line.bytes"], 2 * MOST);
                assert_eq!(read["service"], "api");
            }
        }
    }
}
