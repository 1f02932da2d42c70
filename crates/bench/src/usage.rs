//! What processes have used, read from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

/// A process and all that it has started, under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What it is called in the figures.
    pub name: String,
    /// The process that has started the others.
    pub root: u32,
}

/// What a group has used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Used {
    /// Seconds of CPU since its start, with those of what it has started.
    pub cpu_s: f64,
    /// Memory that is resident now, in MiB; what its processes share counts once.
    pub rss_mb: f64,
}

/// What was used between two moments, by the name of the group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Usage {
    /// Seconds of CPU.
    pub cpu_s: BTreeMap<String, f64>,
    /// The most memory that was seen, in MiB.
    pub rss_mb: BTreeMap<String, f64>,
}

/// Looks at groups again and again.
#[derive(Debug, Clone)]
pub struct Meter {
    groups: Vec<Group>,
    begin: BTreeMap<String, Used>,
    usage: Usage,
}

impl Meter {
    /// Begins now.
    pub fn begin(groups: Vec<Group>) -> Self {
        let begin = look(&groups);
        let mut meter = Self {
            groups,
            begin: begin.clone(),
            usage: Usage::default(),
        };
        meter.note(begin);
        meter
    }

    /// Looks once more.
    pub fn look(&mut self) {
        let now = look(&self.groups);
        self.note(now);
    }

    /// What was used so far. A group that is gone has used what was seen last.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    fn note(&mut self, now: BTreeMap<String, Used>) {
        for (name, used) in now {
            let begin = self.begin.get(&name).map_or(0.0, |begin| begin.cpu_s);
            let cpu_s = (used.cpu_s - begin).max(0.0);
            self.usage.cpu_s.insert(name.clone(), cpu_s);
            let most = self.usage.rss_mb.entry(name).or_default();
            *most = most.max(used.rss_mb);
        }
    }
}

/// What each group has used; groups that there are not are left out.
fn look(groups: &[Group]) -> BTreeMap<String, Used> {
    let processes: BTreeMap<u32, Stat> = pids()
        .filter_map(|pid| Some((pid, Stat::parse(&read(pid, "stat")?)?)))
        .collect();
    let used = groups.iter().filter_map(|group| {
        let members = members(group, groups, &processes);
        let used = used(members.iter().filter_map(|pid| {
            let memory = Memory::parse(&read(*pid, "status")?);
            Some((*processes.get(pid)?, memory))
        }))?;
        Some((group.name.clone(), used))
    });
    used.collect()
}

/// A group's process and what descends from it, except for what is a group of its own.
fn members(group: &Group, groups: &[Group], processes: &BTreeMap<u32, Stat>) -> Vec<u32> {
    let others: BTreeSet<u32> = groups.iter().map(|group| group.root).collect();
    let mut members = Vec::from_iter(processes.contains_key(&group.root).then_some(group.root));
    let mut next = 0;
    while let Some(&parent) = members.get(next) {
        next += 1;
        let children = processes.iter().filter(|(pid, stat)| {
            stat.parent == parent && !others.contains(pid) && !members.contains(pid)
        });
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        members.extend(children);
    }
    members
}

/// What processes have used together; `None` when there are none.
fn used(members: impl Iterator<Item = (Stat, Memory)>) -> Option<Used> {
    let ticks_per_s = rustix::param::clock_ticks_per_second().max(1) as f64;
    let (mut ticks, mut own_kb, mut shared_kb, mut any) = (0, 0, 0, false);
    for (stat, memory) in members {
        any = true;
        ticks += stat.ticks;
        own_kb += memory.own_kb;
        shared_kb = memory.shared_kb.max(shared_kb);
    }
    any.then(|| Used {
        cpu_s: ticks as f64 / ticks_per_s,
        rss_mb: (own_kb + shared_kb) as f64 / 1024.0,
    })
}

/// What is needed of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Ticks of CPU, its own and those of its children that have ended and were waited for.
    ticks: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name stands in parentheses and may contain any of them, and blanks.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
        let ticks = [11, 12, 13, 14]
            .map(number)
            .into_iter()
            .sum::<Option<i64>>();
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            ticks: u64::try_from(ticks?).ok()?,
        })
    }
}

/// What is needed of `/proc/PID/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Memory {
    /// What no other process has.
    own_kb: u64,
    /// Files and shared memory, which others of its group have too.
    shared_kb: u64,
}

impl Memory {
    /// A process that has no memory, such as one that has ended and was not waited for, says
    /// nothing of it.
    fn parse(text: &str) -> Self {
        let of = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok()
        };
        let of = |field| of(field).unwrap_or(0);
        Self {
            own_kb: of("RssAnon:"),
            shared_kb: of("RssFile:") + of("RssShmem:"),
        }
    }
}

/// The server that listens at this endpoint (`HOST:PORT`), if it is on this machine, its program
/// is called `program` and this process may look at it.
pub fn server(endpoint: &str, default_port: u16, program: &str) -> Option<u32> {
    let port = local_port(endpoint, default_port)?;
    let sockets: BTreeSet<u64> = listening()
        .filter(|it| it.0 == port)
        .map(|it| it.1)
        .collect();
    let is_it = |pid: &u32| {
        let name = read(*pid, "comm");
        name.is_some_and(|name| name.trim_end() == program) && holds(*pid, &sockets)
    };
    let found: BTreeSet<u32> = pids().filter(is_it).collect();
    // What it has started may have the socket as well.
    let first = |pid: &&u32| {
        let stat = read(**pid, "stat").and_then(|text| Stat::parse(&text));
        stat.is_some_and(|stat| !found.contains(&stat.parent))
    };
    found.iter().find(first).copied()
}

/// The port of this machine at which a process listens; the lowest, if there are several.
pub fn port_of(pid: u32) -> Option<u16> {
    let of = |(port, socket)| holds(pid, &BTreeSet::from([socket])).then_some(port);
    listening().filter_map(of).min()
}

/// The port of an endpoint on this machine.
fn local_port(endpoint: &str, default_port: u16) -> Option<u16> {
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') || host.starts_with('[') => {
            (host, port.parse().ok()?)
        }
        _ => (endpoint, default_port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    is_local.then_some(port)
}

/// Every listening TCP socket: its port and its number.
fn listening() -> impl Iterator<Item = (u16, u64)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let text: String = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .collect();
    let sockets: Vec<_> = text.lines().filter_map(listener).collect();
    sockets.into_iter()
}

/// A line of the table, when its socket listens.
fn listener(line: &str) -> Option<(u16, u64)> {
    /// The state of a socket that listens.
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (*fields.get(3)? == LISTEN).then_some((port, fields.get(9)?.parse().ok()?))
}

/// Whether a process has one of these sockets open.
fn holds(pid: u32, sockets: &BTreeSet<u64>) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| {
        let target = target.to_string_lossy();
        let number = target.strip_prefix("socket:[");
        let number = number.and_then(|rest| rest.strip_suffix(']')?.parse().ok());
        number.is_some_and(|number| sockets.contains(&number))
    })
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// What a file of a process says; `None` when the process has ended.
fn read(pid: u32, file: &str) -> Option<String> {
    // A name of a process need not be text.
    let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
