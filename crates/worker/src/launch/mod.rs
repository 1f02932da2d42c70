//! The launcher: what stands between a worker and each program that it runs.
//!
//! A worker that started programs itself could only contain them afterwards, and a program that forks
//! as its first act would be gone by then. So it starts a small process of Attune's own, which puts
//! *itself* where the program is to be (its control group, its limits, its sandbox, its account) and then
//! becomes the program: whatever that does, it does inside.
//!
//! The launcher's stdin is a socket to its worker. Over it come what is to be done, the program's
//! environment (so that nothing in there has a say in what the launcher does) and the pipe that is to be
//! the program's stdin; back goes why it could not become the program. The socket closes when it has.
//!
//! Where there are no control groups, the launcher stays, as the *attendant* of another one that becomes the
//! program: see [`attendant`].
//!
//! It holds no secrets, and must stay readable for the guard, which finds it by its mark.

mod attendant;
mod plan;
mod sandbox;
mod worker;

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};

use crate::guard::enter_cgroup;
use crate::runner::PARAMETERS;
pub use plan::Account;
use plan::{Failure, Plan, Said, Step, receive};
pub(crate) use sandbox::{Sandbox, can_be_kept, can_scope_files, can_scope_signals, real_path};
pub(crate) use worker::{Attendant, Launcher, NotLaunched};

/// Is the launcher of the worker that writes to this process's stdin: becomes the program that `argv`
/// names. Returns only when that failed, which the worker has been told.
///
/// # Errors
/// When stdin is not the socket of a worker; nothing was done.
pub fn launch(argv: impl IntoIterator<Item = OsString>) -> io::Result<()> {
    let stdin = io::stdin();
    let is_socket = FileType::from_raw_mode(fstat(&stdin)?.st_mode) == FileType::Socket;
    if !is_socket {
        return Err(io::Error::other(
            "a launcher is started by its worker alone",
        ));
    }
    let mut worker = UnixStream::from(stdin.as_fd().try_clone_to_owned()?);
    let argv: Vec<OsString> = argv.into_iter().collect();
    let done = hear(&mut worker).map_err(|error| Failure::of(Step::Hear, &error));
    let done = done.and_then(|(plan, environment)| match plan.attended_by.is_empty() {
        true => Err(become_program(&plan, environment, &argv)),
        false => attendant::attend(&mut worker, plan, &environment, &argv),
    });
    if let Err(failure) = done {
        worker.write_all(&Said::Failed(failure).line())?;
    }
    Ok(())
}

/// Returns why it could not be done.
fn become_program(
    plan: &Plan,
    environment: Vec<(OsString, OsString)>,
    argv: &[OsString],
) -> Failure {
    if let Err(failure) = contain(plan) {
        return failure;
    }
    let Some((program, arguments)) = argv.split_first() else {
        return Failure::of(Step::Hear, &io::Error::other("no program is named"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment);
    if let Some(account) = plan.account {
        // No group of this process stays: the library drops them for a process of root.
        command.uid(account.user).gid(account.group);
    }
    Failure::of(Step::Exec, &command.exec())
}

/// Sends the pipe that is to be stdin, with the one byte that it needs to travel.
fn send_stdin(launcher: &UnixStream, stdin: impl AsFd) -> io::Result<()> {
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    sent.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        launcher,
        &[IoSlice::new(b" ")],
        &mut sent,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Takes what the worker sends, and the pipe for stdin.
fn hear(worker: &mut UnixStream) -> io::Result<(Plan, Vec<(OsString, OsString)>)> {
    let mut first = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut first)];
    recvmsg(&*worker, &mut buffers, &mut sent, RecvFlags::CMSG_CLOEXEC)?;
    let stdin: Option<OwnedFd> = sent.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let stdin = stdin.ok_or_else(|| io::Error::other("no stdin was sent"))?;
    rustix::stdio::dup2_stdin(&stdin)?;
    receive(worker)
}

/// Puts this process where the program is to be. The account comes last of all, with the exec: what
/// stands here may need the rights of the worker's.
fn contain(plan: &Plan) -> Result<(), Failure> {
    let step = |step| move |error: io::Error| Failure::of(step, &error);
    if let Some(cgroup) = &plan.cgroup {
        enter_cgroup(cgroup, &plan.cgroup_limits).map_err(step(Step::Cgroup))?;
    }
    if let Some(account) = plan.account {
        give_room(account).map_err(step(Step::Room))?;
    }
    limit(Resource::Core, Some(0)).map_err(step(Step::Limits))?;
    limit(Resource::Nofile, plan.open_files).map_err(step(Step::Limits))?;
    limit(Resource::Fsize, plan.file_size).map_err(step(Step::Limits))?;
    if let Some(sandbox) = &plan.sandbox {
        sandbox.enter().map_err(step(Step::Sandbox))?;
    }
    Ok(())
}

/// The run's folder, which is the current one, becomes that of the account: last, as from then on others of the
/// account may put something else in the place of what is in it.
fn give_room(account: Account) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(account.user), Gid::from_raw(account.group));
    for path in [PARAMETERS, "."] {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(CWD, path, Some(user), Some(group), flags)?;
    }
    Ok(())
}

/// Lowers a limit; one that is lower already stays.
fn limit(resource: Resource, to: Option<u64>) -> io::Result<()> {
    let Some(to) = to else { return Ok(()) };
    let hard = getrlimit(resource).maximum;
    let to = Some(hard.map_or(to, |hard| hard.min(to)));
    let both = Rlimit {
        current: to,
        maximum: to,
    };
    Ok(setrlimit(resource, both)?)
}
