//! Faults of daemons and of their ways to the servers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::FutureExt as _;
use rand::Rng as _;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::fleet::Daemon;
use super::nemesis::{Fault, Lane, Rig, pass};
use super::probe;
use super::servers::Server;
use crate::{Process, Way};

/// How long a worker may be without a guard.
const REPLACED_WITHIN: Duration = Duration::from_secs(20);

const fn kill(name: &'static str, weight: u32) -> Fault {
    Fault {
        name,
        how: "kill -9",
        heal: "started again after 0.2 to 3 s",
        lane: Lane::Daemons,
        weight,
        work: |rig, random, fault| do_kill(rig, random, fault).boxed(),
    }
}

const fn pause(name: &'static str, how: &'static str, weight: u32) -> Fault {
    Fault {
        name,
        how,
        heal: "SIGCONT",
        lane: Lane::Daemons,
        weight,
        work: |rig, random, fault| do_pause(rig, random, fault).boxed(),
    }
}

const fn way(name: &'static str, how: &'static str, weight: u32) -> Fault {
    Fault {
        name,
        how,
        heal: "the way is opened",
        lane: Lane::Daemons,
        weight,
        work: |rig, random, fault| do_way(rig, random, fault).boxed(),
    }
}

pub(crate) const FAULTS: &[Fault] = &[
    kill("kill-executor", 6),
    kill("kill-worker", 6),
    kill("kill-listener", 2),
    kill("kill-stats", 1),
    kill("kill-api", 2),
    Fault {
        name: "kill-guard",
        how: "kill -9 of a worker's guard",
        heal: "the worker starts another one",
        lane: Lane::Daemons,
        weight: 2,
        work: |rig, random, fault| do_kill_guard(rig, random, fault).boxed(),
    },
    pause("pause-executor", "SIGSTOP for 7 to 11 s (lease 5 s)", 4),
    pause("pause-worker", "SIGSTOP for 8 to 12 s (lease 6 s)", 4),
    pause("pause-listener", "SIGSTOP for 3 to 6 s", 1),
    way("cut", "connections closed and refused for 1 to 8 s", 4),
    way("half-open", "connections lost, unnoticed, for 4 to 14 s", 3),
    way(
        "one-way-to-client",
        "what the daemon sends is held for 3 to 9 s",
        3,
    ),
    way(
        "one-way-to-server",
        "what the server sends is held for 3 to 9 s",
        3,
    ),
    Fault {
        name: "without-store",
        how: "an executor loses PostgreSQL, unnoticed, for much longer than its leases",
        heal: "the way is opened, after others were seen to go on",
        lane: Lane::Daemons,
        weight: 2,
        work: |rig, random, fault| do_without_store(rig, random, fault).boxed(),
    },
    Fault {
        name: "without-broker",
        how: "an executor loses RabbitMQ, unnoticed or refused, for much longer than its leases",
        heal: "the way is opened, after others were seen to go on",
        lane: Lane::Daemons,
        weight: 2,
        work: |rig, random, fault| do_without_broker(rig, random, fault).boxed(),
    },
    Fault {
        name: "silent",
        how: "the connections that a daemon has fall silent for ever, and nobody is told; new ones work",
        heal: "nothing to heal: the daemon is seen to go on, by itself",
        lane: Lane::Daemons,
        weight: 1,
        work: |rig, random, fault| do_silent(rig, random, fault).boxed(),
    },
    way("slow", "every piece 50 to 800 ms late for 3 to 8 s", 2),
    way(
        "flapping",
        "cut and opened every 0.2 to 1 s, for 4 to 8 s",
        2,
    ),
    Fault {
        name: "rolling-restart",
        how: "SIGTERM to one daemon of a role after the other",
        heal: "each is started again once it has ended",
        lane: Lane::Daemons,
        weight: 3,
        work: |rig, random, fault| do_rolling(rig, random, fault).boxed(),
    },
];

/// The role in a fault's name.
fn role(fault: &Fault) -> &'static str {
    match fault.name.rsplit('-').next() {
        Some("executor") => "executor",
        Some("worker") => "worker",
        Some("listener") => "completion-listener",
        Some("stats") => "stats",
        _ => "api",
    }
}

fn one(daemons: &[Arc<Daemon>], random: &mut StdRng) -> Arc<Daemon> {
    Arc::clone(&daemons[random.random_range(0..daemons.len())])
}

async fn do_kill(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let daemon = one(&rig.fleet.of(role(fault)), random);
    let Some(mut guard) = daemon.take() else {
        return Ok(false);
    };
    let Some(mut process) = running(&mut guard)? else {
        return Ok(false);
    };
    let begun = rig.begin(fault, &daemon.name)?;
    process.kill().await?;
    rig.notes.process_exit(process.pid())?;
    pass(random, 200..3000).await;
    *guard = Some(daemon.spawn()?);
    begun.end()
}

/// Its worker's programs go on; they would only outlive a worker that is killed right then.
async fn do_kill_guard(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let daemon = one(&rig.fleet.of("worker"), random);
    let Some(mut guard) = daemon.take() else {
        return Ok(false);
    };
    let Some(process) = running(&mut guard)? else {
        return Ok(false);
    };
    let pid = process.pid();
    *guard = Some(process);
    let Some(first) = guard_of(pid) else {
        return Ok(false);
    };
    let begun = rig.begin(fault, &daemon.name)?;
    // It fails when it has just ended.
    let _ = kill_process(first, Signal::KILL);
    let deadline = Instant::now() + REPLACED_WITHIN;
    // A worker that has a poisonous run may end meanwhile.
    while Path::new(&format!("/proc/{pid}/task/{pid}/children")).exists()
        && guard_of(pid).is_none_or(|another| another == first)
    {
        ensure!(Instant::now() < deadline, "{} gets no guard", daemon.name);
        tokio::time::sleep(Duration::from_millis(20)).await; // poll
    }
    begun.end()
}

/// The guard of a worker: a child of one of its threads.
fn guard_of(worker: u32) -> Option<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{worker}/task")).ok()?;
    // Threads and children come and go.
    let lists = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<i32> = lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().map(str::parse);
            numbers.flatten().collect::<Vec<_>>()
        })
        .collect();
    let is_guard = |pid: &i32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|command| command.split('\0').any(|word| word == "guard"))
    };
    Pid::from_raw(children.into_iter().find(is_guard)?)
}

async fn do_pause(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let daemon = one(&rig.fleet.of(role(fault)), random);
    let Some(mut guard) = daemon.take() else {
        return Ok(false);
    };
    let Some(process) = running(&mut guard)? else {
        return Ok(false);
    };
    let begun = rig.begin(fault, &daemon.name)?;
    process.pause()?;
    let time = match daemon.role {
        "executor" => 7_000..11_000,
        "worker" => 8_000..12_000,
        _ => 3_000..6_000,
    };
    pass(random, time).await;
    process.resume()?;
    *guard = Some(process);
    begun.end()
}

/// The process of a daemon that runs, taken out; what has ended is left to the supervisor.
pub(crate) fn running(
    guard: &mut MutexGuard<'_, Option<Process>>,
) -> anyhow::Result<Option<Process>> {
    let is_running = match guard.as_mut() {
        Some(process) => process.is_running()?,
        None => false,
    };
    Ok(if is_running { guard.take() } else { None })
}

/// Others must take its partitions over, with the messages that it still has.
async fn do_without_store(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let daemon = one(&rig.fleet.of("executor"), random);
    let Some(_guard) = daemon.take() else {
        return Ok(false);
    };
    let way = daemon.way(Server::Postgres);
    let begun = rig.begin(fault, &daemon.name)?;
    way.set(Way::HalfOpen);
    pass(random, 12_000..16_000).await;
    probe::goes_on(rig, random, fault).await?;
    way.restore();
    begun.end()
}

/// It can renew its leases: it must hand its partitions over all the same.
async fn do_without_broker(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let daemon = one(&rig.fleet.of("executor"), random);
    let Some(_guard) = daemon.take() else {
        return Ok(false);
    };
    let way = daemon.way(Server::Rabbitmq);
    let begun = rig.begin(fault, &daemon.name)?;
    if random.random() {
        way.set(Way::HalfOpen);
    } else {
        way.cut();
    }
    pass(random, 25_000..30_000).await;
    probe::goes_on(rig, random, fault).await?;
    way.restore();
    begun.end()
}

/// A firewall has forgotten its connections: whoever waits for an answer must find out by itself.
async fn do_silent(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let roles = [
        "executor",
        "executor",
        "worker",
        "completion-listener",
        "api",
    ];
    let role = roles[random.random_range(0..roles.len())];
    let daemon = one(&rig.fleet.of(role), random);
    let Some(_guard) = daemon.take() else {
        return Ok(false);
    };
    let server = [Server::Postgres, Server::Rabbitmq][random.random_range(0..2)];
    let begun = rig.begin(fault, &format!("{} – {}", daemon.name, server.name()))?;
    daemon.way(server).silence();
    // A call to the store has 20 s.
    pass(random, 23_000..27_000).await;
    probe::goes_on(rig, random, fault).await?;
    begun.end()
}

async fn do_way(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    // Those whose connections matter most are hit most.
    let roles = [
        "executor",
        "executor",
        "worker",
        "worker",
        "completion-listener",
        "api",
        "stats",
    ];
    let role = roles[random.random_range(0..roles.len())];
    let daemon = one(&rig.fleet.of(role), random);
    let Some(_guard) = daemon.take() else {
        return Ok(false);
    };
    let server = [Server::Postgres, Server::Rabbitmq][random.random_range(0..2)];
    let way = daemon.way(server);
    let begun = rig.begin(fault, &format!("{} – {}", daemon.name, server.name()))?;
    match fault.name {
        "cut" => {
            way.cut();
            pass(random, 1_000..8_000).await;
        }
        "half-open" => {
            way.set(Way::HalfOpen);
            pass(random, 4_000..14_000).await;
        }
        "one-way-to-client" => {
            way.set(Way::OnlyToClient);
            pass(random, 3_000..9_000).await;
        }
        "one-way-to-server" => {
            way.set(Way::OnlyToServer);
            pass(random, 3_000..9_000).await;
        }
        "slow" => {
            let delay = random.random_range(50..800);
            way.set(Way::Slow(Duration::from_millis(delay)));
            pass(random, 3_000..8_000).await;
        }
        _ => {
            for _ in 0..random.random_range(4..8) {
                way.cut();
                pass(random, 200..1_000).await;
                way.restore();
                pass(random, 200..1_000).await;
            }
        }
    }
    way.restore();
    begun.end()
}

async fn do_rolling(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let roles = ["executor", "worker", "completion-listener", "api", "stats"];
    let role = roles[random.random_range(0..roles.len())];
    let begun = rig.begin(fault, role)?;
    for daemon in rig.fleet.of(role) {
        let Some(mut guard) = daemon.take() else {
            continue;
        };
        let Some(mut process) = running(&mut guard)? else {
            continue;
        };
        if let Err(error) = process.stop().await {
            rig.say
                .line(&format!("{} does not stop well: {error:#}", daemon.name));
            let surprise = format!("{} did not stop well: {error:#}", daemon.name);
            rig.fleet.surprises.lock().await.push(surprise);
        }
        *guard = Some(daemon.spawn()?);
        drop(guard);
        pass(random, 300..1_500).await;
    }
    begun.end()
}
