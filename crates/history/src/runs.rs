//! From records to the intervals in which executions ran.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use attune_core::{ActionId, Attempt, ExecutionId};

use crate::judge::Interval;
use attune_record::Record;
use attune_record::{ReadError, read_dir};

/// The runs of every action, as workers recorded them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runs {
    /// The intervals of each action, in no order that matters. What clients recorded gives the
    /// times of acceptance: the moment at which the client was told, so that a start may come
    /// before it.
    pub by_action: BTreeMap<ActionId, Vec<Interval>>,
    /// Ends without a start. A worker that was killed loses the records of its last moments, but
    /// it records a start long before its end, so anything but 0 means that records are missing.
    pub orphan_ends: u64,
}

/// Starts and ends of one attempt; more than one start is a fault that must stay visible.
#[derive(Debug, Default)]
struct Times {
    starts: Vec<i64>,
    ends: Vec<i64>,
}

impl Runs {
    /// The runs in these records, which may come in any order.
    pub fn of(records: impl IntoIterator<Item = Record>) -> Self {
        let mut attempts: BTreeMap<(ActionId, ExecutionId, Attempt), Times> = BTreeMap::new();
        let mut accepted: HashMap<ExecutionId, i64> = HashMap::new();
        for record in records {
            match record {
                Record::Start {
                    execution_id,
                    attempt,
                    action_id,
                    t_ns,
                } => {
                    let key = (action_id, execution_id, attempt);
                    attempts.entry(key).or_default().starts.push(t_ns);
                }
                Record::End {
                    execution_id,
                    attempt,
                    action_id,
                    t_ns,
                    ..
                } => {
                    let key = (action_id, execution_id, attempt);
                    attempts.entry(key).or_default().ends.push(t_ns);
                }
                // A repeated request is told again; the first answer is the acceptance.
                Record::SubmitOk {
                    execution_id, t_ns, ..
                } => {
                    let first = accepted.entry(execution_id).or_insert(t_ns);
                    *first = t_ns.min(*first);
                }
                _ => {}
            }
        }
        let mut runs = Self::default();
        for ((action_id, execution_id, attempt), mut times) in attempts {
            times.starts.sort_unstable();
            times.ends.sort_unstable();
            runs.orphan_ends += times.ends.len().saturating_sub(times.starts.len()) as u64;
            let intervals = runs.by_action.entry(action_id).or_default();
            for (number, &start_ns) in times.starts.iter().enumerate() {
                intervals.push(Interval {
                    execution_id,
                    attempt,
                    accepted_ns: accepted.get(&execution_id).copied(),
                    start_ns,
                    end_ns: times.ends.get(number).copied(),
                });
            }
        }
        runs.by_action.retain(|_, intervals| !intervals.is_empty());
        runs
    }

    /// The runs that the files of a folder record; see [`read_dir`].
    ///
    /// # Errors
    /// When anything in the folder cannot be read.
    pub fn read(dir: &Path) -> Result<Self, ReadError> {
        let records: Vec<Record> = read_dir(dir)?.collect::<Result<_, _>>()?;
        Ok(Self::of(records))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_core::{RequestId, Status};
    use attune_record::Recorder;
    use uuid::Uuid;

    const ACTION: ActionId = ActionId(7);

    fn start(id: i64, attempt: i32, t_ns: i64) -> Record {
        let (execution_id, attempt) = (ExecutionId(id), Attempt(attempt));
        Record::Start {
            execution_id,
            attempt,
            action_id: ACTION,
            t_ns,
        }
    }

    fn end(id: i64, attempt: i32, t_ns: i64) -> Record {
        let status = Some(Status::Succeeded);
        let (execution_id, attempt) = (ExecutionId(id), Attempt(attempt));
        Record::End {
            execution_id,
            attempt,
            action_id: ACTION,
            status,
            t_ns,
        }
    }

    fn told(id: i64, t_ns: i64) -> Record {
        let request_id = RequestId(Uuid::nil());
        Record::SubmitOk {
            request_id,
            execution_id: ExecutionId(id),
            t_ns,
        }
    }

    #[test]
    fn starts_meet_their_ends_in_whatever_order_they_come() {
        let records = [
            end(256, 2, 50),
            start(256, 1, 10),
            told(256, 7),
            start(512, 1, 20),
            start(256, 2, 40),
            told(256, 5),
            end(512, 1, 30),
            Record::Unknown,
        ];
        let runs = Runs::of(records);
        let first = Interval {
            accepted_ns: Some(5),
            ..Interval::new(ExecutionId(256), 10, None)
        };
        let again = Interval {
            attempt: Attempt(2),
            start_ns: 40,
            end_ns: Some(50),
            ..first
        };
        let other = Interval::new(ExecutionId(512), 20, Some(30));
        assert_eq!(
            runs.by_action,
            BTreeMap::from([(ACTION, vec![first, again, other])])
        );
        assert_eq!(runs.orphan_ends, 0);
    }

    #[test]
    fn faults_stay_visible() {
        let runs = Runs::of([
            start(256, 1, 10),
            start(256, 1, 11),
            end(256, 1, 20),
            end(512, 1, 30),
        ]);
        let intervals = &runs.by_action[&ACTION];
        assert_eq!(
            intervals.len(),
            2,
            "a second start of an attempt is a second run"
        );
        assert_eq!((intervals[0].end_ns, intervals[1].end_ns), (Some(20), None));
        assert_eq!(runs.orphan_ends, 1);
        // An action of which only an end is known has no runs.
        assert_eq!(Runs::of([end(512, 1, 30)]).by_action, BTreeMap::new());
    }

    #[test]
    fn a_folder_of_several_processes_is_one_history() {
        let dir = tempfile::tempdir().unwrap();
        let client = Recorder::create(dir.path(), "client").unwrap();
        let worker = Recorder::create(dir.path(), "worker").unwrap();
        worker.record(start(256, 1, 10));
        client.record(told(256, 4));
        worker.record(end(256, 1, 12));
        drop((client, worker));
        let expected = Interval {
            accepted_ns: Some(4),
            ..Interval::new(ExecutionId(256), 10, Some(12))
        };
        assert_eq!(
            Runs::read(dir.path()).unwrap().by_action[&ACTION],
            [expected]
        );
        assert!(Runs::read(Path::new("/nowhere/at/all")).is_err());
    }
}
