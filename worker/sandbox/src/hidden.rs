use std::io;

/// Protects the memory, environment and descriptors of this process from other processes of the same user. A process
/// with `CAP_SYS_PTRACE`, `CAP_PERFMON` or `CAP_SYS_ADMIN` still has access. Programs that this process executes are
/// not protected. Call this function first in `main`: data that is read before the call can leak.
pub fn hide_this_process() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_dumpable(false)?;
    Ok(())
}
