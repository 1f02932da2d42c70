use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;

fn key(id: i64) -> Key {
    (ExecutionId(id), Attempt(1))
}

/// A file whose process was killed.
fn left(dir: &TempDir, life: WorkerId, begun: &[Key]) -> PathBuf {
    let mut map = BegunMap::make(dir.path(), life, &Guard::none()).unwrap();
    map.begin(begun, |_| true).unwrap();
    // As the kernel does it: the lock goes, and the file stays.
    let kept = map.path.with_extension("kept");
    fs::hard_link(&map.path, &kept).unwrap();
    let path = map.path.clone();
    drop(map);
    fs::rename(&kept, &path).unwrap();
    path
}

fn begun(dir: &TempDir) -> Vec<(WorkerId, Option<BTreeSet<Key>>)> {
    let former = former(dir.path()).unwrap();
    let begun = former.into_iter().map(|it| {
        let begun = it.begun.map(|keys| keys.into_iter().collect());
        (it.worker, begun)
    });
    begun.collect()
}

#[test]
fn only_a_file_that_was_marked_says_what_has_begun() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(begun(&dir), [], "there is no folder");
    let life = WorkerId::fresh();
    let path = left(
        &dir,
        life,
        &[key(1), key(i64::MAX), (ExecutionId(1), Attempt(i32::MAX))],
    );
    assert_eq!(begun(&dir), [], "something of it may be left");
    mark(&path).unwrap();
    let expected = [key(1), key(i64::MAX), (ExecutionId(1), Attempt(i32::MAX))];
    let expected = [(life, Some(BTreeSet::from(expected)))];
    assert_eq!(begun(&dir), expected);
    // One that goes on, and one that went away by itself.
    let _alive = BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none()).unwrap();
    drop(BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none()).unwrap());
    assert_eq!(begun(&dir), expected);
}

#[test]
fn of_another_boot_nothing_is_left_and_nobody_knows_what_had_begun() {
    let dir = tempfile::tempdir().unwrap();
    let life = WorkerId::fresh();
    let path = left(&dir, life, &[key(1)]);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 16], BOOT.start as u64).unwrap();
    let said: &[_] = match host() {
        Some(_) => &[(life, None)],
        None => &[],
    };
    assert_eq!(begun(&dir), said);
    // Two hosts share the folder: that one may go on.
    file.write_all_at(&[0xA5; 16], HOST.start as u64).unwrap();
    assert_eq!(begun(&dir), []);
}

#[test]
fn what_is_no_file_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let life = WorkerId::fresh();
    let path = left(&dir, life, &[key(1)]);
    mark(&path).unwrap();
    let beside = |name: Uuid| path.with_file_name(name.to_string());
    fs::create_dir(beside(Uuid::from_u128(1))).unwrap();
    let pipe = beside(Uuid::from_u128(2));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    symlink(&path, beside(Uuid::from_u128(3))).unwrap();
    assert_eq!(begun(&dir).len(), 1);
    assert!(mark(&pipe).is_err());
}

/// It would be told of at every look, for ever.
#[test]
fn nothing_is_said_of_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = left(&dir, WorkerId::fresh(), &[]);
    symlink(&path, path.with_file_name(Uuid::from_u128(3).to_string())).unwrap();
    let said = CountedLines::default();
    tracing::subscriber::with_default(said.clone(), || assert_eq!(begun(&dir), []));
    assert_eq!(said.0.load(Ordering::Relaxed), 0);
}

/// Counts what is written to the log.
#[derive(Clone, Default)]
struct CountedLines(Arc<AtomicUsize>);

impl tracing::Subscriber for CountedLines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// How much this thread has read, in bytes.
fn bytes_read() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
    let read = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().parse().unwrap()
}

#[test]
fn of_a_file_no_more_is_read_than_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let life = WorkerId::fresh();
    // Somebody else's, one that goes on, and one that was marked and is longer than any of ours.
    let path = left(&dir, life, &[key(1)]);
    mark(&path).unwrap();
    let alive = BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none()).unwrap();
    let foreign = path.with_file_name(Uuid::from_u128(1).to_string());
    for path in [&foreign, &path, &alive.path] {
        let mut made = OpenOptions::new();
        let file = made.create(true).truncate(false).write(true).open(path);
        file.unwrap().set_len(1 << 30).unwrap();
    }
    let before = bytes_read();
    assert_eq!(begun(&dir), [(life, None)]);
    let read = bytes_read() - before;
    assert!(read < 100_000, "{read} bytes were read");
    // It is no file of ours, however long it lies there.
    make_old(&foreign);
    assert_eq!(begun(&dir), [(life, None)]);
    assert!(foreign.exists());
}

#[test]
fn a_file_grows_no_longer_than_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let life = WorkerId::fresh();
    let mut map = BegunMap::make(dir.path(), life, &Guard::none()).unwrap();
    let count = MAX_CAPACITY as i64;
    let keys: Vec<Key> = (1..=count).map(key).collect();
    map.begin(&keys, |_| true).unwrap();
    assert!(map.begin(&[key(count + 1)], |_| true).is_err());
    assert_eq!(map.file.metadata().unwrap().len(), MAX_LENGTH);
    map.let_go();
    mark(map.path()).unwrap();
    let said = begun(&dir).remove(0).1.unwrap();
    assert_eq!(said, keys.into_iter().collect());
}

#[test]
fn what_is_not_whole_is_not_believed() {
    for at in [HEADER, HEADER + 8, HEADER + 12, HEADER + RECORD] {
        let dir = tempfile::tempdir().unwrap();
        let life = WorkerId::fresh();
        let path = left(&dir, life, &[key(1 << 40)]);
        mark(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0xA5], at as u64).unwrap();
        assert_eq!(begun(&dir), [(life, None)], "a wrong byte at {at}");
    }
    let dir = tempfile::tempdir().unwrap();
    let life = WorkerId::fresh();
    let path = left(&dir, life, &[key(1), key(2)]);
    mark(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((HEADER + RECORD) as u64).unwrap();
    assert_eq!(begun(&dir), [(life, None)], "it has lost its end");
    let dir = tempfile::tempdir().unwrap();
    let path = left(&dir, WorkerId::fresh(), &[]);
    fs::write(&path, b"something else").unwrap();
    fs::write(path.with_file_name("a name"), b"").unwrap();
    assert_eq!(begun(&dir), []);
}

/// Those that are held are never overwritten, whatever comes and goes beside them.
#[test]
fn a_file_is_as_long_as_what_is_held_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none()).unwrap();
    let mut held = BTreeSet::new();
    let (mut id, mut most) = (0, 0);
    for turn in 0..3_000_usize {
        // Few and many at once, while many and few are held, of which some stay for long.
        let count = [1, 7, 300, 1_500][turn % 4];
        let keys: Vec<Key> = (0..count).map(|n| key(id + n + 1)).collect();
        id += count;
        held.extend(keys.iter().copied());
        map.begin(&keys, |key| held.contains(key)).unwrap();
        most = held.len().max(most);
        held.retain(|(ExecutionId(id), _)| id % 97 == 0 && *id > turn as i64 * 100);
    }
    let last: Vec<Key> = (0..300).map(|n| key(id + n + 1)).collect();
    held.extend(last.iter().copied());
    map.begin(&last, |key| held.contains(key)).unwrap();
    assert!(map.capacity <= 4 * most, "{} for {most}", map.capacity);
    map.let_go();
    mark(&map.path).unwrap();
    let said = begun(&dir).remove(0).1.unwrap();
    assert!(
        held.is_subset(&said),
        "{} are missing",
        held.difference(&said).count()
    );
    assert!(said.len() <= map.capacity);
}

#[test]
fn a_folder_that_others_can_enter_is_not_used() {
    for (name, spoil) in [
        (
            "open",
            (|folder| fs::set_permissions(folder, fs::Permissions::from_mode(0o755)))
                as fn(&Path) -> _,
        ),
        ("a link", |folder| {
            fs::rename(folder, folder.with_extension("moved"))?;
            symlink(folder.with_extension("moved"), folder)
        }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = left(&dir, WorkerId::fresh(), &[]);
        mark(&path).unwrap();
        assert_eq!(begun(&dir).len(), 1);
        spoil(&folder_in(dir.path())).unwrap();
        assert_eq!(begun(&dir), [], "{name}");
        let made = BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none());
        let words = made.map(|_| ()).unwrap_err().to_string();
        assert!(
            words.contains("must belong to this user alone"),
            "{name}: {words}"
        );
    }
}

#[test]
fn what_was_left_for_a_day_is_removed_unless_its_process_lives() {
    let dir = tempfile::tempdir().unwrap();
    let alive = BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none()).unwrap();
    let (old, new) = (
        left(&dir, WorkerId::fresh(), &[]),
        left(&dir, WorkerId::fresh(), &[]),
    );
    for path in [&old, &alive.path] {
        make_old(path);
    }
    assert_eq!(begun(&dir), []);
    let there = [&old, &new, &alive.path].map(|path| path.exists());
    assert_eq!(there, [false, true, true]);
}

/// As if nobody had written to it for more than a day.
fn make_old(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let long_ago = std::time::SystemTime::now() - LEFT_FOR - Duration::from_secs(60);
    file.set_modified(long_ago).unwrap();
}

#[test]
fn so_is_one_of_another_version_and_one_that_was_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let first = left(&dir, WorkerId::fresh(), &[]);
    let whole = fs::read(&first).unwrap();
    let of_version = |version: u8| {
        let mut bytes = whole.clone();
        bytes[MAGIC.len() - 1] = version;
        bytes
    };
    let make = |bytes: &[u8]| {
        let path = first.with_file_name(Uuid::now_v7().to_string());
        fs::write(&path, bytes).unwrap();
        path
    };
    let (older, newer) = (of_version(b'2'), of_version(b'4'));
    let zeros = vec![0; whole.len()];
    let ours = [
        &whole[..0],
        &whole[..3],
        &whole[..HEADER - 1],
        &older,
        &newer,
        &zeros,
    ];
    let mut of_another_host = older.clone();
    of_another_host[BOOT].fill(0xA5);
    of_another_host[HOST].fill(0xA5);
    let others: [&[u8]; 3] = [b"attics and cellars", &[7; 5000], &of_another_host];
    let is_there = |path: &PathBuf| path.exists();
    let (left, kept) = (ours.map(make), others.map(make));
    assert_eq!(begun(&dir), []);
    assert!(left.iter().all(is_there), "they may still be written");
    for path in left.iter().chain(&kept) {
        make_old(path);
    }
    let lives = File::open(&left[3]).unwrap();
    lives.try_lock().unwrap();
    assert_eq!(begun(&dir), []);
    let there = left.each_ref().map(is_there);
    assert_eq!(there, [false, false, false, true, false, false]);
    assert!(kept.iter().all(is_there), "they are somebody else's");
    drop(lives);
    assert_eq!(begun(&dir), []);
    assert!(!left[3].exists(), "its process has ended");
}

/// A worker that has closed the pipe to a guard that does not read is not gone.
#[test]
fn nobody_takes_a_process_that_lives_for_gone() {
    let dir = tempfile::tempdir().unwrap();
    let map = BegunMap::make(dir.path(), WorkerId::fresh(), &Guard::none()).unwrap();
    assert!(mark(&map.path).is_err());
    // Nor does it help that somebody has marked it all the same.
    map.file.write_all_at(&[1], MARK as u64).unwrap();
    assert_eq!(begun(&dir), []);
    map.let_go();
    assert_eq!(begun(&dir).len(), 1);
}

/// As a restore of the folder does it while its worker runs.
#[test]
fn a_copy_in_the_place_of_the_file_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let life = WorkerId::fresh();
    let mut map = BegunMap::make(dir.path(), life, &Guard::none()).unwrap();
    map.begin(&[key(1)], |_| true).unwrap();
    let copy = dir.path().join("copy");
    fs::copy(map.path(), &copy).unwrap();
    // What begins from here on is not in the copy.
    map.begin(&[key(2)], |_| true).unwrap();
    fs::rename(&copy, map.path()).unwrap();
    map.let_go();
    let error = mark(map.path()).unwrap_err();
    assert!(error.to_string().contains("copy"), "{error}");
    assert_eq!(former(dir.path()).unwrap(), []);
    // Also one that was marked before it was copied.
    let file = OpenOptions::new().write(true).open(map.path()).unwrap();
    file.write_all_at(&[1], MARK as u64).unwrap();
    assert_eq!(former(dir.path()).unwrap(), []);
}
