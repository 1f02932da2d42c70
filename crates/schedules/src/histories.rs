//! The recorder of histories: recording, flushing and ending.

use attune_core::{ActionId, Attempt, ExecutionId};
use shuttle::thread;

use crate::record::Record;
use crate::recorder::Recorder;

fn start(id: i64) -> Record {
    Record::Start {
        execution_id: ExecutionId(id),
        attempt: Attempt(1),
        action_id: ActionId(1),
        t_ns: 1,
    }
}

/// A flush returns, and then what was recorded before is in the file; the end writes the rest.
pub fn a_flush_and_the_end_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path(), "worker").unwrap();
    let path = recorder.path().to_owned();
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap().lines().count();
    let other = thread::spawn({
        let recorder = recorder.clone();
        move || {
            recorder.record(start(1));
            recorder.flush().unwrap();
            assert!(lines(recorder.path()) >= 1);
            recorder.record(start(2));
        }
    });
    recorder.record(start(3));
    recorder.flush().unwrap();
    assert!(lines(&path) >= 1);
    drop(recorder);
    other.join().unwrap();
    assert_eq!(lines(&path), 3);
}
