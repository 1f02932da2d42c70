use super::*;
use crate::now::now_ns;
use crate::read::read_dir;
use attune_core::{ActionId, Attempt, ExecutionId};

fn start(n: i64) -> Record {
    Record::Start {
        execution_id: ExecutionId(n),
        attempt: Attempt(1),
        action_id: ActionId(7),
        t_ns: now_ns(),
    }
}

#[test]
fn the_life_of_a_role_begins_and_ends_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::of_role(dir.path(), "api").unwrap();
    let other = recorder.clone();
    recorder.record(start(1));
    drop(recorder);
    other.record_phase(ProcessPhase::Stopping);
    other.flush().unwrap();
    let phases = || {
        let records = read_dir(dir.path()).unwrap().map(Result::unwrap);
        let phase = |record| match record {
            Record::Process { role, phase, .. } if role == "api" => Some(phase),
            _ => None,
        };
        records.map(phase).collect::<Vec<_>>()
    };
    let lives = [
        Some(ProcessPhase::Began),
        None,
        Some(ProcessPhase::Stopping),
    ];
    assert_eq!(phases(), lives);
    drop(other);
    assert_eq!(phases()[3..], [Some(ProcessPhase::Ended)]);
}

#[test]
fn a_file_that_takes_no_more_ends_with_a_whole_record_and_no_end_of_its_role() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api-1-a.jsonl");
    let shared = Shared::new(path.clone(), PATIENCE);
    let mut whole = 0;
    let mut file = File::create(&path).unwrap();
    append(&mut file, &[start(1)], &mut whole).unwrap();
    assert_eq!(file.metadata().unwrap().len(), whole);
    // Opened for reading, it takes nothing, as a full disk does.
    let file = File::open(&path).unwrap();
    shared.add([start(2)]);
    shared.lock().closed = true;
    write_out(&shared, file);
    assert!(shared.lock().problem.is_some());
    let inner = Inner {
        shared,
        writer: None,
        role: Some("api".to_owned()),
    };
    let shared = Arc::clone(&inner.shared);
    drop(inner);
    assert_eq!(shared.lock().waiting.len(), 0, "no end is recorded");
}

#[test]
fn everything_from_several_threads_is_in_the_file_in_each_ones_order() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path(), "worker").unwrap();
    let threads: Vec<_> = (0..4_i64)
        .map(|thread| {
            let recorder = recorder.clone();
            thread::spawn(move || {
                // More than fits in memory at once, so that the bound is met.
                for n in 0..30_000 {
                    recorder.record(start(thread * 100_000 + n));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    drop(recorder);
    let mut next = [0_i64; 4];
    for record in read_dir(dir.path()).unwrap() {
        let Record::Start {
            execution_id: ExecutionId(id),
            ..
        } = record.unwrap()
        else {
            panic!("only starts were recorded");
        };
        let thread = usize::try_from(id / 100_000).unwrap();
        assert_eq!(id % 100_000, next[thread]);
        next[thread] += 1;
    }
    assert_eq!(next, [30_000; 4]);
}

#[test]
fn a_flush_makes_records_readable_while_recording_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(&dir.path().join("new"), "client").unwrap();
    recorder.flush().unwrap();
    recorder.record(start(1));
    recorder.record(start(2));
    recorder.flush().unwrap();
    assert_eq!(
        std::fs::read_to_string(recorder.path())
            .unwrap()
            .lines()
            .count(),
        2
    );
    let name = recorder
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        name.starts_with(&format!("client-{}-", std::process::id())),
        "{name}"
    );
    recorder.record(start(3));
    let path = recorder.path().to_owned();
    drop(recorder);
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 3);
}

#[test]
fn records_reach_the_file_without_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path(), "worker").unwrap();
    recorder.record(start(1));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    let mut state = recorder.inner.shared.lock();
    while state.written == 0 {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        assert!(!left.is_zero(), "the writer never wrote");
        state = recorder
            .inner
            .shared
            .done
            .wait_timeout(state, left)
            .unwrap()
            .0;
    }
    drop(state);
    assert_eq!(
        std::fs::read_to_string(recorder.path())
            .unwrap()
            .lines()
            .count(),
        1
    );
}

#[test]
fn what_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Recorder::create(&file, "worker").unwrap_err();
    assert!(matches!(error, RecordError::Create { .. }), "{error}");

    // A file that is opened for reading refuses every write, like a full disk.
    let shared = Shared::new(file.clone(), PATIENCE);
    let for_thread = Arc::clone(&shared);
    let read_only = File::open(&file).unwrap();
    let writer = thread::spawn(move || write_out(&for_thread, read_only));
    let recorder = Recorder {
        inner: Arc::new(Inner {
            shared,
            writer: Some(writer),
            role: None,
        }),
    };
    recorder.record(start(1));
    assert!(matches!(
        recorder.flush().unwrap_err(),
        RecordError::Incomplete { .. }
    ));
}

#[test]
fn a_file_that_hangs_stops_nobody_for_longer_than_is_borne() {
    // A pipe that nobody reads takes 64 KiB, and then nothing.
    let (reader, pipe) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(pipe));
    let shared = Shared::new(PathBuf::from("pipe"), Duration::from_millis(50));
    let for_thread = Arc::clone(&shared);
    let writer = thread::spawn(move || write_out(&for_thread, file));
    let recorder = Recorder {
        inner: Arc::new(Inner {
            shared: Arc::clone(&shared),
            writer: Some(writer),
            role: Some("executor".to_owned()),
        }),
    };
    for n in 0..200_000 {
        recorder.record(start(n));
    }
    let error = recorder.flush().unwrap_err().to_string();
    assert!(error.contains("has taken nothing for 50ms"), "{error}");
    assert!(shared.lock().waiting.is_empty(), "nothing piles up");
    // Its process can end, and what it says of its end is not recorded behind the hole.
    drop(recorder);
    assert!(shared.lock().waiting.is_empty());
    drop(reader);
}

#[test]
fn the_clock_does_not_go_back() {
    let times: Vec<_> = (0..1000).map(|_| now_ns()).collect();
    assert!(times.is_sorted() && times[0] > 0);
}
