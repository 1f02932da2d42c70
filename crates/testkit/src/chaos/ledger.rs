//! What the clients know of what they have asked for.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_core::RequestId;
use attune_record::now_ns;
use serde_json::{Value, json};
use uuid::Uuid;

use super::notes::Notes;

/// Everything that was asked for, in memory and in the history.
#[derive(Debug)]
pub(crate) struct Ledger {
    notes: Notes,
    /// The name of the key with which is asked over HTTP, if one is.
    asker: Option<&'static str>,
    known: Mutex<Known>,
}

/// What is known for sure. What is in none of these may or may not have been accepted.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Those that were sent over AMQP, where a request keeps the name that its client gave it.
    by_amqp: HashSet<Uuid>,
    /// How many requests were sent, each counted once.
    pub(crate) asked: u64,
    /// What became of those whose acceptance was told.
    pub(crate) accepted: HashMap<Uuid, i64>,
    /// Those whose message the broker has confirmed.
    pub(crate) confirmed: HashSet<Uuid>,
    /// Those of them that were found whole among the dead letters instead of the executions.
    pub(crate) given_back: HashSet<Uuid>,
    /// Those of which nothing may have been stored.
    pub(crate) refused: HashSet<Uuid>,
    /// Those that were not to start before a time, and that time as programs measure it.
    pub(crate) delayed: HashMap<Uuid, i64>,
    /// Answers that contradict each other.
    pub(crate) contradictions: Vec<String>,
    /// How many answers there were of each kind.
    pub(crate) answers: HashMap<String, u64>,
}

impl Ledger {
    /// Records into this folder.
    pub(crate) fn open(history: &Path, asker: Option<&'static str>) -> anyhow::Result<Self> {
        Ok(Self {
            asker,
            notes: Notes::open(history, "client")?,
            known: Mutex::default(),
        })
    }

    /// What is known so far.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name under which the system knows a request.
    fn stored(&self, request_id: Uuid) -> Uuid {
        match self.asker {
            Some(asker) if !self.known().by_amqp.contains(&request_id) => {
                RequestId(request_id).of_principal(asker).0
            }
            _ => request_id,
        }
    }

    /// As [`invoke`](Self::invoke), over AMQP.
    pub(crate) fn invoke_by_amqp(&self, submission: &Value) -> anyhow::Result<()> {
        let request_id = submission["request_id"].as_str().unwrap_or("").parse()?;
        self.known().by_amqp.insert(request_id);
        self.invoke(submission)
    }

    /// A client is about to ask, for the first time, for what this submission says.
    pub(crate) fn invoke(&self, submission: &Value) -> anyhow::Result<()> {
        self.known().asked += 1;
        let request_id: Uuid = submission["request_id"].as_str().unwrap_or("").parse()?;
        let fields = json!({
            "request_id": self.stored(request_id), "action_ref": submission["action_ref"],
            "priority": submission["priority"], "delayed": !submission["not_before"].is_null(),
            "requested_by": submission["requested_by"].as_str().unwrap_or_default(),
        });
        self.notes.add("submit_invoke", fields)
    }

    /// The same for one that is not to start before so long from now.
    pub(crate) fn invoke_delayed(&self, submission: &Value, delay: Duration) -> anyhow::Result<()> {
        let request_id: Uuid = submission["request_id"].as_str().unwrap_or("").parse()?;
        let due = now_ns().saturating_add(i64::try_from(delay.as_nanos())?);
        let stored = self.stored(request_id);
        self.known().delayed.insert(stored, due);
        self.invoke(submission)
    }

    /// A client was told that it was accepted, as this execution.
    pub(crate) fn accepted(&self, request_id: Uuid, execution_id: i64) -> anyhow::Result<()> {
        let request_id = self.stored(request_id);
        {
            let mut known = self.known();
            let before = known.accepted.insert(request_id, execution_id);
            if before.is_some_and(|before| before != execution_id) {
                let text = format!("{request_id} is {execution_id}, and before it was {before:?}");
                known.contradictions.push(text);
            }
            *known.answers.entry("accepted".to_owned()).or_default() += 1;
            if before.is_some() {
                return Ok(());
            }
        }
        let fields = json!({"request_id": request_id, "execution_id": execution_id});
        self.notes.add("submit_ok", fields)
    }

    /// A client was told that it was refused, and nothing stored.
    pub(crate) fn refused(&self, request_id: Uuid, code: &str) -> anyhow::Result<()> {
        let request_id = self.stored(request_id);
        {
            let mut known = self.known();
            // A command that is sent again by somebody may find room, or an open queue, later.
            const MAY_CHANGE: [&str; 4] = [
                "QUEUE_FULL",
                "QUEUE_DRAINING",
                "LIMIT_REACHED",
                "USER_LIMIT_REACHED",
            ];
            if !MAY_CHANGE.contains(&code) {
                known.refused.insert(request_id);
            }
            *known.answers.entry(code.to_owned()).or_default() += 1;
        }
        let fields = json!({"request_id": request_id, "code": code});
        self.notes.add("submit_fail", fields)
    }

    /// Its message lies whole among the dead letters: for the checker it was not accepted.
    pub(crate) fn given_back(&self, request_id: Uuid) -> anyhow::Result<()> {
        self.known().given_back.insert(request_id);
        let fields = json!({"request_id": request_id, "code": "dead_letter"});
        self.notes.add("submit_fail", fields)
    }

    /// A client does not know what became of it.
    pub(crate) fn unknown(&self, request_id: Uuid, why: &str) -> anyhow::Result<()> {
        *self.known().answers.entry(why.to_owned()).or_default() += 1;
        let fields = json!({"request_id": self.stored(request_id)});
        self.notes.add("submit_info", fields)
    }

    /// The broker has confirmed the message of these.
    pub(crate) fn confirmed(&self, requests: &[Uuid]) -> anyhow::Result<()> {
        for request_id in requests {
            self.notes
                .add("confirmed", json!({"request_id": request_id}))?;
        }
        self.known().confirmed.extend(requests);
        Ok(())
    }
}
