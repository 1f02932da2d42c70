//! What keeps the programs of a worker from what is not theirs, from the settings.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{anyhow, ensure};
use attune_config::{SandboxMode as Wanted, Settings, Wiring};
use attune_core::Resources;
use attune_worker::{Account, Containment, SandboxMode};
use rustix::process::geteuid;

use crate::roles::Role;
use crate::{LAUNCH, own_program};

/// What the settings say, for a worker of this program.
///
/// # Errors
/// When `worker.run_as` is no account.
pub(crate) fn of(settings: &Settings) -> anyhow::Result<Containment> {
    let worker = &settings.worker;
    let account = worker.run_as.as_deref().map(Account::of).transpose();
    Ok(Containment {
        launcher: vec![own_program(), LAUNCH.into()],
        sandbox: match worker.sandbox {
            Wanted::Auto => SandboxMode::Auto,
            Wanted::Required => SandboxMode::Required,
            Wanted::Off => SandboxMode::Off,
        },
        write_dirs: worker.write_dirs.clone(),
        secrets: secrets(settings, std::env::var_os("CREDENTIALS_DIRECTORY")),
        account: account.map_err(|words| anyhow!(words))?,
        resources: Resources {
            memory: worker.limits.memory,
            cpu: worker.limits.cpu,
            pids: worker.limits.pids,
        },
        open_files: worker.limits.open_files,
        file_size: worker.limits.file_size.map(attune_core::Size::bytes),
        builtins: worker.builtins.clone(),
        program_dirs: worker.program_dirs.clone(),
        env_unsafe: worker.env_unsafe,
    })
}

/// Where the passwords of this process are: what systemd hands it, and the files that the settings name.
fn secrets(settings: &Settings, credentials: Option<OsString>) -> Vec<PathBuf> {
    let has_first_key = settings.wiring == Wiring::Embedded;
    let first_key = settings.data_dir.join(crate::keys_command::FIRST_KEY_FILE);
    let files = [
        settings.database.url_file.clone(),
        settings.broker.url_file.clone(),
        settings.broker.tls.key_file.clone(),
        settings.api.tls.key_file.clone(),
        settings.secrets.key_file.clone(),
        settings.worker.secrets_dir.clone(),
        // It is made when everything has started.
        has_first_key.then_some(first_key),
    ];
    let files = files.into_iter().flatten();
    credentials
        .map(PathBuf::from)
        .into_iter()
        .chain(files)
        .collect()
}

/// Refuses a process that is nothing but a worker, is root, and would run programs as root too: they could
/// read its passwords and do to the machine what they like. Who serves everything in one process to try
/// it out is warned when the worker starts.
pub(crate) fn check_root(settings: &Settings, roles: &[Role]) -> anyhow::Result<()> {
    let worker = &settings.worker;
    let would = geteuid().is_root() && worker.run_as.is_none() && !worker.allow_root;
    ensure!(
        !would || roles != [Role::Worker],
        "the worker is root, and so would be every program that it runs: run it as an account of its own, or \
         name the account that programs run as by `worker.run_as`, or set `worker.allow_root` to true"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use attune_config::Loader;

    use super::*;

    #[test]
    fn a_worker_alone_does_not_run_programs_as_root_unless_it_is_told_to() {
        let check = |flags: &[(&str, &str)], roles: &[Role]| {
            let loaded = Loader::new().flags(flags.iter().copied()).load();
            check_root(&loaded.unwrap().settings, roles).map_err(|error| error.to_string())
        };
        let refused = check(&[], &[Role::Worker]);
        if geteuid().is_root() {
            let words = refused.unwrap_err();
            for way_out in ["worker.run_as", "worker.allow_root"] {
                assert!(words.contains(way_out), "{words}");
            }
        } else {
            assert_eq!(refused, Ok(()));
        }
        assert_eq!(check(&[], &Role::ALL), Ok(()));
        assert_eq!(check(&[], &[Role::Executor]), Ok(()));
        for setting in [
            ("worker.allow_root", "true"),
            ("worker.run_as", "65534:65534"),
        ] {
            assert_eq!(check(&[setting], &[Role::Worker]), Ok(()));
        }
    }

    #[test]
    fn the_account_of_programs_must_be_there() {
        let of = |account: &str| {
            let loaded = Loader::new().flags([("worker.run_as", account)]).load();
            super::of(&loaded.unwrap().settings).map(|containment| containment.account)
        };
        let expected = Some(Account {
            user: 65534,
            group: 65534,
        });
        assert_eq!(of("65534:65534").unwrap(), expected);
        let words = of("no-such-account").unwrap_err().to_string();
        assert!(
            words.contains("worker.run_as") && words.contains("65534:65534"),
            "{words}"
        );
    }
}
