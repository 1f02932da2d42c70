//! PostgreSQL: how it keeps what it has confirmed, whether there is room for all who connect, and as whom this
//! process does.

use std::sync::Arc;
use std::time::Duration;

use attune_runtime::error_chain;
use attune_store::{Store, StoreError};
use attune_store_postgres::{PostgresStore, ServerSurvey, is_forbidden};

use super::asking::within;
use super::finding::{Findings, SILENT, State};
use super::pages::{CAPACITY, CLOCKS, CONFIGURATION, INSTALL, LOGINS, STORE, UPGRADING};
use super::{Opened, Patient};
use crate::parts::postgres_options;

const AREA: &str = "database";
/// The oldest release that has what the statements need, and the oldest that is tested.
const OLDEST: i32 = 140_000;
const TESTED: i32 = 150_000;
/// How long the server may work on a question, and a question wait for a connection; less than a question has.
const BRIEF: Duration = Duration::from_secs(2);
/// Connections of one process beside `database.max_connections`: commits, look-ups, leases.
const OWN_CONNECTIONS: u32 = 2 + 4 + 2;
/// More dead versions of rows than this, and than so many times the rows there are, no vacuum keeps up with.
const MANY_DEAD: i64 = 100_000;
const DEAD_FOR_EACH: i64 = 5;

pub(super) async fn look(patient: &Patient) -> (Findings, Opened) {
    let mut found = Findings::of(AREA);
    let mut options = match postgres_options(&patient.settings, "doctor") {
        Ok(options) => options,
        Err(error) => {
            found.problem(
                "reachable",
                format!("{error:#}"),
                ("mend the setting", CONFIGURATION),
            );
            return (found, None);
        }
    };
    (options.acquire_timeout, options.statement_timeout) = (BRIEF, BRIEF);
    options.general_connections = 2;
    let endpoint = patient.settings.database.url.endpoint();
    let store = match within(PostgresStore::connect(options)).await {
        Some(Ok(store)) => store,
        failed => {
            unreached(&endpoint, failed.and_then(Result::err), &mut found);
            return (found, None);
        }
    };
    found.ok("reachable", format!("PostgreSQL at {endpoint}"));
    let server = answered(&mut found, "server", store.survey_server()).await;
    if let Some(server) = &server {
        judge_server(server, &mut found);
    }
    login(&store, &mut found).await;
    clock(&store, &mut found).await;
    if !schema(&store, &mut found).await {
        super::asking::close(Arc::new(store)).await;
        return (found, None);
    }
    if let Some(server) = &server {
        connections(patient, &store, server, &mut found).await;
    }
    tables(&store, &mut found).await;
    let is_silent = found.is_silent();
    (
        found,
        (!is_silent).then(|| Arc::new(store) as Arc<dyn Store>),
    )
}

/// What the server answers; or why not is noted. What a login may not see is no fault.
pub(super) async fn answered<T>(
    found: &mut Findings,
    name: &'static str,
    asking: impl Future<Output = Result<T, StoreError>>,
) -> Option<T> {
    if found.is_silent() {
        found.skip(name, SILENT);
        return None;
    }
    // The adapter runs each call in a task of its own, so nothing in flight is dropped with the waiting.
    let asked = tokio::time::timeout(super::PATIENCE, asking).await; // waiting only
    match asked {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(error)) if is_forbidden(&error) => {
            found.skip(
                name,
                format!("this login may not see it: {}", error_chain(&error)),
            );
        }
        Ok(Err(error)) => {
            let advice = "see what the server says in its own log";
            found.problem(name, error_chain(&error), (advice, STORE));
        }
        Err(_) => {
            let says = found.fell_silent();
            let advice = "look whether the server, or something between, hangs";
            found.problem(name, says, (advice, STORE));
        }
    }
    None
}

fn unreached(endpoint: &str, failed: Option<StoreError>, found: &mut Findings) {
    let (says, advice) = match failed {
        None => (
            format!(
                "PostgreSQL at {endpoint} does not answer within {} s",
                super::PATIENCE.as_secs()
            ),
            "look whether the server hangs, or a firewall drops what is sent to it",
        ),
        Some(error) => {
            let advice = match error.is_transient() {
                true => "start the server, or mend database.url",
                false => "mend user, password and database in database.url",
            };
            (error_chain(&error), advice)
        }
    };
    found.problem("reachable", says, (advice, STORE));
}

fn judge_server(server: &ServerSurvey, found: &mut Findings) {
    let words = &server.version_words;
    let faults = [
        (
            server.version < OLDEST,
            State::Problem,
            format!("PostgreSQL {words} is too old"),
            ("take 15 or newer", INSTALL),
        ),
        (
            server.version < TESTED,
            State::Warning,
            format!("PostgreSQL {words} is not tested"),
            ("take 15 or newer", INSTALL),
        ),
        (
            server.is_standby,
            State::Problem,
            "it is a standby and takes no writes".to_owned(),
            ("name the server that writes in database.url", STORE),
        ),
    ];
    found.first("version", faults, || format!("PostgreSQL {words}"));
    let off = |value: &str| value == "off";
    let fault = |name: &str, value: &str, follows: &str| {
        (
            off(value),
            State::Problem,
            format!("{name} is off: {follows}"),
            (
                "set it to on in postgresql.conf, and for this database and login",
                INSTALL,
            ),
        )
    };
    let faults = [
        fault("fsync", &server.fsync, "a power cut destroys the database"),
        fault(
            "full_page_writes",
            &server.full_page_writes,
            "a power cut can destroy pages",
        ),
        fault(
            "synchronous_commit",
            &server.synchronous_commit,
            "a crash loses what was accepted",
        ),
    ];
    found.first("durability", faults, || {
        format!(
            "fsync {}, full_page_writes {}, synchronous_commit {}",
            server.fsync, server.full_page_writes, server.synchronous_commit
        )
    });
}

/// Whether all processes of this system could open all the connections that they may.
async fn connections(
    patient: &Patient,
    store: &PostgresStore,
    server: &ServerSurvey,
    found: &mut Findings,
) {
    const NAME: &str = "connections";
    let Some(sessions) = answered(found, NAME, store.survey_sessions()).await else {
        return;
    };
    let executors = answered(found, NAME, attune_store::PartitionStore::executors(store)).await;
    let workers = answered(found, NAME, attune_store::WorkerStore::workers(store)).await;
    let living = |remaining: Duration| u32::from(!remaining.is_zero());
    let executors = executors.map(|all| all.iter().map(|it| living(it.remaining)).sum::<u32>());
    let workers = workers.map(|all| all.iter().map(|it| living(it.remaining)).sum::<u32>());
    let connected = |part: &str| sessions.iter().any(|(name, _)| name == part);
    let one = |part| u32::from(connected(part));
    let processes = executors.unwrap_or_else(|| one("executor"))
        + workers.unwrap_or_else(|| one("worker"))
        + ["completion-listener", "stats", "api"]
            .map(one)
            .iter()
            .sum::<u32>();
    let each = OWN_CONNECTIONS + patient.settings.database.max_connections;
    let most = i64::from(processes) * i64::from(each);
    let room = i64::from(server.max_connections - server.reserved);
    let others = sessions.iter().filter(|(name, _)| name != "doctor");
    let now: i64 = others.map(|(_, count)| count).sum();
    // The two were counted one after the other.
    let all = server.connections.max(now);
    let says = format!(
        "{all} of {room} are open, {now} by this system, whose {processes} processes may open {most} ({each} each)"
    );
    let advice = "raise max_connections of the server, or lower database.max_connections";
    let faults = [
        (
            server.connections >= room,
            State::Problem,
            says.clone(),
            (advice, CAPACITY),
        ),
        (
            most > room,
            State::Warning,
            says.clone(),
            (advice, CAPACITY),
        ),
    ];
    found.first(NAME, faults, || says);
}

async fn login(store: &PostgresStore, found: &mut Findings) {
    let Some(login) = answered(found, "login", store.survey_login()).await else {
        return;
    };
    let name = &login.login;
    let advice = "give each part a login with what it needs (`attune migrate --grants`)";
    let faults = [
        (
            login.is_superuser,
            State::Warning,
            format!(
                "`{name}` is a superuser: whoever has its password may do everything on that server"
            ),
            (advice, LOGINS),
        ),
        (
            login.is_owner,
            State::Warning,
            format!(
                "`{name}` owns the tables: whoever has its password may change everything in them"
            ),
            (advice, LOGINS),
        ),
    ];
    found.first("login", faults, || {
        format!("`{name}` owns nothing and is no superuser")
    });
}

/// Whether the schema is one that can be worked with.
async fn schema(store: &PostgresStore, found: &mut Findings) -> bool {
    let Some(seen) = answered(found, "schema", store.survey_schema()).await else {
        return false;
    };
    // The adapter runs it in a task of its own.
    let checked = tokio::time::timeout(super::PATIENCE, store.check()).await; // waiting only
    let known = seen.known;
    match (checked, seen.applied) {
        (Ok(Ok(())), Some(applied)) if applied > known => {
            let says = format!(
                "migration {applied}, newer than {known} of this program, which can work with it"
            );
            found.ok("schema", says);
        }
        (Ok(Ok(())), _) => found.ok(
            "schema",
            format!("migration {known}, as this program needs"),
        ),
        (Ok(Err(error @ StoreError::Conflict(_))), _) => {
            // Said of the server, which has other words for it.
            found.warn(
                "schema",
                error_chain(&error),
                ("mend that setting of the server", INSTALL),
            );
        }
        (Ok(Err(error)), _) => {
            let advice = match error.is_transient() {
                true => ("see the log of the server", STORE),
                false => (
                    "run `attune migrate` of the newest release that runs",
                    UPGRADING,
                ),
            };
            found.problem("schema", error_chain(&error), advice);
            return false;
        }
        (Err(_), _) => {
            let says = format!("no answer within {} s", super::PATIENCE.as_secs());
            found.problem(
                "schema",
                says,
                ("look whether somebody has locked it", STORE),
            );
            return false;
        }
    }
    true
}

async fn tables(store: &PostgresStore, found: &mut Findings) {
    let Some(tables) = answered(found, "tables", store.survey_tables()).await else {
        return;
    };
    let is_late =
        |live: i64, dead: i64| dead > MANY_DEAD && dead > live.saturating_mul(DEAD_FOR_EACH);
    let late = tables.iter().find(|it| is_late(it.live, it.dead));
    if let Some(table) = late {
        let says = format!(
            "{} has {} rows and {} dead versions of rows: no vacuum keeps up",
            table.table, table.live, table.dead
        );
        let advice =
            "look for a transaction that stays open (pg_stat_activity), then run VACUUM on it";
        found.warn("tables", says, (advice, STORE));
        return;
    }
    let dead: i64 = tables.iter().map(|it| it.dead).sum();
    let hot = tables
        .iter()
        .find(|it| it.table == "execution_active" && it.changes > 0);
    let hot = hot.map_or(String::new(), |it| {
        let share = it.hot_changes.saturating_mul(100) / it.changes;
        format!("; {share} % of the changes of execution_active touch no index")
    });
    found.ok("tables", format!("{dead} dead versions of rows{hot}"));
}

async fn clock(store: &PostgresStore, found: &mut Findings) {
    use attune_store::PartitionStore as _;
    let before = wall_clock();
    let Some(theirs) = answered(found, "clock", store.now()).await else {
        return;
    };
    let after = wall_clock();
    let theirs = theirs.timestamp_micros();
    // Somewhere in between it was asked.
    let apart = (theirs - after).max(before - theirs).max(0);
    let says = format!("this machine and PostgreSQL differ by {} ms", apart / 1000);
    let advice = "set right the one that is wrong, and let both follow a time server";
    found.first(
        "clock",
        [(
            apart >= 1_000_000,
            State::Problem,
            says.clone(),
            (advice, CLOCKS),
        )],
        || says,
    );
}

/// Microseconds since 1970, by this machine's clock.
fn wall_clock() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    })
}
