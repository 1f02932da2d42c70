//! `attune events`: what happens, a line for each event as it comes.

use std::io::Write as _;

use attune_api_types::ActionView;
use attune_core::ActionRef;
use attune_core::policy::EventKind;
use clap::Args;
use serde_json::{Map, Value};

use super::http::Http;
use super::render::one_line;
use super::{Connect, EXIT_CODES, Exit, Failure, Output};

/// The largest event that is read, in bytes.
const MAX_EVENT: usize = 1 << 20;

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct EventsArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    /// Only those of this action, as in core.echo.
    #[arg(long, value_name = "REF")]
    action: Option<ActionRef>,
    /// Only these, as in finished,retried.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<EventKind>,
    /// End after so many.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub(super) async fn execute(http: &Http, arguments: EventsArguments) -> Result<Output, Failure> {
    let kinds: Vec<&str> = arguments.kind.iter().map(|kind| kind.as_str()).collect();
    let query = [
        ("action", arguments.action.as_ref().map(ToString::to_string)),
        ("kind", (!kinds.is_empty()).then(|| kinds.join(","))),
    ];
    let mut response = http.listen("/events", &query).await?;
    if let Some(action_ref) = &arguments.action {
        let view: Option<ActionView> = http.get(&format!("/actions/{action_ref}"), &[]).await.ok();
        if view.is_some_and(|view| view.spec.policy.events.is_none()) {
            let note = "its policy asks for no events (`policy.events`): nothing is told of it until it does";
            // Whoever does not read it listens all the same.
            let _ = writeln!(std::io::stderr(), "{action_ref}: {note}");
        }
    }
    let (mut events, mut left) = (Events::default(), arguments.count.unwrap_or(u64::MAX));
    while left > 0 {
        let chunk = response.chunk().await;
        let chunk = chunk.map_err(|error| Failure::unknown(format!("no more events: {error}")))?;
        let Some(chunk) = chunk else {
            return Err(Failure::unknown(
                "the server tells no more events: it stops",
            ));
        };
        for event in events.read(&chunk).map_err(Failure::unknown)? {
            if left == 0 {
                break;
            }
            left -= u64::from(event.name != "lost");
            let line = match arguments.connect.json {
                true => event.data.clone(),
                false => event.words(),
            };
            let mut stdout = std::io::stdout().lock();
            let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
            if written.is_err() {
                // Nobody reads any more.
                return Ok(Output::text("").with(Exit::Done, Vec::new()));
            }
        }
    }
    Ok(Output::text(""))
}

/// An event as the server sends it.
#[derive(Debug, PartialEq, Eq)]
struct Event {
    name: String,
    data: String,
}

impl Event {
    /// In a line, for people.
    fn words(&self) -> String {
        let Ok(mut members) = serde_json::from_str::<Map<String, Value>>(&self.data) else {
            return one_line(&format!("{} {}", self.name, self.data));
        };
        let shown = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        members.remove("kind");
        members.remove("action_id");
        let mut take = |name: &str| members.remove(name).map_or_else(String::new, shown);
        let (at, action) = (take("at"), take("action_ref"));
        let rest = members.into_iter();
        let rest: Vec<String> = rest
            .map(|(name, value)| format!("{name}={}", shown(value)))
            .collect();
        let line = format!("{at} {:18} {action} {}", self.name, rest.join(" "));
        one_line(line.trim())
    }
}

/// Reads events out of a stream.
#[derive(Debug, Default)]
struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// Those that are whole by now.
    fn read(&mut self, chunk: &[u8]) -> Result<Vec<Event>, String> {
        self.bytes.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let block = String::from_utf8_lossy(&block);
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                events.push(Event {
                    name: name.to_owned(),
                    data: data.to_owned(),
                });
            }
        }
        match self.bytes.len() > MAX_EVENT {
            true => Err(format!("an event has more than {MAX_EVENT} bytes")),
            false => Ok(events),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text = "event: finished\ndata: {\"kind\":\"finished\",\"at\":\"T\",\"action_ref\":\"a.b\",\
                    \"execution_id\":7,\"status\":\"failed\"}\n\n:\n\nevent: lost\ndata: {\"count\":3}\n\n";
        for size in [1, 7, 1_000] {
            let mut events = Events::default();
            let chunks = text.as_bytes().chunks(size);
            let read: Vec<Event> = chunks
                .flat_map(|chunk| events.read(chunk).unwrap())
                .collect();
            let words: Vec<String> = read.iter().map(Event::words).collect();
            assert_eq!(words.len(), 2, "{read:?}");
            assert_eq!(
                words[0],
                "T finished           a.b execution_id=7 status=failed"
            );
            assert_eq!(words[1], "lost                count=3");
        }
    }
}
