//! Many seeds, on several threads, and what is to be said about them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::oracle::Rule;
use crate::plan::{Plan, Plant};
use crate::shrink::shrink;
use crate::world::{Outcome, Seen, run};

/// How much of a long history is shown.
const FIRST_LINES: usize = 100;
const LAST_LINES: usize = 400;

/// Which seeds to run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many.
    pub seeds: u64,
    /// The first of them.
    pub first_seed: u64,
    /// How many threads.
    pub jobs: usize,
    /// The bug that is planted.
    pub plant: Option<Plant>,
    /// Whether only the last line is printed.
    pub json: bool,
    /// Whether the first seed is run alone and its history shown.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seeds: 1000,
            first_seed: 0,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            plant: None,
            json: false,
            trace: false,
        }
    }
}

impl Options {
    /// Reads the command line; `None` when help is asked for.
    ///
    /// # Errors
    /// Words that say what is wrong.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--seeds" => options.seeds = number(&argument, &value()?)?,
                "--first-seed" => options.first_seed = number(&argument, &value()?)?,
                "--jobs" => {
                    options.jobs =
                        usize::try_from(number(&argument, &value()?)?.max(1)).unwrap_or(1);
                }
                "--plant" => {
                    let name = value()?;
                    let found = Plant::ALL.iter().find(|(known, _)| *known == name);
                    options.plant = Some(found.ok_or(format!("there is no plant `{name}`"))?.1);
                }
                "--json" => options.json = true,
                "--trace" => options.trace = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("`{argument}` is not an option")),
            }
        }
        Ok(Some(options))
    }
}

impl Options {
    fn plan(&self, seed: u64) -> Plan {
        Plan::of(seed, self.plant)
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{name} takes a number, not `{text}`"))
}

/// What came of the seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// How many were run.
    pub seeds: u64,
    /// What they came across, in all.
    pub seen: Seen,
    /// How many seeds broke each rule, and the first of them.
    pub broken: BTreeMap<Rule, (u64, u64)>,
    /// The shortest history of the first failing seed, or what was to be traced.
    pub history: Vec<String>,
}

/// Runs the seeds. The result does not depend on the number of threads.
pub fn check(options: &Options) -> Report {
    let report = Mutex::new(Report::default());
    let next = AtomicU64::new(0);
    let seeds = if options.trace { 1 } else { options.seeds };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                let mut mine = Report::default();
                loop {
                    // In packs, so that the threads do not meet at the counter.
                    let from = next.fetch_add(64, Ordering::Relaxed);
                    if from >= seeds {
                        break;
                    }
                    for seed in from..seeds.min(from + 64) {
                        let seed = options.first_seed + seed;
                        mine.add(seed, &run(options.plan(seed), false));
                    }
                }
                report
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .merge(&mine);
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.explain(options);
    report
}

impl Report {
    fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.seeds += 1;
        self.seen.add(&outcome.seen);
        for rule in outcome.violations.keys() {
            let (count, first) = self.broken.entry(*rule).or_insert((0, seed));
            *count += 1;
            *first = seed.min(*first);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.seen.add(&other.seen);
        for (rule, (count, seed)) in &other.broken {
            let (total, first) = self.broken.entry(*rule).or_insert((0, *seed));
            *total += count;
            *first = (*first).min(*seed);
        }
    }

    /// The history of the lowest failing seed, as short as it can be made.
    fn explain(&mut self, options: &Options) {
        if options.trace {
            let plan = options.plan(options.first_seed);
            self.history = describe(&plan);
            self.history.extend(run(plan, true).lines);
        } else if !options.json
            && let Some((rule, (_, seed))) = self.broken.iter().min_by_key(|(_, (_, s))| *s)
        {
            let plan = shrink(&options.plan(*seed), *rule);
            let outcome = run(plan.clone(), true);
            self.history.push(format!(
                "seed {seed} breaks {}; its shortest history:",
                rule.name()
            ));
            self.history.extend(describe(&plan));
            self.history.extend(shortened(outcome.lines));
            for (rule, violation) in &outcome.violations {
                let (name, words) = (rule.name(), &violation.words);
                self.history
                    .push(format!("{name} is broken at {} ms: {words}", violation.at));
            }
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.history {
            let _ = writeln!(text, "{line}");
        }
        for (rule, (count, first)) in &self.broken {
            let name = rule.name();
            let _ = writeln!(
                text,
                "{name}: broken by {count} seeds, first by --first-seed {first}"
            );
        }
        let _ = writeln!(text, "{} seeds: {:?}", self.seeds, self.seen);
        text
    }

    /// For programs.
    pub fn json(&self) -> String {
        let count = |rule| self.broken.get(&rule).map_or(0, |(count, _)| *count);
        let violations: serde_json::Map<String, serde_json::Value> = Rule::all()
            .map(|rule| (rule.name().to_owned(), count(rule).into()))
            .collect();
        let first: serde_json::Map<String, serde_json::Value> = self
            .broken
            .iter()
            .map(|(rule, (_, seed))| (rule.name().to_owned(), (*seed).into()))
            .collect();
        let seen = &self.seen;
        serde_json::json!({
            "seeds": self.seeds,
            "executions": seen.executions,
            "takeovers": seen.takeovers,
            "fence_rejections": seen.fence_rejections,
            "duplicates_dropped": seen.duplicates_dropped,
            "ahead": seen.ahead,
            "returns": seen.returns,
            "workers_over": seen.over,
            "workers_retired": seen.retired,
            "revokes": seen.revokes,
            "retries": seen.retries,
            "events": seen.events,
            "counted_starts": seen.counted_starts,
            "unknown_commits": seen.unknown_commits,
            "refused_commits": seen.refused_commits,
            "refused_dispatches": seen.refused_dispatches,
            "force_released": seen.force_released,
            "unsendable": seen.unsendable,
            "most_returned": seen.most_returned,
            "faults_by_kind": seen.faults,
            "first_failing_seed": self.broken.values().map(|(_, seed)| *seed).min(),
            "first_failing_seeds": first,
            "violations": violations,
        })
        .to_string()
    }
}

/// Of a long history, how it begins and how it ends.
fn shortened(mut lines: Vec<String>) -> Vec<String> {
    let Some(left_out) = lines.len().checked_sub(FIRST_LINES + LAST_LINES + 1) else {
        return lines;
    };
    let words = format!("            ... {} lines are left out ...", left_out + 1);
    lines.splice(FIRST_LINES..=FIRST_LINES + left_out, [words]);
    lines
}

/// The plan, one line for each part.
fn describe(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!(
        "{} partitions, owners' clocks off by {:?} ms, workers with {:?} slots, {:?}",
        plan.partitions, plan.owner_skews, plan.worker_slots, plan.noise
    )];
    lines.extend(plan.actions.iter().map(|action| format!("{action:?}")));
    for op in &plan.ops {
        lines.push(format!(
            "client operation #{} at {} ms: {:?}",
            op.id, op.at, op.what
        ));
    }
    for fault in &plan.faults {
        lines.push(format!(
            "fault #{} at {} ms: {:?}",
            fault.id, fault.at, fault.what
        ));
    }
    for fault in &plan.routing.faults {
        lines.push(format!(
            "fault on the way, at {} ms: {:?}",
            fault.at, fault.what
        ));
    }
    lines
}
