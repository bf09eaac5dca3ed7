//! The launcher: a single-threaded process between a worker and a command. The command cannot reach the launcher.

mod command_paths;
mod confine;
mod cpu;
mod files;
mod limits;
mod memory;
mod mounts;
mod namespaces;
mod raw;
mod rules;
mod seccomp;
mod syscalls;
mod tree;
mod watch;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::prctl;
use nix::unistd;
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, memfd_create};

use crate::cgroup::CgroupHandle;
use crate::spec::Level;
use crate::wire::{self, Report, Request};

#[derive(Debug)]
pub(crate) enum Refusal {
    Step(String),
    Program(String),
}

pub(crate) fn step<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Refusal {
    move |error| Refusal::Step(format!("{what}: {error}"))
}

/// 0 if Landlock is unavailable.
#[must_use]
pub fn landlock_abi() -> i32 {
    raw::landlock_abi()
}

/// Call this function from `main`, before any thread is started.
#[must_use]
pub fn main() -> ExitCode {
    // Commands inherit this score: if memory runs out, the kernel kills commands before their worker. When this process
    // becomes non-dumpable, root owns its files in `/proc`, so write first. If the write fails, the memory limit still
    // applies.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let Ok(control) = take_control() else { return ExitCode::from(2) };
    let mut control = UnixStream::from(control);
    let report = match serve(&mut control) {
        Ok(report) => report,
        Err(Refusal::Step(why)) => Report::Refused(why),
        Err(Refusal::Program(why)) => Report::NotStarted(why),
    };
    match wire::write(&mut control, &report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn take_control() -> io::Result<OwnedFd> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(control)
}

fn serve(control: &mut UnixStream) -> Result<Report, Refusal> {
    // Do this before any input is read: the command must not reach the launcher's memory or descriptors.
    prctl::set_dumpable(false).map_err(step("hide the launcher"))?;
    prctl::set_child_subreaper(true).map_err(step("become a subreaper"))?;
    raw::close_others_on_exec().map_err(step("close descriptors"))?;
    let request: Request = wire::read(control).map_err(step("read the request"))?;
    let input = wire::read_frame(control).map_err(step("read the standard input"))?;
    request.spec.check().map_err(Refusal::Step)?;
    let stdin = in_memory(&input).map_err(step("keep the standard input"))?;
    let cgroup_handle =
        request.cgroup.as_deref().map(CgroupHandle::open).transpose().map_err(step("open the cgroup"))?;
    let started = match request.level {
        Level::Basic => confine::start(&request, &stdin, cgroup_handle.as_ref())?,
        Level::Strict => namespaces::start(&request, &stdin, cgroup_handle.as_ref())?,
        Level::Docker => return Err(Refusal::Step("the launcher does not run containers".into())),
    };
    drop(stdin);
    let quiet = File::options().write(true).open("/dev/null").map_err(step("open /dev/null"))?;
    unistd::dup2_stdout(&quiet).map_err(step("detach the standard output"))?;
    unistd::dup2_stderr(&quiet).map_err(step("detach the standard error"))?;
    watch::watch_until_end(started, control, &request, cgroup_handle.as_ref())
}

fn in_memory(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(content)?;
    // The memory of this file is not counted, so the file must not grow.
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}
