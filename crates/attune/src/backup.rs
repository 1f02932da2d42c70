//! `attune backup`: a copy of the file of the embedded wiring.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use attune_config::{Settings, Wiring};
use attune_store_sqlite::{SqliteOptions, back_up};

use crate::{fence, parts, say};

/// Copies the database to a new file, while a daemon works on it or not.
pub(crate) async fn run(settings: &Settings, to: &Path) -> anyhow::Result<ExitCode> {
    ensure!(
        settings.wiring == Wiring::Embedded,
        "`attune backup` copies the file of `wiring: embedded`. PostgreSQL has a tool of its own, which runs \
         beside everything else: (umask 077; pg_dump -Fc DATABASE > attune.dump)"
    );
    let place = fence::place(settings)?;
    let options = SqliteOptions::new(parts::database_file(settings));
    let bytes = back_up(&options, to)
        .await
        .with_context(|| format!("{place} was not copied"))?;
    say(&format!(
        "{place} is copied to {} ({bytes} bytes)",
        to.display()
    ));
    Ok(ExitCode::SUCCESS)
}
