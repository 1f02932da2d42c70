//! Sees the ends of programs that were killed, which they cannot write down themselves.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::notes::Notes;

/// How often it looks: a number is not given to another process within this time, and no slot is
/// free so soon after its holder was killed without a word.
const LOOK: Duration = Duration::from_millis(20);

/// What it reads of a program's records.
#[derive(Deserialize)]
struct Line {
    kind: String,
    pid: u32,
}

/// The file of an action's programs, read as far as it is written.
struct Source {
    path: PathBuf,
    file: BufReader<File>,
}

/// Watches over the programs that have begun and not ended.
pub(crate) struct Witness {
    folder: PathBuf,
    notes: Notes,
    sources: Vec<Source>,
    open: HashSet<u32>,
}

impl Witness {
    /// Looks until `stop`, and once more after it.
    ///
    /// # Errors
    /// When its own records cannot be written.
    pub(crate) fn start(
        folder: &Path,
        stop: CancellationToken,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
        let mut witness = Self {
            folder: folder.to_owned(),
            notes: Notes::open(folder, "witness")?,
            sources: Vec::new(),
            open: HashSet::new(),
        };
        Ok(tokio::spawn(async move {
            while !stop.is_cancelled() {
                witness.look()?;
                tokio::time::sleep(LOOK).await; // poll
            }
            witness.look()
        }))
    }

    fn look(&mut self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_known = self.sources.iter().any(|source| source.path == path);
            if name.starts_with("program-") && !is_known {
                let file = BufReader::new(File::open(&path)?);
                self.sources.push(Source { path, file });
            }
        }
        // First who is gone, then who has ended: a program that says so and goes in between
        // must not count as killed.
        let gone: Vec<u32> = self
            .open
            .iter()
            .copied()
            .filter(|pid| is_gone(*pid))
            .collect();
        let mut text = String::new();
        for source in &mut self.sources {
            while source.file.read_line(&mut text)? > 0 {
                if let Ok(line) = serde_json::from_str::<Line>(&text) {
                    match line.kind.as_str() {
                        "program_start" => drop(self.open.insert(line.pid)),
                        "program_end" => drop(self.open.remove(&line.pid)),
                        _ => {}
                    }
                }
                text.clear();
            }
        }
        for pid in gone {
            if self.open.remove(&pid) {
                self.notes.process_exit(pid)?;
            }
        }
        Ok(())
    }
}

/// Whether a process has ended, collected by its parent or not.
fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z')),
        Err(error) => {
            matches!(error.kind(), ErrorKind::NotFound) || error.raw_os_error() == Some(3)
        }
    }
}
