//! The memory of a process. Shared memory without a file is not counted, so [`super::seccomp`] and [`super::rules`]
//! prevent such memory.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::makedev;

use crate::spec::{Level, Network, Spec};

/// For one socket of a pair: 208 KiB by default, plus one message. A sandboxed command cannot raise this limit.
const SOCKET_BYTES: u64 = 320 << 10;
/// This file contains the machine's default size of a socket buffer, in bytes.
const SOCKET_DEFAULT: &str = "/proc/sys/net/core/wmem_default";
/// A sandboxed command cannot raise the capacity of a pipe.
const PIPE_BYTES: u64 = 64 << 10;
/// For each descriptor that an `epoll` watches, and for each lock on a file.
const WATCH_BYTES: u64 = 256;
const EPOLL: &str = "anon_inode:[eventpoll]";
/// Ends a line in `maps` if the mapped file no longer has a name.
const DELETED: &[u8] = b" (deleted)";
/// File systems in memory at the level `strict`, which have their own size limits.
const SCRATCH: [&[u8]; 2] = [b"/tmp/", b"/dev/shm/"];
/// The kernel uses these bytes even for an untouched mapping.
const MAPPING_BYTES: u64 = 256;
/// The kernel's default limit of mappings per process.
const MAPPINGS_MAX: u64 = 65_530;

/// Device and inode number.
type FileId = (u64, u64);

#[derive(Debug)]
pub(super) struct Charges {
    socket: u64,
    /// For an `epoll` or another object without a file.
    object: u64,
    /// For a process that hides its descriptors. Assumes the maximum number of sockets and mappings.
    hidden: u64,
    device: Option<u64>,
    has_tcp: bool,
}

#[derive(Debug, Default)]
pub(super) struct Charged {
    /// Bytes of memory.
    pub(super) bytes: u64,
    /// Disk usage of open files that have no name.
    pub(super) nameless: u64,
    /// Processes can share pipes and sockets, which are charged once.
    seen: HashSet<FileId>,
    /// Open files without a name.
    files: HashSet<FileId>,
    has_sockets: bool,
}

/// Memory and files that are counted less often, because counting them takes longer.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Memory of the kernel for mappings, watches and locks.
    pub(super) bytes: u64,
    /// Mapped files without a name that two scans in a row found, and that no process had open.
    pub(super) mapped_only: u64,
    mapped: HashSet<FileId>,
}

impl Scan {
    /// Stops above `max` bytes, because thousands of mappings take milliseconds to scan.
    pub(super) fn process(&mut self, folder: &Path, level: Level, max: u64) {
        self.lines(&folder.join("maps"), MAPPING_BYTES, max, &|line| nameless_mapping(line, level));
        for entry in fs::read_dir(folder.join("fd")).into_iter().flatten().flatten() {
            let has_a_list = |leads_to: PathBuf| leads_to.as_os_str() == EPOLL || leads_to.is_absolute();
            if fs::read_link(entry.path()).is_ok_and(has_a_list) {
                // `fdinfo` has one line for each lock and for each watch.
                self.lines(&folder.join("fdinfo").join(entry.file_name()), WATCH_BYTES, max, &|_| None);
            }
        }
    }

    fn lines(&mut self, path: &Path, bytes: u64, max: u64, see: &dyn Fn(&[u8]) -> Option<FileId>) {
        let Ok(file) = fs::File::open(path) else { return };
        let mut file = BufReader::with_capacity(16 << 10, file);
        let mut line = Vec::new();
        while self.bytes <= max && file.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            self.bytes = self.bytes.saturating_add(bytes);
            self.mapped.extend(see(line.trim_ascii_end()));
            line.clear();
        }
    }

    /// A file counts only if two scans in a row found it, because a file can be opened during a scan.
    pub(super) fn end(&mut self, charges: &Charges, charged: &Charged, before: &Self) {
        // For mapped files, some file systems report a different device number, so the inode number must suffice.
        let of_workspace = |number: u64| charges.device.is_some_and(|device| charged.files.contains(&(device, number)));
        self.mapped.retain(|file| !charged.files.contains(file) && !of_workspace(file.1));
        self.mapped_only = self.mapped.intersection(&before.mapped).count() as u64;
    }
}

/// `None` if the file has a name, or is on a file system in memory.
fn nameless_mapping(line: &[u8], level: Level) -> Option<FileId> {
    let line = line.strip_suffix(DELETED)?;
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let (major, minor) = std::str::from_utf8(fields.nth(3)?).ok()?.split_once(':')?;
    let device = makedev(u64::from_str_radix(major, 16).ok()?, u64::from_str_radix(minor, 16).ok()?);
    let number = std::str::from_utf8(fields.next()?).ok()?.parse().ok().filter(|number| *number > 0)?;
    let path = fields.next()?;
    let is_scratch = level == Level::Strict && SCRATCH.iter().any(|scratch| path.starts_with(scratch));
    (!is_scratch).then_some((device, number))
}

impl Charges {
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

    pub(super) fn pages(folder: &Path, charged: &mut Charged) {
        let text = fs::read_to_string(folder.join("status")).unwrap_or_default();
        charged.bytes = charged.bytes.saturating_add(kept(&text));
    }

    pub(super) fn descriptors(&self, folder: &Path, charged: &mut Charged) {
        let entries = match fs::read_dir(folder.join("fd")) {
            Ok(entries) => entries,
            Err(error) if has_gone(&error) => return,
            // The kernel hides a process that executes an unreadable program. An ending process is also hidden, but has
            // no memory.
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
        // If this fails, the descriptor was closed in the meantime.
        let Ok(found) = fs::metadata(path) else { return };
        let kind = found.file_type();
        let identity = (found.dev(), found.ino());
        let bytes = if kind.is_socket() {
            charged.has_sockets = true;
            self.socket
        } else if kind.is_fifo() {
            PIPE_BYTES
        } else if kind.is_file() && found.nlink() == 0 {
            if charged.files.insert(identity) && Some(found.dev()) == self.device {
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
            // All of these objects share one inode number, so each descriptor is charged.
            charged.bytes = charged.bytes.saturating_add(self.object);
            return;
        };
        if charged.seen.insert(identity) {
            charged.bytes = charged.bytes.saturating_add(bytes);
        }
    }

    pub(super) fn connections(&self, charged: &mut Charged) {
        if !self.has_tcp || !charged.has_sockets {
            return;
        }
        let numbers: HashSet<u64> = charged.seen.iter().map(|(_, number)| *number).collect();
        for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
            let text = fs::read_to_string(table).unwrap_or_default();
            let queued = text.lines().filter_map(queue).filter(|(number, _)| numbers.contains(number));
            // The kernel needs about the same number of bytes again to manage the queued data.
            let bytes = queued.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes.saturating_mul(2)));
            charged.bytes = charged.bytes.saturating_add(bytes);
        }
    }
}

/// In bytes. `status` is a file of the process in `/proc`.
fn kept(status: &str) -> u64 {
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let counts = ["VmRSS", "VmSwap", "VmPTE", "HugetlbPages"].contains(&name);
        counts.then(|| value.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).flatten()
    };
    status.lines().filter_map(of).fold(0, |sum, kib| sum.saturating_add(kib.saturating_mul(1_024)))
}

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
    fn resident_swapped_and_page_table_memory_is_counted() {
        let status = "Name:\tx\nVmPeak:\t 900 kB\nVmRSS:\t   10 kB\nVmPTE:\t  2 kB\nVmSwap:\t 30 kB\n";
        assert_eq!(kept(status), 42 * 1_024);
        assert_eq!(kept("Name:\tzombie\nState:\tZ (zombie)\n"), 0);
    }

    #[test]
    fn a_mapped_deleted_file_is_identified_by_its_inode() {
        let line = b"7f0000-7f1000 r--s 00000000 fd:01 4711                       /app/workspace/a b (deleted)";
        assert_eq!(nameless_mapping(line, Level::Strict), Some((makedev(0xfd, 1), 4_711)));
        for other in [
            &line[..line.len() - DELETED.len()],
            b"7f0000-7f1000 rw-s 00000000 00:35 12    /dev/shm/sem.x (deleted)",
            b"7f0000-7f1000 rw-s 00000000 00:35 0    /x (deleted)",
            b"7f0000-7f1000 rw-p 00000000 00:00 0 ",
        ] {
            assert_eq!(nameless_mapping(other, Level::Strict), None);
        }
        let line = b"7f0000-7f1000 rw-s 00000000 fd:01 9 /tmp/w/f (deleted)";
        assert_eq!(nameless_mapping(line, Level::Basic), Some((makedev(0xfd, 1), 9)), "it may be the workspace");
    }

    #[test]
    fn queued_bytes_of_a_socket_are_parsed_with_its_inode() {
        let line =
            "   3: 0100007F:1F90 0100007F:A1B2 01 00000010:00000020 00:00000000 00000000  1000        0 4711 1 x";
        assert_eq!(queue(line), Some((4_711, 48)));
        assert_eq!(
            queue("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode"),
            None
        );
    }
}
