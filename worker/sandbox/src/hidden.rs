//! Hides this process from others of the same user.

use std::io;

/// Takes memory, environment and descriptors of this process out of reach of other processes of its user: `/proc` shows
/// them to root alone, and nobody may trace it. A process with the capabilities `CAP_SYS_PTRACE`,
/// `CAP_PERFMON` or `CAP_SYS_ADMIN` still can. Programs that
/// this process executes are not hidden. Call it first in `main`: what was read before stays read.
///
/// # Errors
/// The kernel refuses it.
pub fn hide_this_process() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}
