//! Tables and times for people.

use std::io::{self, IsTerminal as _, Write};

use attune_core::foreign::shown;
use attune_core::span;
use chrono::TimeDelta;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};

/// How a column is aligned, words to the left and figures to the right, and whether it may have several lines.
#[derive(Clone, Copy)]
pub(super) enum Column {
    Words(&'static str),
    Figures(&'static str),
    /// Words of any length, which on a terminal go on in the next line when the row has no room for them.
    Text(&'static str),
}

/// No table is made narrower than this, in columns of letters; a narrower terminal breaks its lines itself.
const NARROWEST: u16 = 60;
/// A column that has several lines is not made narrower than this by others.
const NARROWEST_TEXT: usize = 10;

/// A table without lines. On a terminal it is no wider than that, as far as its [texts](Column::Text) can make room;
/// elsewhere it is as wide as its content, one line for each row, so that it can be cut with other tools.
pub(super) fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    // Nothing where stdout is no terminal.
    let width = Table::new().width();
    within(width.map(|width| width.max(NARROWEST)), columns, rows)
}

/// A table of at most this width.
pub(super) fn within(width: Option<u16>, columns: &[Column], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
    table.set_header(columns.iter().map(|column| match column {
        Column::Words(name) | Column::Figures(name) | Column::Text(name) => *name,
    }));
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| one_line(cell)).collect())
        .collect();
    for (index, column) in columns.iter().enumerate() {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let content = cells.map(|cell| cell.chars().count()).max();
        let least = content.unwrap_or_default().min(NARROWEST_TEXT);
        let Some(target) = table.column_mut(index) else {
            continue;
        };
        target.set_padding((0, if index + 1 == columns.len() { 0 } else { 2 }));
        if let Column::Figures(_) = column {
            target.set_cell_alignment(CellAlignment::Right);
        }
        let constraint = match column {
            Column::Text(name) => {
                let least = u16::try_from(least.max(name.len())).unwrap_or(u16::MAX);
                ColumnConstraint::LowerBoundary(Width::Fixed(least))
            }
            _ => ColumnConstraint::ContentWidth,
        };
        target.set_constraint(constraint);
    }
    table.add_rows(rows);
    table.trim_fmt()
}

/// A text that somebody else wrote, for one line: a line break in it would look like a line of ours.
pub(super) fn one_line(text: &str) -> String {
    shown(&text.replace(['\n', '\r', '\t'], " ")).into_owned()
}

/// A duration in the two largest units that say something: `2d 3h`, `4m 5s`, `6.7s`, `89ms`.
pub(super) fn duration(time: TimeDelta) -> String {
    span::words(time.num_milliseconds())
}

/// Milliseconds as a [`duration`].
pub(super) fn millis(millis: u64) -> String {
    duration(TimeDelta::milliseconds(
        i64::try_from(millis).unwrap_or(i64::MAX / 2),
    ))
}

/// What stands for a value that is not there.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A limit, or the word for its absence.
pub(super) fn limit(limit: Option<u32>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// Prints to stdout: to a terminal only what it may be [`shown`], to a program what there is. A
/// reader that has seen enough, as `head` has, is no error.
pub(super) fn to_stdout(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    let text = match stdout.is_terminal() {
        true => shown(text),
        false => text.into(),
    };
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| {
            if text.ends_with('\n') {
                Ok(())
            } else {
                stdout.write_all(b"\n")
            }
        })
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        for (millis, text) in [
            (-5, "0ms"),
            (89, "89ms"),
            (6_789, "6.7s"),
            (245_000, "4m 5s"),
            (7_440_000, "2h 4m"),
            (183_600_000, "2d 3h"),
        ] {
            assert_eq!(duration(TimeDelta::milliseconds(millis)), text);
        }
    }

    #[test]
    fn what_would_steer_a_terminal_is_written_out() {
        let rows = vec![vec!["a\u{1b}]0;t\u{7}\r\nb".to_owned()]];
        let text = table(&[Column::Words("reason")], rows);
        assert_eq!(text, "reason\na\\u001b]0;t\\u0007  b");
    }

    #[test]
    fn on_a_terminal_texts_make_room_and_nothing_is_lost() {
        let columns = [
            Column::Figures("id"),
            Column::Text("who"),
            Column::Words("state"),
            Column::Text("reason"),
        ];
        let reason = "somebody has written a reason for it, and it is a very long one indeed";
        let row = |who: &str, reason: &str| {
            let cells = ["777777777777", who, "running", reason];
            cells.map(str::to_owned).to_vec()
        };
        let rows = vec![row("ann", reason), row("bob", "-")];
        let text = within(Some(60), &columns, rows.clone());
        assert!(
            text.lines().all(|line| line.chars().count() <= 60),
            "{text}"
        );
        for word in reason.split(' ') {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(
            text.contains("777777777777  ann  running  somebody has"),
            "{text}"
        );
        // Elsewhere each row is one line.
        let text = within(None, &columns, rows);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains(reason), "{text}");
        // What cannot make room does not vanish.
        let text = within(Some(60), &columns, vec![row(&"w".repeat(100), reason)]);
        let letters = text.matches('w').count() - reason.matches('w').count() - 1;
        assert_eq!(letters, 100, "{text}");
    }

    #[test]
    fn tables_align_figures_and_stay_on_one_line() {
        let rows = vec![
            vec!["core.echo".to_owned(), "7".to_owned()],
            vec!["a\nb".to_owned(), "12345".to_owned()],
        ];
        let text = table(&[Column::Words("action"), Column::Figures("waiting")], rows);
        assert_eq!(
            text,
            "action     waiting\ncore.echo        7\na b          12345"
        );
    }
}
