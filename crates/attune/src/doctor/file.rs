//! The file of the embedded wiring: whether it is there, whose it is, who uses it, and what room it has.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use attune_runtime::error_chain;
use attune_store::Store as _;
use attune_store_sqlite::{SqliteOptions, SqliteStore, holder};

use super::asking::{aside, within};
use super::finding::Findings;
use super::host::room;
use super::pages::{FILE, UPGRADING};
use super::{Opened, Patient};
use crate::parts::database_file;

const AREA: &str = "database";

pub(super) async fn look(patient: &Patient) -> (Findings, Opened) {
    let path = database_file(&patient.settings);
    let seen = {
        let path = path.clone();
        aside(move || of_system(&path)).await
    };
    let Some((mut found, is_there)) = seen else {
        return (Findings::silent(AREA, "the file system of data_dir"), None);
    };
    if !is_there {
        return (found, None);
    }
    let opened = within(SqliteStore::look(SqliteOptions::new(&path))).await;
    let store = match opened {
        Some(Ok(store)) => store,
        Some(Err(error)) => {
            let advice = "restore the file from a copy, with what was written after it";
            found.problem("readable", error_chain(&error), (advice, FILE));
            return (found, None);
        }
        None => return (Findings::silent(AREA, "the database file"), None),
    };
    let checking = store.clone();
    match within(async move { checking.quick_check().await }).await {
        Some(Ok(None)) => found.ok("integrity", "all pages of the file fit together"),
        Some(Ok(Some(problem))) => {
            let advice = "stop, keep a copy of the file, and restore one that is whole";
            found.problem("integrity", format!("PRAGMA quick_check: {problem}"), (advice, FILE));
        }
        Some(Err(error)) => {
            let advice = "stop, keep a copy of the file, and restore one that is whole";
            found.problem("integrity", error_chain(&error), (advice, FILE));
        }
        None => found.skip(
            "integrity",
            format!(
                "the file is too large to be read within {} s; `PRAGMA quick_check` in sqlite3 does",
                super::PATIENCE.as_secs()
            ),
        ),
    }
    match within({
        let store = store.clone();
        async move { store.check().await }
    })
    .await
    {
        Some(Ok(())) => found.ok("schema", "as this program needs"),
        Some(Err(error)) => {
            let advice = "start this release of `attune standalone`, which brings it up to date";
            found.problem("schema", error_chain(&error), (advice, UPGRADING));
        }
        None => found.skip("schema", "no answer in time"),
    }
    (found, Some(Arc::new(store)))
}

/// What can be seen of the file without opening it, and whether it is there.
fn of_system(path: &Path) -> (Findings, bool) {
    let mut found = Findings::of(AREA);
    let shown = path.display();
    let seen = match fs::metadata(path) {
        Ok(seen) => seen,
        Err(error) => {
            let advice = "start `attune standalone`, which makes it, or mend data_dir";
            found.problem("file", format!("{shown}: {error}"), (advice, FILE));
            return (found, false);
        }
    };
    let mode = seen.mode() & 0o777;
    if mode & 0o077 == 0 {
        found.ok(
            "file",
            format!("{shown}, {} KiB", seen.size().div_ceil(1024)),
        );
    } else {
        let says = format!("{shown}: others than its owner may use it (mode {mode:03o})");
        found.problem("file", says, (&format!("chmod 600 {shown}"), FILE));
    }
    match holder(path) {
        Ok(Some(process)) => found.ok("process", format!("process {process} uses it")),
        Ok(None) => found.warn(
            "process",
            "nobody uses it, as far as can be seen from here: nothing is decided and nothing runs",
            ("start `attune standalone`", FILE),
        ),
        Err(error) => found.skip("process", error_chain(&error)),
    }
    room("disk", path.parent().unwrap_or(path), &mut found);
    (found, true)
}
