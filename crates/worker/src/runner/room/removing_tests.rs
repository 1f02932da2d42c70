//! Tests of removing what programs leave.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, renameat_with};

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn close(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
}

/// A folder with a file, which nobody may touch.
struct Victim(tempfile::TempDir);

impl Victim {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        // A mode that a removal would have to change.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o500)).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    #[track_caller]
    fn check_untouched(&self) {
        assert_eq!(fs::read_to_string(self.path().join("file")).unwrap(), "x");
        assert_eq!(mode(self.path()), 0o500);
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Else it could not be removed.
        let _ = fs::set_permissions(self.path(), Permissions::from_mode(0o700));
    }
}

#[track_caller]
fn check_removed(root: &Path) {
    let parent = File::open(root.parent().unwrap()).unwrap();
    let name = CString::new(root.file_name().unwrap().as_bytes()).unwrap();
    let folder = File::open(root).unwrap();
    // The second time it is gone already.
    for _ in 0..2 {
        remove(parent.as_fd(), &name, folder.as_fd()).unwrap();
        assert!(!root.exists());
    }
}

#[test]
fn closed_folders_are_opened() {
    let work_dir = tempfile::tempdir().unwrap();
    let root = work_dir.path().join("room");
    let inner = root.join("a/b");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("file"), "x").unwrap();
    fs::write(root.join("a/file"), "x").unwrap();
    let folder = File::open(&root).unwrap();
    for path in [&inner, &root.join("a"), &root] {
        close(path);
    }
    // Whoever may do everything is not kept out: look at what was opened.
    open_up(folder.as_fd()).unwrap();
    let a = hold(folder.as_fd(), c"a").unwrap().unwrap();
    open_up(a.as_fd()).unwrap();
    let b = hold(a.as_fd(), c"b").unwrap().unwrap();
    open_up(b.as_fd()).unwrap();
    for path in [&inner, &root.join("a"), &root] {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    for path in [&inner, &root.join("a")] {
        close(path);
    }
    check_removed(&root);
}

/// Folders in folders, deeper than a path can be long and than a stack or the bound on open files
/// would bear, and names that are in the way.
#[test]
fn a_room_goes_away_however_deep_it_is() {
    let work_dir = tempfile::tempdir().unwrap();
    let root = work_dir.path().join("room");
    fs::create_dir_all(root.join("wide/1")).unwrap();
    fs::create_dir_all(root.join("wide/2/1")).unwrap();
    fs::write(root.join("wide/2/file"), "x").unwrap();
    fs::create_dir(root.join("deep")).unwrap();
    // From the inside out, since no path reaches so deep.
    let (deep, next) = (root.join("deep/d"), work_dir.path().join("next"));
    for _ in 0..5_000 {
        fs::create_dir(&next).unwrap();
        fs::write(next.join("file"), "x").unwrap();
        if deep.exists() {
            fs::rename(&deep, next.join("d")).unwrap();
            close(&next.join("d"));
        }
        fs::rename(&next, &deep).unwrap();
    }
    check_removed(&root);
}

/// Moving a folder up may need a block, which the files below have.
#[test]
#[ignore = "fills the disk at ATTUNE_TEST_FULL_DISK, a small ext4 without reserved blocks"]
fn a_room_that_has_filled_the_disk_goes_away() {
    let disk = std::env::var_os("ATTUNE_TEST_FULL_DISK").unwrap();
    let root = Path::new(&disk).join("room");
    for number in 0..400 {
        fs::create_dir_all(root.join(format!("many/{number}/with-a-name-of-some-length"))).unwrap();
    }
    let mut file = File::create(root.join("many/399/file")).unwrap();
    while io::Write::write_all(&mut file, &[0; 512]).is_ok() {}
    check_removed(&root);
}

#[test]
fn what_cannot_move_goes_where_it_is() {
    let work_dir = tempfile::tempdir().unwrap();
    let root = work_dir.path();
    for path in ["1/2/3/4", "1/empty", "a"] {
        fs::create_dir_all(root.join(path)).unwrap();
        fs::write(root.join(path).join("file"), "x").unwrap();
    }
    fs::remove_file(root.join("1/empty/file")).unwrap();
    let folder = File::open(root).unwrap();
    let emptying = Emptying::new(folder.as_fd(), LONGEST);
    assert!(emptying.thin(folder.as_fd(), 2).unwrap());
    assert!(!root.join("a").exists() && !root.join("1/empty").exists());
    assert!(
        root.join("1/2/3/4/file").exists(),
        "deeper than was asked for"
    );
    assert!(
        !emptying.thin(folder.as_fd(), 2).unwrap(),
        "nothing goes any more"
    );
    assert!(emptying.thin(folder.as_fd(), 4).unwrap());
    assert!(!root.join("1").exists());
}

#[test]
fn a_removal_that_takes_too_long_ends() {
    let work_dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(work_dir.path().join("a/b")).unwrap();
    let folder = File::open(work_dir.path()).unwrap();
    let error = empty(folder.as_fd(), Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    empty(folder.as_fd(), LONGEST).unwrap();
}

#[test]
fn a_room_goes_away_however_much_is_in_it() {
    let work_dir = tempfile::tempdir().unwrap();
    let root = work_dir.path().join("room");
    fs::create_dir_all(root.join("many")).unwrap();
    for number in 0..3_000 {
        fs::write(root.join(number.to_string()), "x").unwrap();
        fs::create_dir_all(root.join(format!("many/{number}/in"))).unwrap();
    }
    check_removed(&root);
}

/// As a listing gives it, and as it is after that.
#[test]
fn a_link_in_the_place_of_a_folder_is_not_followed() {
    let (work_dir, victim) = (tempfile::tempdir().unwrap(), Victim::new());
    let root = work_dir.path().join("room");
    fs::create_dir_all(root.join("a/b")).unwrap();
    let folder = File::open(&root).unwrap();
    let listed = entries(folder.as_fd()).unwrap().next().unwrap().unwrap();
    assert_eq!(listed.file_type(), FileType::Directory);
    fs::rename(root.join("a"), root.join("was-a")).unwrap();
    symlink(victim.path(), root.join("a")).unwrap();
    symlink(victim.path(), root.join("was-a/link")).unwrap();
    assert!(hold(folder.as_fd(), c"a").unwrap().is_none());
    let mut emptying = Emptying::new(folder.as_fd(), LONGEST);
    assert!(is_folder(folder.as_fd(), &listed).unwrap());
    assert!(!emptying.dissolve(listed.file_name()).unwrap());
    assert!(!root.join("a").is_symlink());
    check_removed(&root);
    victim.check_untouched();
}

#[test]
fn what_is_mounted_is_not_entered() {
    let root = File::open("/").unwrap();
    let refused = hold(root.as_fd(), c"proc").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
}

/// What escaped its group goes on exchanging a folder for a link.
#[test]
fn nothing_outside_is_touched_while_names_change() {
    let (work_dir, victim) = (tempfile::tempdir().unwrap(), Victim::new());
    let parent = File::open(work_dir.path()).unwrap();
    for _ in 0..50 {
        let root = work_dir.path().join("room");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        for place in [&root, &root.join("a")] {
            symlink(victim.path(), place.join("link")).unwrap();
        }
        let folder = File::open(&root).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for (one, other) in [(c"a", c"link"), (c"a/b", c"a/link")] {
                        let flags = RenameFlags::EXCHANGE;
                        let _ = renameat_with(&folder, one, &folder, other, flags);
                    }
                }
            });
            // It may well fail; then the rest goes when the names rest.
            let _ = remove(parent.as_fd(), c"room", folder.as_fd());
            over.store(true, Ordering::Relaxed);
        });
        if root.exists() {
            check_removed(&root);
        }
        victim.check_untouched();
    }
}

#[test]
fn what_has_the_name_now_stays_and_is_told() {
    let work_dir = tempfile::tempdir().unwrap();
    let parent = File::open(work_dir.path()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let root = work_dir.path().join("room");
    let tell = |to: &Path, other: bool| {
        fs::create_dir(&root).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        let folder = File::open(&root).unwrap();
        fs::rename(&root, to).unwrap();
        if other {
            fs::create_dir(&root).unwrap();
            fs::write(root.join("file"), "x").unwrap();
        }
        let told = remove(parent.as_fd(), c"room", folder.as_fd());
        if other {
            assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "x");
            fs::remove_dir_all(&root).unwrap();
        }
        told.map_err(|error| error.to_string())
    };
    let near = work_dir.path().join("room.x");
    assert_eq!(tell(&near, false), Ok(()));
    assert!(!near.exists());
    let told = tell(&near, true).unwrap_err();
    assert!(told.starts_with("it is gone, but"), "{told}");
    assert!(!near.exists());
    // The same file system, but another folder.
    for (far, other) in [("1", false), ("2", true)] {
        let far = elsewhere.path().join(far);
        let told = tell(&far, other).unwrap_err();
        assert!(told.starts_with("it was emptied, but"), "{told}");
        assert_eq!(fs::read_dir(&far).unwrap().count(), 0);
    }
}
