//! What the rig's own rules need from the records, read without the types of the history.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// A run of a program, by its own records.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) execution_id: i64,
    pub(crate) attempt: i32,
    pub(crate) start_ns: i64,
    pub(crate) end_ns: Option<i64>,
    pid: u32,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// By action.
    pub(crate) programs: BTreeMap<String, Vec<Program>>,
    /// Attempts that workers started more than once.
    pub(crate) double_starts: Vec<(i64, i32)>,
    /// Commits that a fence refused.
    pub(crate) fenced: u64,
    /// Completions that came too late or twice.
    pub(crate) stale: u64,
}

/// The fields of all kinds of records that are of interest here.
#[derive(Debug, Deserialize)]
struct Line {
    kind: String,
    #[serde(default)]
    execution_id: i64,
    #[serde(default)]
    attempt: i32,
    #[serde(default)]
    action_ref: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    t_ns: i64,
}

/// Reads a history.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Runs> {
    let mut runs = Runs::default();
    // A worker kills what it runs when it loses its lease, and records that it is gone.
    let mut ends: HashMap<(i64, i32), i64> = HashMap::new();
    let mut starts: HashMap<(i64, i32), u32> = HashMap::new();
    let mut exits: HashMap<u32, Vec<i64>> = HashMap::new();
    let mut by_pid: HashMap<(i64, i32, u32), usize> = HashMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let file = BufReader::new(std::fs::File::open(&path)?);
        for line in file.lines() {
            let text = line?;
            // A process that was killed leaves half a line.
            let Ok(line) = serde_json::from_str::<Line>(&text) else {
                continue;
            };
            let key = (line.execution_id, line.attempt);
            match line.kind.as_str() {
                "start" => *starts.entry(key).or_default() += 1,
                "end" => {
                    ends.insert(key, line.t_ns);
                }
                "program_start" => {
                    let programs = runs.programs.entry(line.action_ref).or_default();
                    by_pid.insert((key.0, key.1, line.pid), programs.len());
                    programs.push(Program {
                        execution_id: key.0,
                        attempt: key.1,
                        start_ns: line.t_ns,
                        end_ns: None,
                        pid: line.pid,
                    });
                }
                "program_end" => {
                    let index = by_pid.get(&(key.0, key.1, line.pid));
                    let programs = runs.programs.get_mut(&line.action_ref);
                    let program = programs.and_then(|programs| programs.get_mut(*index?));
                    program.context("an end without a start")?.end_ns = Some(line.t_ns);
                }
                "process_exit" => exits.entry(line.pid).or_default().push(line.t_ns),
                "fenced" => runs.fenced += 1,
                "stale_completion" => runs.stale += 1,
                _ => {}
            }
        }
    }
    for program in runs.programs.values_mut().flatten() {
        // One that was killed has no words of its own: whoever saw it first says when.
        let end = ends.get(&(program.execution_id, program.attempt));
        let seen = end
            .into_iter()
            .chain(exits.get(&program.pid).into_iter().flatten());
        let seen = seen.filter(|end| **end >= program.start_ns).min();
        program.end_ns = program.end_ns.or(seen.copied());
    }
    let twice = starts.into_iter().filter(|(_, count)| *count > 1);
    runs.double_starts = twice.map(|(key, _)| key).collect();
    Ok(runs)
}
