//! A copy of the file, also while a process works on it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use attune_store::StoreError;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnection;

use crate::error::from_sqlx;
use crate::options::SqliteOptions;
use crate::sql;
use crate::store::spawned;

/// Parameters and results of executions are in it.
const ONLY_OWNER: u32 = 0o600;

/// Copies the database to a new file, as it is at one moment, readable for its owner only. It reads and takes no
/// lock, so that the process that has the file goes on; what is copied is on the disk and was looked through when
/// this returns, with how many bytes it has. Until then the file has `.partial` behind its name.
///
/// # Errors
/// [`StoreError::Conflict`] when there is a file already, or it cannot be made there; otherwise as SQLite fails.
pub async fn back_up(options: &SqliteOptions, to: &Path) -> Result<u64, StoreError> {
    let (options, to) = (options.clone(), to.to_owned());
    spawned(async move {
        not_beside(&options.path, &to)?;
        let partial = made(&to)?;
        let copied = match copy(&options, &partial).await {
            Ok(()) => kept(&partial, &to),
            Err(error) => Err(error),
        };
        if copied.is_err() {
            // What it is called says already that it is none.
            std::fs::remove_file(&partial).ok();
        }
        copied
    })
    .await
}

/// What SQLite, and the store, have beside a database.
const BESIDE: [&str; 4] = ["-journal", "-wal", "-shm", ".lock"];

/// Refuses a name that would be taken for a part of the database that is copied.
fn not_beside(from: &Path, to: &Path) -> Result<(), StoreError> {
    let is_taken = BESIDE.iter().any(|end| {
        let mut name = from.file_name().unwrap_or_default().to_owned();
        name.push(end);
        to.file_name() == Some(&name)
    });
    match is_taken {
        true => Err(cannot(
            to,
            &"a file of this name would be taken for a part of the database; choose another",
        )),
        false => Ok(()),
    }
}

/// The empty file that is to be filled.
fn made(to: &Path) -> Result<PathBuf, StoreError> {
    if to.symlink_metadata().is_ok() {
        let words = "there is something already; name a file that is new";
        return Err(cannot(to, &words));
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(ONLY_OWNER)
        .open(&partial);
    new.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => cannot(
            &partial,
            &"another copy is being made, or one was broken off: then delete it",
        ),
        _ => cannot(&partial, &error),
    })?;
    Ok(partial)
}

async fn copy(options: &SqliteOptions, partial: &Path) -> Result<(), StoreError> {
    let mut from = options.reader().connect().await.map_err(from_sqlx)?;
    // From the root: what begins with `file:` would be a URI, of another file.
    let from_root = std::path::absolute(partial).map_err(|error| cannot(partial, &error))?;
    let name = from_root.to_str().map(str::to_owned);
    let name = name.ok_or_else(|| cannot(partial, &"its name is not UTF-8"))?;
    sqlx::query(sql::BACK_UP)
        .bind(name)
        .execute(&mut from)
        .await
        .map_err(from_sqlx)?;
    let copy = SqliteOptions::new(partial).reader();
    let mut copy = copy.connect().await.map_err(from_sqlx)?;
    look_through(&mut copy, partial).await
}

async fn look_through(copy: &mut SqliteConnection, partial: &Path) -> Result<(), StoreError> {
    let said: String = sqlx::query_scalar(sql::QUICK_CHECK)
        .fetch_one(copy)
        .await
        .map_err(from_sqlx)?;
    if said == "ok" {
        return Ok(());
    }
    Err(cannot(partial, &format!("the copy is broken: {said}")))
}

/// Gives it its name when it is on the disk.
fn kept(partial: &Path, to: &Path) -> Result<u64, StoreError> {
    let kept = || {
        let file = File::open(partial)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        // What another has put there meanwhile stays.
        renameat_with(CWD, partial, CWD, to, RenameFlags::NOREPLACE)?;
        let folder = to.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(bytes)
    };
    kept().map_err(|error: io::Error| cannot(to, &error))
}

fn cannot(path: &Path, why: &dyn std::fmt::Display) -> StoreError {
    StoreError::Conflict(format!(
        "the copy cannot be made at {}: {why}",
        path.display()
    ))
}
