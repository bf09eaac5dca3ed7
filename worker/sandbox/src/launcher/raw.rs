//! System calls that no dependency wraps safely. The sandbox has no other `unsafe` code.
#![expect(unsafe_code, reason = "fork, close_range and the version of Landlock have no safe wrapper")]

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal};
use nix::unistd::{ForkResult, Pid};

/// `None` in the child.
pub(super) fn fork() -> nix::Result<Option<Pid>> {
    // SAFETY: the launcher never starts a thread, so all locks and all memory of the child are in a consistent state.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Also closes descriptors that other code opened. Fails on kernels before 5.11.
pub(super) fn close_others_on_exec() -> nix::Result<()> {
    // SAFETY: the call only marks descriptors. It does not touch memory, and closes no descriptor that is in use.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Errno::result(answer).map(drop)
}

/// 0 if Landlock is unavailable or disabled.
pub(super) fn landlock_abi() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag, the call takes no attributes, creates nothing, and returns a number.
    let answer =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION) };
    i32::try_from(answer).unwrap_or(0).max(0)
}

/// `action` must be one of the kernel's own actions.
pub(super) fn default_action(signal: Signal, action: SigHandler) -> nix::Result<()> {
    // SAFETY: callers pass the kernel's own actions, never a function of this program.
    unsafe { nix::sys::signal::signal(signal, action) }.map(drop)
}
