//! Which grants of a life have begun, in a file that outlives its process.
//!
//! A grant is written down before it begins. So when the process is gone, whoever finds the file knows
//! what may have begun, and that everything else never did. Nothing is flushed to the disk: what the
//! kernel was given outlives the process. It does not outlive the host, so a file of another boot of the same
//! host says only that nothing of its life is left; one of another host says nothing.
//!
//! That a process is gone says nothing of what it ran. Its [guard](crate::guard) marks the file when
//! it has killed all of that, and without its mark the file counts for nothing. Where the guard was
//! killed too, as systemd does it, whoever comes next in the same service does what is left to do.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_dispatch::Key;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use uuid::Uuid;

use crate::guard::{self, Guard};
use crate::lease::Life;
use crate::options::WorkerOptions;

/// The first bytes of a file, and the version of what follows.
const MAGIC: [u8; 8] = *b"attlife3";
/// What the first bytes have in common in all versions.
const FAMILY: &[u8] = b"attlife";
/// Where the id of the boot stands.
const BOOT: std::ops::Range<usize> = 8..24;
/// Where the guard writes its mark.
const MARK: usize = 24;
/// Where it stands what all programs of the worker carry.
const CARRIED: std::ops::Range<usize> = 32..48;
/// Where the namespace of the worker's cgroup stands, and the length of its path; zero without one.
const NAMESPACE: std::ops::Range<usize> = 48..56;
const LENGTH: std::ops::Range<usize> = 56..58;
/// Where the id of the host stands; zero where it has none.
const HOST: std::ops::Range<usize> = 64..80;
/// Where the file says which file it is: a copy of it that was put in its place, as backups do it, knows nothing
/// of what began since.
const OWN: std::ops::Range<usize> = 80..96;
/// Where the path begins.
const PATH: usize = 96;
/// In front of the first record, in bytes.
const HEADER: usize = PATH + MAX_PATH;
/// An id, an attempt, and what shows that both are whole, in bytes.
const RECORD: usize = 16;
/// How many records a file has room for at first.
const FIRST_CAPACITY: usize = 1024;
/// How many it has room for at most, a hundred times as many as a worker has slots.
const MAX_CAPACITY: usize = 1 << 20;
/// The longest file, in bytes.
const MAX_LENGTH: u64 = (HEADER + MAX_CAPACITY * RECORD) as u64;
/// How many records are written by one call at most.
const AT_ONCE: usize = 256;
/// The longest path, in bytes: a guard is told it in one line.
const MAX_PATH: usize = 1024;
/// How long the kernel may take to let go of what a process held that has ended.
const LETTING_GO: Duration = Duration::from_secs(1);
/// How long a file lies there that nobody has marked and nobody holds: its guard was killed too.
const LEFT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The file of one life. It goes away with this value; a process that is killed leaves it.
#[derive(Debug)]
pub(crate) struct BegunMap {
    path: PathBuf,
    /// Locked: its process lives.
    file: File,
    /// What stands in each place.
    records: Vec<Key>,
    /// How many places there are.
    capacity: usize,
    /// Where the next free one is looked for.
    next: usize,
}

impl BegunMap {
    /// Makes the file of a life in the folder of this user below `state_dir`, which is made where
    /// it is missing. Blocks.
    ///
    /// # Errors
    /// When it cannot be made, or the folder is not this user's alone.
    pub(crate) fn make(state_dir: &Path, life: WorkerId, guard: &Guard) -> io::Result<Self> {
        fs::create_dir_all(state_dir)?;
        let folder = std::path::absolute(folder_in(state_dir))?;
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !is_own(&folder)? {
            return Err(io::Error::other(format!(
                "the folder {} must belong to this user alone",
                folder.display()
            )));
        }
        let path = folder.join(life.to_string());
        if path.as_os_str().len() > MAX_PATH {
            return Err(io::Error::other("the path of the folder is too long"));
        }
        let mut new = OpenOptions::new();
        let file = new.write(true).create_new(true).mode(0o600).open(&path)?;
        let map = Self {
            path,
            file,
            records: Vec::new(),
            capacity: FIRST_CAPACITY,
            next: 0,
        };
        map.file.try_lock().map_err(io::Error::other)?;
        map.file.write_all_at(&header(guard, &map.file)?, 0)?;
        map.make_room()?;
        Ok(map)
    }

    /// Gives the file room for all of its places, so that one that has lost its end is known by its length.
    fn make_room(&self) -> io::Result<()> {
        self.file.set_len((HEADER + self.capacity * RECORD) as u64)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// As the kernel does it when the process ends.
    #[cfg(test)]
    pub(crate) fn let_go(&self) {
        self.file.unlock().unwrap();
    }

    /// Writes down that these are about to begin. `is_held` says of others whether they are still
    /// held; the records of those that are not may be overwritten: nobody asks for them again.
    ///
    /// # Errors
    /// When it cannot be written, or more is held than a file has room for. Then the file must not be believed
    /// any more.
    pub(crate) fn begin(&mut self, keys: &[Key], is_held: impl Fn(&Key) -> bool) -> io::Result<()> {
        let mut written = 0;
        while written < keys.len() {
            let capacity = self.capacity;
            let first = self.next_free(&is_held)?;
            if self.capacity > capacity {
                self.make_room()?;
            }
            let mut end = first;
            // One call for neighbours costs as much as one for each of them.
            while written < keys.len() && end - first < AT_ONCE {
                match self.records.get_mut(end) {
                    None if end < self.capacity => self.records.push(keys[written]),
                    Some(record) if !is_held(record) => *record = keys[written],
                    _ => break,
                }
                (written, end) = (written + 1, end + 1);
            }
            self.next = end;
            let bytes: Vec<u8> = self.records[first..end]
                .iter()
                .copied()
                .flat_map(record)
                .collect();
            let at = HEADER + first * RECORD;
            self.file.write_all_at(&bytes, at as u64)?;
        }
        Ok(())
    }

    /// The next place round the file whose record nobody needs. Where more than half are needed the file grows, so
    /// that there is one and it is found soon.
    fn next_free(&mut self, is_held: impl Fn(&Key) -> bool) -> io::Result<usize> {
        let mut passed = 0;
        loop {
            if self.next >= self.capacity {
                self.next = 0;
            }
            match self.records.get(self.next) {
                Some(record) if is_held(record) => self.next += 1,
                _ => return Ok(self.next),
            }
            passed += 1;
            if passed > self.capacity / 2 {
                if self.capacity >= MAX_CAPACITY {
                    return Err(io::Error::other("more is held than a file has room for"));
                }
                self.capacity *= 2;
                self.next = self.records.len();
                return Ok(self.next);
            }
        }
    }
}

impl Drop for BegunMap {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the file of what a worker has begun stays");
        }
    }
}

/// The file of a life, known to its guard. None where that cannot be: then the slots of a worker that was
/// killed come back with the end of its lease. Blocks.
pub(crate) fn note_of(options: &WorkerOptions, guard: &Guard, life: &Life) -> Option<BegunMap> {
    if !guard.is_wanted() {
        return None;
    }
    match BegunMap::make(&options.state_dir, life.worker(), guard) {
        Ok(map) => {
            guard.begun(life.worker(), Some(map.path.clone()));
            Some(map)
        }
        Err(error) => {
            let path = options.state_dir.display();
            tracing::warn!(
                %path,
                %error,
                "worker.state_dir: what begins is not written down; should this worker be killed, \
                 its slots come back with the end of its lease"
            );
            None
        }
    }
}

/// The life of a worker whose process is gone, with everything that it ran.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Former {
    pub(crate) worker: WorkerId,
    pub(crate) path: PathBuf,
    /// Which grants have begun, and perhaps others that were settled; `None` when nobody knows.
    pub(crate) begun: Option<Vec<Key>>,
}

/// The lives below `state_dir` of which nothing is left. Blocks.
///
/// # Errors
/// When the folder cannot be read. One that is missing, or somebody else's, has nothing in it.
pub(crate) fn former(state_dir: &Path) -> io::Result<Vec<Former>> {
    let folder = folder_in(state_dir);
    match is_own(&folder) {
        Ok(true) => {}
        Ok(false) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let boot = boot()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(worker) = name.to_str().and_then(|name| name.parse::<Uuid>().ok()) else {
            continue;
        };
        // A link, or whatever else stands there, is not ours: opening it would fail at every look.
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.path();
        match read(&path, boot) {
            Ok(Some(begun)) => found.push(Former {
                worker: WorkerId(worker),
                path,
                begun,
            }),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "what a worker has begun cannot be read");
            }
        }
    }
    Ok(found)
}

/// Marks the file of a life: nothing of it is left. Waits a moment for the kernel to let go of what the
/// process held. Blocks.
///
/// # Errors
/// When it cannot be written, the process lives (it may only have closed the pipe to its guard), or a copy is in
/// the place of its file.
pub(crate) fn mark(path: &Path) -> io::Result<()> {
    let file = open(path, OpenOptions::new().read(true).write(true))?;
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    if header[OWN] != own(&file)? {
        return Err(io::Error::other("a copy was put in the place of the file"));
    }
    let began = Instant::now();
    while let Err(error) = file.try_lock() {
        if began.elapsed() > LETTING_GO {
            return Err(error.into());
        }
        std::thread::sleep(LETTING_GO / 100);
    }
    file.write_all_at(&[1], MARK as u64)
}

/// What a file says of its life; nothing while something of it may be left.
fn read(path: &Path, boot: Uuid) -> io::Result<Option<Option<Vec<Key>>>> {
    let file = open(path, OpenOptions::new().read(true))?;
    // No more than that: what stands there under the name of a life may be anything, and of any length.
    let mut header = Vec::with_capacity(HEADER);
    (&file).take(HEADER as u64).read_to_end(&mut header)?;
    if header.len() < HEADER || header[..MAGIC.len()] != MAGIC {
        // Of another version, or shorter: it is being made, or was when its process ended, which then had run
        // nothing. The age comes first: who makes a file is the one to lock it.
        if may_be_ours(&header, boot, &file)? && is_left(&file)? && file.try_lock().is_ok() {
            fs::remove_file(path)?;
        }
        return Ok(None);
    }
    if header[BOOT] != *boot.as_bytes() {
        // Folders may be shared by hosts, and the process of another one may live.
        return Ok(is_of_this_host(&header).then_some(None));
    }
    // Its process lives, whatever its guard has taken it for.
    if file.try_lock().is_err() {
        return Ok(None);
    }
    let is_copy = header[OWN] != own(&file)?;
    if is_copy || header[MARK] == 0 {
        // Of a life whose file is somewhere else nothing is to be ended here.
        let cgroup = cgroup_in(&header)?.filter(|_| !is_copy);
        let in_its_place = cgroup.is_some_and(|cgroup| {
            let carried = &header[CARRIED];
            Uuid::from_slice(carried).is_ok_and(|mark| guard::ends_in_its_place(mark, &cgroup))
        });
        if !in_its_place {
            if is_left(&file)? {
                fs::remove_file(path)?;
            }
            return Ok(None);
        }
        // Should the store be away now, nobody has to do it again.
        file.unlock()?;
        mark(path)?;
    }
    let mut records = Vec::new();
    // One that is longer is not whole.
    if file.metadata()?.len() <= MAX_LENGTH {
        file.take(MAX_LENGTH).read_to_end(&mut records)?;
    }
    Ok(Some(keys(&records)))
}

/// Whether a file that does not begin as it should is one of ours, of a life of this host: of another version,
/// which has the boot and the host at the same places, or cut short. What a host had not yet put on its disk when
/// it went down is missing there, or zeros.
fn may_be_ours(header: &[u8], boot: Uuid, file: &File) -> io::Result<bool> {
    let begins = header.iter().take(FAMILY.len());
    let is_named = begins.eq(FAMILY.iter().take(header.len()));
    let is_whole = header.len() == HEADER;
    let is_ours = header.iter().all(|byte| *byte == 0)
        || is_named && (!is_whole || header[BOOT] == *boot.as_bytes() || is_of_this_host(header));
    Ok(is_ours && file.metadata()?.len() <= MAX_LENGTH)
}

/// Whether a file was made on this host, in whichever boot of it.
fn is_of_this_host(header: &[u8]) -> bool {
    host().is_some_and(|host| header[HOST] == *host.as_bytes())
}

/// Whether nobody has written to a file for so long that nobody will come for it any more.
fn is_left(file: &File) -> io::Result<bool> {
    let age = file.metadata()?.modified()?.elapsed();
    Ok(age.is_ok_and(|age| age > LEFT_FOR))
}

/// What stands in front of the records.
fn header(guard: &Guard, file: &File) -> io::Result<[u8; HEADER]> {
    let mut header = [0; HEADER];
    header[OWN].copy_from_slice(&own(file)?);
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    header[BOOT].copy_from_slice(boot()?.as_bytes());
    header[CARRIED].copy_from_slice(guard.carried().as_bytes());
    if let Some(host) = host() {
        header[HOST].copy_from_slice(host.as_bytes());
    }
    let cgroup = guard.cgroup().map(|path| path.as_os_str().as_bytes());
    if let Some(path) = cgroup.filter(|path| path.len() <= MAX_PATH) {
        let length = u16::try_from(path.len()).unwrap_or(0);
        header[NAMESPACE].copy_from_slice(&namespace()?.to_le_bytes());
        header[LENGTH].copy_from_slice(&length.to_le_bytes());
        header[PATH..PATH + path.len()].copy_from_slice(path);
    }
    Ok(header)
}

/// Which file it is: its device and its number there.
fn own(file: &File) -> io::Result<[u8; 16]> {
    let metadata = file.metadata()?;
    let mut own = [0; 16];
    own[..8].copy_from_slice(&metadata.dev().to_le_bytes());
    own[8..].copy_from_slice(&metadata.ino().to_le_bytes());
    Ok(own)
}

/// The cgroup of the worker, where its path means the same to this process. A namespace of the same number
/// is the same one, or the former one is gone with all that was in it.
fn cgroup_in(header: &[u8]) -> io::Result<Option<PathBuf>> {
    let bytes = header[LENGTH].try_into().map_err(io::Error::other)?;
    let length = usize::from(u16::from_le_bytes(bytes));
    if length == 0 || header[NAMESPACE] != namespace()?.to_le_bytes() {
        return Ok(None);
    }
    let path = header.get(PATH..PATH + length);
    Ok(path.map(|path| PathBuf::from(OsStr::from_bytes(path))))
}

/// The number of the namespace that the cgroups of this process are in.
fn namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/cgroup")?.ino())
}

/// The keys of all records; `None` when one of them is not whole, or the file has lost its end.
fn keys(records: &[u8]) -> Option<Vec<Key>> {
    let (records, rest) = records.as_chunks::<RECORD>();
    let doublings = records.len() / FIRST_CAPACITY;
    if records.len() % FIRST_CAPACITY != 0 || !doublings.is_power_of_two() {
        return None;
    }
    let whole = records.iter().filter(|bytes| **bytes != [0; RECORD]);
    let keys = whole.map(|bytes| {
        let key = (
            ExecutionId(i64_of(&bytes[..8])?),
            Attempt(i32_of(&bytes[8..12])?),
        );
        (record(key) == *bytes).then_some(key)
    });
    keys.collect::<Option<Vec<Key>>>()
        .filter(|_| rest.is_empty())
}

fn i64_of(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_le_bytes)
}

fn i32_of(bytes: &[u8]) -> Option<i32> {
    bytes.try_into().ok().map(i32::from_le_bytes)
}

fn record((ExecutionId(id), Attempt(attempt)): Key) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let (id, attempt) = (id.to_le_bytes(), attempt.to_le_bytes());
    bytes[..8].copy_from_slice(&id);
    bytes[8..12].copy_from_slice(&attempt);
    // Not zero for any key, so that a hole in the file is none.
    for (place, byte) in bytes[12..].iter_mut().enumerate() {
        *byte = !(id[place] ^ id[place + 4] ^ attempt[place]);
    }
    bytes
}

/// Where the lives of this user are.
fn folder_in(state_dir: &Path) -> PathBuf {
    state_dir.join(format!("attune-lives-{}", geteuid().as_raw()))
}

/// Whether a folder is this user's, and nobody else can enter it: whoever can would say of a life that
/// goes on that it is over.
fn is_own(folder: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(folder)?;
    let is_closed = found.mode() & 0o077 == 0;
    Ok(found.is_dir() && found.uid() == geteuid().as_raw() && is_closed)
}

/// Opens a file, and nothing else that may stand in its place: a pipe would be waited for, for ever.
fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = how.custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The id of the host, the same over its boots; `None` where it has none, as in most containers.
fn host() -> Option<Uuid> {
    let text = fs::read_to_string("/etc/machine-id").ok()?;
    text.trim().parse().ok().filter(|id: &Uuid| !id.is_nil())
}

/// The id of this boot of the host.
fn boot() -> io::Result<Uuid> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
#[path = "begun_tests.rs"]
mod tests;
