//! `attune doctor`: looks at everything that the settings of a process lead to, and says what is wrong and what to
//! do. It changes nothing.
//!
//! An area is a file here that gives [`Findings`]. All but the cluster, which needs the database, are looked at beside
//! one another. Whatever a server is asked has [`PATIENCE`]; what does not answer is told as that, and not asked again.

mod asking;
mod broker;
mod certificates;
mod chain;
mod cluster;
mod collector;
mod configuration;
mod database;
mod file;
mod finding;
mod host;
mod pages;
mod report;
mod secret_files;
mod service;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use attune_config::{LoadError, Loaded, Settings, Wiring};
use attune_store::Store;
use clap::{Args, ValueEnum};
use tokio::sync::oneshot;

use self::finding::{Findings, State};
use crate::roles::Role;

/// How long whatever is asked may be without an answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// What runs with these settings; may be given several times. `standalone`: all roles in one process, on a file
    /// unless `wiring` says otherwise. Not given: all roles, as processes of their own.
    #[arg(long = "role", value_name = "ROLE", value_enum)]
    roles: Vec<Part>,
    /// As one JSON object.
    #[arg(long)]
    json: bool,
}

/// What somebody may ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Executor,
    CompletionListener,
    Stats,
    Worker,
    Api,
    Standalone,
}

impl DoctorArguments {
    /// Whether the settings are those of `attune standalone`.
    pub(crate) fn is_standalone(&self) -> bool {
        self.roles.contains(&Part::Standalone)
    }

    fn roles(&self) -> Vec<Role> {
        let chosen = |role: &Role| {
            self.roles.is_empty()
                || self.is_standalone()
                || self.roles.iter().any(|part| match part {
                    Part::Executor => *role == Role::Executor,
                    Part::CompletionListener => *role == Role::CompletionListener,
                    Part::Stats => *role == Role::Stats,
                    Part::Worker => *role == Role::Worker,
                    Part::Api => *role == Role::Api,
                    Part::Standalone => true,
                })
        };
        Role::ALL.into_iter().filter(chosen).collect()
    }
}

/// What is looked at.
struct Patient {
    settings: Settings,
    roles: Vec<Role>,
    /// The file with the settings.
    config: Option<PathBuf>,
}

impl Patient {
    fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    fn is_embedded(&self) -> bool {
        self.settings.wiring == Wiring::Embedded
    }
}

/// Looks at everything, prints what was found, and gives the exit code: 0 when all is well, 1 with warnings, 2 with
/// problems.
pub(crate) async fn run(
    loaded: Result<Loaded, LoadError>,
    config: Option<PathBuf>,
    arguments: &DoctorArguments,
) -> anyhow::Result<ExitCode> {
    let roles = arguments.roles();
    let (found, wiring) = match loaded {
        Ok(loaded) => {
            let wiring = loaded.settings.wiring;
            let patient = Arc::new(Patient {
                settings: loaded.settings,
                roles: roles.clone(),
                config,
            });
            let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
            (look(&patient, warnings).await, Some(wiring))
        }
        Err(error) => (vec![configuration::refused(&error)], None),
    };
    let worst = found.iter().map(Findings::worst).max();
    let text = match arguments.json {
        true => report::json(&found, wiring, &roles),
        false => report::human(&found, report::width()),
    };
    crate::print_all(&text)?;
    Ok(ExitCode::from(match worst.unwrap_or(State::Ok) {
        State::Ok | State::Skipped => 0,
        State::Warning => 1,
        State::Problem => 2,
    }))
}

async fn look(patient: &Arc<Patient>, warnings: Vec<String>) -> Vec<Findings> {
    let of_host = |area: &'static str, look: fn(&Patient) -> Findings| {
        let patient = Arc::clone(patient);
        async move {
            let looked = asking::aside(move || look(&patient)).await;
            looked.unwrap_or_else(|| Findings::silent(area, "this machine's file system"))
        }
    };
    let (tell_system, system) = oneshot::channel();
    let stored = async {
        let (found, store) = match patient.is_embedded() {
            true => file::look(patient).await,
            false => database::look(patient).await,
        };
        let id = match &store {
            Some(store) => asking::ask(store, async |store| store.system_id().await).await,
            None => None,
        };
        // To nobody, where the broker was not reached.
        let _unheard = tell_system.send(id.and_then(Result::ok).flatten());
        let cluster = match &store {
            Some(store) => cluster::look(patient, store).await,
            None => Findings::unreached(
                "cluster",
                "it stands in the database, which cannot be read: see above",
            ),
        };
        if let Some(store) = store {
            asking::close(store).await;
        }
        [found, cluster]
    };
    let brokered = async {
        match patient.is_embedded() {
            true => None,
            false => Some(broker::look(patient, system).await),
        }
    };
    let (configuration, [database, cluster], broker, host, certificates, service, collector) = tokio::join!(
        of_host("configuration", configuration::look),
        stored,
        brokered,
        of_host("host", host::look),
        of_host("certificates", certificates::look),
        of_host("service", service::look),
        collector::look(patient),
    );
    let configuration = configuration.with_warnings(warnings);
    let all = [Some(configuration), Some(database), broker, Some(cluster)];
    let all = all
        .into_iter()
        .chain([Some(host), Some(certificates), Some(service), collector]);
    all.flatten().collect()
}

/// What the areas share of the store.
type Opened = Option<Arc<dyn Store>>;
