//! This machine: what programs of a worker can be kept from, and room for what is written and opened.

use std::path::Path;

use attune_runtime::descriptors;
use attune_worker::{HostSurvey, SandboxMode};
use rustix::fs::{Access, access, statvfs};

use super::finding::{Findings, State};
use super::pages::{CONTAINMENT, DISK, DOCTOR, INSTALL};
use super::{Patient, secret_files};
use crate::api_role;
use crate::containment;
use crate::roles::Role;

/// Room on a disk, in bytes: less than the first is little, less than the second is none.
const LITTLE: u64 = 1 << 30;
const NONE: u64 = 64 << 20;

pub(super) fn look(patient: &Patient) -> Findings {
    let mut found = Findings::of("host");
    if patient.has(Role::Worker) {
        containing(patient, &mut found);
        let worker = &patient.settings.worker;
        let work = worker.work_dir.clone().unwrap_or_else(std::env::temp_dir);
        let state = worker.state_dir.clone().filter(|state| *state != work);
        for (name, folder) in [("work_dir", Some(work)), ("state_dir", state)] {
            if let Some(folder) = folder {
                writable(name, &folder, &mut found);
            }
        }
        secret_files::look(patient, &mut found);
    } else {
        found.skip("containment", "no worker is asked about");
    }
    files(patient, &mut found);
    found
}

/// What keeps programs from their worker.
fn containing(patient: &Patient, found: &mut Findings) {
    let seen = HostSurvey::take();
    let group = match &seen.cgroup {
        Ok(group) => format!(
            "its control group {} can have others in it",
            group.display()
        ),
        Err(_) => "no control groups".to_owned(),
    };
    found.ok(
        "account",
        format!("user {} of this command; {group}", seen.user),
    );
    let controllers = match seen.controllers.is_empty() {
        true => "no controllers of control groups".to_owned(),
        false => format!("controllers {}", seen.controllers.join(" ")),
    };
    found.ok(
        "kernel",
        format!("Landlock: {}; {controllers}", seen.landlock),
    );
    let containment = match containment::of(&patient.settings) {
        Ok(containment) => containment,
        Err(error) => {
            let advice = "name an account that is there, or leave worker.run_as out";
            return found.problem("containment", format!("{error:#}"), (advice, CONTAINMENT));
        }
    };
    // Such a worker does not start, so it runs as somebody else.
    let is_other = containment::check_root(&patient.settings, &[Role::Worker]).is_err();
    if is_other && !patient.is_embedded() {
        let why = "asked as root, as whom no worker runs: ask as its account, with --role worker";
        return found.skip("containment", why);
    }
    let lacks = containment.lacks();
    if lacks.is_empty() {
        return found.ok("containment", "programs are kept from what is not theirs");
    }
    let state = match containment.sandbox {
        SandboxMode::Required => State::Problem,
        _ => State::Warning,
    };
    for words in lacks {
        let advice =
            "asked as this command runs: ask as the worker's account, in its unit or container";
        match state {
            State::Problem => found.problem("containment", words, (advice, CONTAINMENT)),
            _ => found.warn("containment", words, (advice, CONTAINMENT)),
        }
    }
}

/// Whether a folder can be written, as far as its rights say, and has room.
fn writable(name: &'static str, folder: &Path, found: &mut Findings) {
    let shown = folder.display();
    match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => room(name, folder, found),
        Err(error) => {
            let says = format!("worker.{name} {shown} cannot be written: {error}");
            let advice = format!("make it and give it to the worker's account: chown … {shown}");
            found.problem(name, says, (&advice, INSTALL));
        }
    }
}

/// How much room the disk of a folder has.
pub(super) fn room(name: &'static str, folder: &Path, found: &mut Findings) {
    let nearest = folder.ancestors().find(|it| it.exists()).unwrap_or(folder);
    let shown = folder.display();
    let seen = match statvfs(nearest) {
        Ok(seen) => seen,
        Err(error) => return found.skip(name, format!("{shown}: {error}")),
    };
    let free = seen.f_bavail.saturating_mul(seen.f_frsize);
    let says = format!("{shown} has room for {} MiB", free >> 20);
    let advice = ("make room, or a larger disk", DISK);
    let faults = [
        (free < NONE, State::Problem, says.clone(), advice),
        (free < LITTLE, State::Warning, says.clone(), advice),
        (
            seen.f_files > 0 && seen.f_favail == 0,
            State::Problem,
            format!("{shown} takes no more files"),
            advice,
        ),
    ];
    found.first(name, faults, || says);
}

/// Files and sockets that a process may have open.
fn files(patient: &Patient, found: &mut Findings) {
    let limit = descriptors::limit();
    let runs = patient.has(Role::Worker);
    let needed = api_role::reserve(&patient.settings, runs);
    let says = format!(
        "this command may open {limit} files and sockets; {needed} are needed besides clients"
    );
    let advice = "raise it: `ulimit -n`, LimitNOFILE= of the unit";
    let faults = [
        (
            limit < needed,
            State::Problem,
            says.clone(),
            (advice, DOCTOR),
        ),
        (
            limit < needed + 256,
            State::Warning,
            says.clone(),
            (advice, DOCTOR),
        ),
    ];
    found.first("open files", faults, || says);
}
