//! What is printed.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use attune_config::Wiring;
use serde_json::json;

use super::finding::{Findings, State};
use crate::roles::Role;

/// What changes when what [`json`] gives changes in a way that a reader must know of.
const VERSION: u32 = 1;
/// The columns of state and name.
const MARK: usize = 9;
const NAME: usize = 15;
/// Where there is no terminal, and the least that is of use.
const WIDTH: usize = 100;
const NARROWEST: usize = 72;

/// How wide lines may be: as wide as the terminal, within reason.
pub(super) fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return WIDTH;
    }
    let seen = comfy_table::Table::new().width();
    seen.map_or(WIDTH, usize::from).clamp(NARROWEST, WIDTH + 20)
}

/// For people.
pub(super) fn human(found: &[Findings], width: usize) -> String {
    let mut text = String::new();
    for area in found.iter().filter(|area| !area.checks.is_empty()) {
        // Writing to a text cannot fail.
        writeln!(text, "{}", area.area).ok();
        for check in &area.checks {
            let mark = match check.state {
                State::Ok => "ok",
                State::Skipped => "skipped",
                State::Warning => "WARNING",
                State::Problem => "PROBLEM",
            };
            let head = format!("  {mark:MARK$}{:NAME$} ", check.name);
            let indent = " ".repeat(head.chars().count());
            let mut said = wrapped(&check.says, width.saturating_sub(indent.len()));
            writeln!(text, "{head}{}", said.next().unwrap_or_default()).ok();
            for line in said {
                writeln!(text, "{indent}{line}").ok();
            }
            // Below the name, where there is more room: a link is never cut in two.
            let below = " ".repeat(MARK + 2);
            if let Some(words) = &check.advice {
                let mut lines = wrapped(words, width.saturating_sub(below.len() + 2));
                writeln!(text, "{below}→ {}", lines.next().unwrap_or_default()).ok();
                for line in lines {
                    writeln!(text, "{below}  {line}").ok();
                }
            }
            if let Some(page) = check.docs {
                writeln!(text, "{below}  {page}").ok();
            }
        }
        text.push('\n');
    }
    writeln!(text, "{}", summary(found)).ok();
    text
}

/// How many of each, in words.
fn summary(found: &[Findings]) -> String {
    let count = |state| {
        let checks = found.iter().flat_map(|area| &area.checks);
        checks.filter(|check| check.state == state).count()
    };
    let words = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let parts = [
        words(count(State::Problem), "problem", "problems"),
        words(count(State::Warning), "warning", "warnings"),
        format!("{} skipped", count(State::Skipped)),
        format!("{} ok", count(State::Ok)),
    ];
    parts.join(", ")
}

/// Lines of words, none longer than `width` unless a word is.
fn wrapped(text: &str, width: usize) -> impl Iterator<Item = String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        let room = line + 1 + word.chars().count() <= width;
        match lines.last_mut() {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) if room => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter()
}

/// For programs: one object, whose form docs/OPERATIONS.md describes.
pub(super) fn json(found: &[Findings], wiring: Option<Wiring>, roles: &[Role]) -> String {
    let checks = found.iter().flat_map(|area| {
        area.checks.iter().map(|check| {
            let mut shown = json!(check);
            shown["area"] = json!(area.area);
            shown
        })
    });
    let worst = found.iter().map(Findings::worst).max();
    let shown = json!({
        "version": VERSION,
        "program": env!("CARGO_PKG_VERSION"),
        "wiring": wiring,
        "roles": roles.iter().map(|role| role.name()).collect::<Vec<_>>(),
        // What could not be looked at is no fault.
        "state": match worst.unwrap_or(State::Ok) {
            State::Skipped => State::Ok,
            worst => worst,
        },
        "checks": checks.collect::<Vec<_>>(),
    });
    format!("{shown:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::pages::DOCTOR;

    fn found() -> Vec<Findings> {
        let mut database = Findings::of("database");
        database.ok("version", "PostgreSQL 17.2");
        database.problem(
            "reachable",
            "PostgreSQL at db:5432 does not accept the password of this login, or there is no such login there",
            ("look at database.url, and whether the server asks for another password", DOCTOR),
        );
        let mut host = Findings::of("host");
        host.skip("work_dir", "no worker is asked about");
        vec![database, host, Findings::of("service")]
    }

    #[test]
    fn each_check_is_one_line_where_it_fits_and_none_is_too_long() {
        for width in [NARROWEST, 80, WIDTH] {
            let text = human(&found(), width);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{line}");
            }
            assert!(
                text.contains("  ok       version         PostgreSQL 17.2\n"),
                "{text}"
            );
            assert!(
                text.contains("  PROBLEM  reachable       PostgreSQL at db:5432"),
                "{text}"
            );
            assert!(
                text.contains("\n             docs/OPERATIONS.md#attune-doctor\n"),
                "{text}"
            );
            assert!(
                text.ends_with("1 problem, 0 warnings, 1 skipped, 1 ok\n"),
                "{text}"
            );
        }
    }

    #[test]
    fn programs_get_every_check_with_its_area() {
        let text = json(&found(), Some(Wiring::PostgresRabbitmq), &[Role::Worker]);
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(shown["state"], "problem");
        assert_eq!(shown["wiring"], "postgres-rabbitmq");
        assert_eq!(shown["roles"], json!(["worker"]));
        assert_eq!(
            shown["checks"][0],
            json!({"area": "database", "name": "version", "state": "ok", "says": "PostgreSQL 17.2"})
        );
        assert_eq!(shown["checks"][1]["docs"], DOCTOR);
        assert_eq!(shown["checks"][2]["state"], "skipped");
    }
}
