//! The service that this command runs in, if it is one of systemd's: whether it is watched, and how far it is closed
//! off.

use std::ffi::OsString;
use std::fs;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::Patient;
use super::finding::Findings;
use super::pages::INSTALL;
use crate::roles::Role;

/// The capabilities of root, as `/proc/self/status` has them.
const CAPABILITIES: &str = "CapEff";

pub(super) fn look(patient: &Patient) -> Findings {
    let mut found = Findings::of("service");
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if variable("INVOCATION_ID").is_none() && variable("NOTIFY_SOCKET").is_none() {
        found.skip("systemd", "this command runs in no unit");
        return found;
    }
    watchdog(variable("WATCHDOG_USEC"), &mut found);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_read_only =
        statvfs("/usr").is_ok_and(|seen| seen.f_flag.contains(StatVfsMountFlags::RDONLY));
    let lacks = hardening(&status, is_read_only, patient.has(Role::Worker));
    if lacks.is_empty() {
        return found.also_ok();
    }
    for (says, advice) in lacks {
        found.warn("hardening", says, (advice, INSTALL));
    }
    found
}

impl Findings {
    fn also_ok(mut self) -> Self {
        self.ok(
            "hardening",
            "no new privileges, filtered calls, /usr is read-only",
        );
        self
    }
}

fn watchdog(every: Option<OsString>, found: &mut Findings) {
    let every = every.and_then(|text| text.to_str()?.parse::<u64>().ok());
    match every {
        Some(micros) => found.ok(
            "watchdog",
            format!("systemd waits {} s for a sign of life", micros / 1_000_000),
        ),
        None => found.warn(
            "watchdog",
            "a process that stands still is not noticed",
            ("set Type=notify and WatchdogSec=60 in the unit", INSTALL),
        ),
    }
}

/// What the unit leaves open, and what closes it.
fn hardening(
    status: &str,
    is_read_only: bool,
    runs_programs: bool,
) -> Vec<(&'static str, &'static str)> {
    let value = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_default().to_owned()
    };
    let mut lacks = Vec::new();
    // Where programs have accounts of their own, a worker needs rights to give them these.
    if !runs_programs {
        let capabilities = u64::from_str_radix(&value(CAPABILITIES), 16).unwrap_or(0);
        if capabilities != 0 {
            lacks.push((
                "it has rights of root",
                "set CapabilityBoundingSet= and User= in the unit",
            ));
        }
        if value("NoNewPrivs") != "1" {
            lacks.push(("it may gain rights", "set NoNewPrivileges=yes in the unit"));
        }
    }
    if value("Seccomp") == "0" {
        lacks.push((
            "it may make every call of the kernel",
            "set SystemCallFilter=@system-service in the unit",
        ));
    }
    if !is_read_only {
        lacks.push((
            "it may write to /usr",
            "set ProtectSystem=strict in the unit",
        ));
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_unit_leaves_open_is_told_with_what_closes_it() {
        let open = "CapEff:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\n";
        let closed = "CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        assert_eq!(hardening(open, false, false).len(), 4);
        assert_eq!(hardening(open, false, true).len(), 2);
        assert_eq!(hardening(closed, true, false), []);
    }

    #[test]
    fn a_unit_without_a_watchdog_is_told() {
        let seen = |value: Option<&str>| {
            let mut found = Findings::of("service");
            watchdog(value.map(OsString::from), &mut found);
            found.worst()
        };
        assert_eq!(seen(Some("60000000")), super::super::finding::State::Ok);
        assert_eq!(seen(None), super::super::finding::State::Warning);
    }
}
