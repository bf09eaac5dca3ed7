//! Memory that a process keeps: its pages, those that are swapped out, the tables that map them, its mappings, and what the
//! kernel may buffer for its descriptors. Shared memory without a file, which shows in none of these, cannot be made:
//! [`super::seccomp`] and [`super::rules`] see to that.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;

use crate::spec::{Network, Spec};

/// Bytes that the kernel buffers for a socket of a pair, at most: by default 208 KiB and one message more. The size cannot
/// be raised in the sandbox.
const SOCKET_BYTES: u64 = 320 << 10;
/// The machine's default for the buffer of a socket, where it can be read.
const SOCKET_DEFAULT: &str = "/proc/sys/net/core/wmem_default";
/// Bytes that a pipe holds. The size cannot be raised in the sandbox.
const PIPE_BYTES: u64 = 64 << 10;
/// Bytes that the kernel keeps for each descriptor that an `epoll` watches.
const WATCH_BYTES: u64 = 256;

/// Bytes that the kernel keeps for each mapping of a process, touched or not.
const MAPPING_BYTES: u64 = 256;
/// Mappings that the kernel allows a process by default.
const MAPPINGS_MAX: u64 = 65_530;

/// What descriptors are charged, bytes each.
#[derive(Debug)]
pub(super) struct Charges {
    socket: u64,
    /// An `epoll`, or another object that has no file: an `epoll` may watch every descriptor of its process.
    object: u64,
    /// A process that shows neither descriptors nor mappings: as if it had as many as it may, and each descriptor were a
    /// socket.
    hidden: u64,
    /// The device of the workspace.
    device: Option<u64>,
    has_tcp: bool,
}

/// What was charged in one look.
#[derive(Debug, Default)]
pub(super) struct Charged {
    /// Bytes of memory.
    pub(super) bytes: u64,
    /// Bytes of disk of open files without a name.
    pub(super) nameless: u64,
    /// Files, pipes and sockets that were charged already: several processes may have them.
    seen: HashSet<(u64, u64)>,
    has_sockets: bool,
}

impl Charges {
    /// For a run.
    pub(super) fn new(spec: &Spec) -> Self {
        let default = fs::read_to_string(SOCKET_DEFAULT).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let socket = default.map_or(SOCKET_BYTES, |bytes| SOCKET_BYTES.max(bytes.saturating_mul(2)));
        Self {
            socket,
            object: spec.limits.open_files.saturating_mul(WATCH_BYTES),
            hidden: spec.limits.open_files.saturating_mul(socket).saturating_add(MAPPINGS_MAX * MAPPING_BYTES),
            device: spec.workspace.metadata().ok().map(|found| found.dev()),
            has_tcp: spec.network != Network::None,
        }
    }

    /// Charges a process its pages.
    pub(super) fn pages(folder: &Path, charged: &mut Charged) {
        let text = fs::read_to_string(folder.join("status")).unwrap_or_default();
        charged.bytes = charged.bytes.saturating_add(kept(&text));
    }

    /// Adds up the mappings of a process, bytes; stops beyond `max`. A process with thousands of them takes milliseconds.
    pub(super) fn mappings(folder: &Path, max: u64) -> u64 {
        let Ok(mut maps) = fs::File::open(folder.join("maps")) else { return 0 };
        let (mut part, mut bytes) = ([0; 16 << 10], 0_u64);
        while let Ok(read @ 1..) = maps.read(&mut part) {
            let lines = part[..read].iter().filter(|byte| **byte == b'\n').count();
            bytes = bytes.saturating_add(u64::try_from(lines).unwrap_or(u64::MAX).saturating_mul(MAPPING_BYTES));
            if bytes > max {
                break;
            }
        }
        bytes
    }

    /// Charges a process its descriptors.
    pub(super) fn descriptors(&self, folder: &Path, charged: &mut Charged) {
        let entries = match fs::read_dir(folder.join("fd")) {
            Ok(entries) => entries,
            Err(error) if has_gone(&error) => return,
            // It executes a program that it may not read, which hides it; or it is ending and has no memory any more.
            Err(_) => {
                let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
                if status.contains("\nVmRSS:") {
                    charged.bytes = charged.bytes.saturating_add(self.hidden);
                }
                return;
            }
        };
        for entry in entries.flatten() {
            self.descriptor(&entry.path(), charged);
        }
    }

    fn descriptor(&self, path: &Path, charged: &mut Charged) {
        // What cannot be looked at any more has been closed.
        let Ok(found) = fs::metadata(path) else { return };
        let (kind, identity) = (found.file_type(), (found.dev(), found.ino()));
        let bytes = if kind.is_socket() {
            charged.has_sockets = true;
            self.socket
        } else if kind.is_fifo() {
            PIPE_BYTES
        } else if kind.is_file() && found.nlink() == 0 && Some(found.dev()) == self.device {
            if charged.seen.insert(identity) {
                charged.nameless = charged.nameless.saturating_add(found.blocks().saturating_mul(512));
            }
            return;
        } else if kind.is_file()
            || kind.is_dir()
            || kind.is_char_device()
            || kind.is_block_device()
            || kind.is_symlink()
        {
            return;
        } else {
            // All of these have one number.
            charged.bytes = charged.bytes.saturating_add(self.object);
            return;
        };
        if charged.seen.insert(identity) {
            charged.bytes = charged.bytes.saturating_add(bytes);
        }
    }

    /// Charges what the TCP connections of the run have sent and received and nobody has taken yet.
    pub(super) fn connections(&self, charged: &mut Charged) {
        if !self.has_tcp || !charged.has_sockets {
            return;
        }
        let numbers: HashSet<u64> = charged.seen.iter().map(|(_, number)| *number).collect();
        for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
            let text = fs::read_to_string(table).unwrap_or_default();
            let queued = text.lines().filter_map(queue).filter(|(number, _)| numbers.contains(number));
            // The kernel's bookkeeping takes about as much again.
            let bytes = queued.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes.saturating_mul(2)));
            charged.bytes = charged.bytes.saturating_add(bytes);
        }
    }
}

/// Bytes of a process' `status` that it keeps from others.
fn kept(status: &str) -> u64 {
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let counts = ["VmRSS", "VmSwap", "VmPTE", "HugetlbPages"].contains(&name);
        counts.then(|| value.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).flatten()
    };
    status.lines().filter_map(of).fold(0, |sum, kib| sum.saturating_add(kib.saturating_mul(1_024)))
}

/// The number and the queued bytes of a line of the kernel's table of TCP connections.
fn queue(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace().skip(4);
    let (sent, received) = fields.next()?.split_once(':')?;
    let queued = u64::from_str_radix(sent, 16).ok()?.saturating_add(u64::from_str_radix(received, 16).ok()?);
    Some((fields.nth(4)?.parse().ok()?, queued))
}

fn has_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_where_they_are_kept() {
        let status = "Name:\tx\nVmPeak:\t 900 kB\nVmRSS:\t   10 kB\nVmPTE:\t  2 kB\nVmSwap:\t 30 kB\n";
        assert_eq!(kept(status), 42 * 1_024);
        assert_eq!(kept("Name:\tzombie\nState:\tZ (zombie)\n"), 0);
    }

    #[test]
    fn a_connection_is_known_by_its_number() {
        let line =
            "   3: 0100007F:1F90 0100007F:A1B2 01 00000010:00000020 00:00000000 00000000  1000        0 4711 1 x";
        assert_eq!(queue(line), Some((4_711, 48)));
        assert_eq!(
            queue("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode"),
            None
        );
    }
}
