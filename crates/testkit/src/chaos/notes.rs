//! The rig's own part of the history: what its clients, programs and nemesis did, as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use attune_record::now_ns;
use serde_json::{Map, Value, json};

/// A file of records; one write per record, so that a record is there when the call returns.
#[derive(Debug)]
pub(crate) struct Notes {
    file: Mutex<File>,
}

impl Notes {
    /// Opens `<dir>/<name>.jsonl` for appending.
    pub(crate) fn open(dir: &Path, name: &str) -> anyhow::Result<Self> {
        let path = dir.join(format!("{name}.jsonl"));
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Self {
            file: Mutex::new(file),
        })
    }

    /// Records that a process is gone, as whoever waited for it saw.
    pub(crate) fn process_exit(&self, pid: u32) -> anyhow::Result<()> {
        self.add("process_exit", json!({"pid": pid}))
    }

    /// Appends a record of this kind; the time is now.
    pub(crate) fn add(&self, kind: &str, fields: Value) -> anyhow::Result<()> {
        let mut record = Map::new();
        record.insert("kind".to_owned(), kind.into());
        if let Value::Object(fields) = fields {
            record.extend(fields);
        }
        // Taken last, so that it is not before what the record tells.
        record.insert("t_ns".to_owned(), now_ns().into());
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line)?;
        Ok(())
    }
}
