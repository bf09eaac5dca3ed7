//! A cgroup for each command, in a part of the cgroup hierarchy (version 2) that is delegated to the worker. The kernel
//! then also limits memory that belongs to no process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::spec::Limits;

/// The worker moves into this child cgroup: the kernel limits child cgroups only if their parent contains no processes.
const WORKER: &str = "tickfleet.worker";
const COMMAND: &str = "tickfleet.command.";
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// The first process of the namespace, and one more that shows that the command exceeds its limit.
const MORE_PROCESSES: u64 = 2;
/// The number of attempts to remove a cgroup, because its processes may still be dying.
const REMOVALS: u32 = 500;
const REMOVE_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    base: PathBuf,
}

impl Cgroups {
    /// Moves this process into a child cgroup. The error is a message for the operator.
    pub(crate) fn find() -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let own = own(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        Self::at(&own.ok_or("this machine has no cgroup v2 file system that shows the worker's cgroup")?)
    }

    /// `own` is the cgroup of this process.
    fn at(own: &Path) -> Result<Self, String> {
        let is_moved = own.ends_with(WORKER);
        let base = if is_moved { own.parent().unwrap_or(own) } else { own };
        let shown = base.display();
        let failed = |what: &str, error: &io::Error| {
            format!("the cgroup {shown} is not delegated to the worker ({what}: {error})")
        };
        let controllers =
            fs::read_to_string(base.join("cgroup.controllers")).map_err(|error| failed("read", &error))?;
        let has = |wanted: &&str| controllers.split_whitespace().any(|controller| controller == *wanted);
        if !CONTROLLERS.iter().all(has) {
            let all = controllers.trim();
            return Err(format!("the cgroup {shown} has the controllers '{all}', not memory and pids"));
        }
        let this = std::process::id().to_string();
        if !is_moved {
            let processes = fs::read_to_string(base.join("cgroup.procs")).map_err(|error| failed("read", &error))?;
            if processes.lines().any(|process| process != this) {
                return Err(format!("the cgroup {shown} has other processes than the worker"));
            }
            let made = fs::create_dir(base.join(WORKER));
            made.or_else(|error| if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
                .map_err(|error| failed("make a cgroup", &error))?;
            set(&base.join(WORKER), "cgroup.procs", &this).map_err(|error| failed("move the worker", &error))?;
        }
        let enabled = set(base, "cgroup.subtree_control", "+memory +pids");
        enabled.map_err(|error| failed("enable its controllers", &error))?;
        // Killed workers leave cgroups behind. Errors are ignored, because a cgroup in use cannot be removed.
        for entry in fs::read_dir(base).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(COMMAND) {
                let _ = fs::remove_dir(entry.path());
            }
        }
        Ok(Self { base: base.to_owned() })
    }

    pub(crate) fn make(&self, limits: &Limits) -> io::Result<Cgroup> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let cgroup = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = self.base.join(format!("{COMMAND}{}.{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break Cgroup { path },
                // A killed worker with the same process ID left this cgroup behind.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let processes = limits.processes.saturating_add(MORE_PROCESSES);
        set(&cgroup.path, "memory.max", &limits.memory_bytes.to_string())?;
        set(&cgroup.path, "memory.oom.group", "1")?;
        set(&cgroup.path, "pids.max", &processes.to_string())?;
        match set(&cgroup.path, "memory.swap.max", "0") {
            // If this file does not exist, the kernel does not count swap.
            Err(_) if !cgroup.path.join("memory.swap.max").exists() => Ok(cgroup),
            set => set.map(|()| cgroup),
        }
    }
}

/// Dropping this value kills the cgroup's processes and removes the cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Errors are ignored, because kernels before 5.14 lack this file.
        let _ = set(&self.path, "cgroup.kill", "1");
        if is_removed(&self.path) {
            return;
        }
        let path = std::mem::take(&mut self.path);
        // Processes take a moment to die. Another thread waits, because this thread can belong to the runtime.
        #[allow(clippy::disallowed_methods, reason = "the thread has nothing else to do, and no runtime")]
        std::thread::spawn(move || {
            for _ in 0..REMOVALS {
                std::thread::sleep(REMOVE_EVERY);
                if is_removed(&path) {
                    return;
                }
            }
            tracing::error!(path = %path.display(), "cannot remove the cgroup of an ended command");
        });
    }
}

fn is_removed(path: &Path) -> bool {
    fs::remove_dir(path).map_or_else(|error| error.kind() == ErrorKind::NotFound, |()| true)
}

fn set(cgroup: &Path, name: &str, value: &str) -> io::Result<()> {
    fs::write(cgroup.join(name), value)
}

/// The files are opened while the launcher still has permission.
#[derive(Debug)]
pub(crate) struct CgroupHandle {
    processes: File,
    events: File,
}

impl CgroupHandle {
    pub(crate) fn open(cgroup: &Path) -> io::Result<Self> {
        let processes = OpenOptions::new().write(true).open(cgroup.join("cgroup.procs"))?;
        Ok(Self { processes, events: File::open(cgroup.join("memory.events"))? })
    }

    pub(crate) fn admit(&self, process: i32) -> io::Result<()> {
        (&self.processes).write_all(process.to_string().as_bytes())
    }

    /// True if the kernel killed a process because the cgroup exceeded its memory limit.
    pub(crate) fn has_run_out(&self) -> bool {
        let mut events = &self.events;
        let mut text = String::new();
        // If the events cannot be read, no process counts as killed.
        let _ = events.rewind().and_then(|()| events.read_to_string(&mut text));
        let killed = text.lines().filter_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
        killed.sum::<u64>() > 0
    }
}

/// `mounts` and `cgroups` are the `mountinfo` and `cgroup` files of a process.
fn own(mounts: &str, cgroups: &str) -> Option<PathBuf> {
    let path = Path::new(cgroups.lines().find_map(|line| line.strip_prefix("0::"))?);
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let root = fields.next()?;
        let mounted = fields.next()?;
        let is_v2 = after.split(' ').next() == Some("cgroup2");
        Some(Path::new(mounted).join(path.strip_prefix(root).ok().filter(|_| is_v2)?))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking, and says what it skips")]

    use std::process::Command;

    use super::*;

    fn delegated() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        set(folder.path(), "cgroup.controllers", "cpu memory pids\n").unwrap();
        set(folder.path(), "cgroup.procs", &format!("{}\n", std::process::id())).unwrap();
        folder
    }

    fn get(cgroup: &Path, name: &str) -> String {
        fs::read_to_string(cgroup.join(name)).unwrap_or_default()
    }

    #[test]
    fn the_worker_moves_to_a_child_cgroup_and_each_command_gets_limits() {
        let folder = delegated();
        fs::create_dir(folder.path().join("tickfleet.command.7.0")).unwrap();
        let cgroups = Cgroups::at(folder.path()).unwrap();
        let worker = folder.path().join(WORKER);
        assert_eq!(get(&worker, "cgroup.procs"), std::process::id().to_string());
        assert_eq!(get(folder.path(), "cgroup.subtree_control"), "+memory +pids");
        assert!(!folder.path().join("tickfleet.command.7.0").exists(), "what a killed worker left is removed");
        assert_eq!(Cgroups::at(&worker).unwrap().base, folder.path(), "a worker that has moved already");

        let limits = Limits { memory_bytes: 1 << 20, processes: 3, ..Limits::default() };
        let one = cgroups.make(&limits).unwrap();
        let other = cgroups.make(&limits).unwrap();
        assert_ne!(one.path(), other.path());
        let files = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max"];
        assert_eq!(files.map(|name| get(one.path(), name)), ["1048576", "0", "1", "5"]);
        set(one.path(), "cgroup.procs", "").unwrap();
        set(one.path(), "memory.events", "low 0\nmax 9\noom 2\noom_kill 0\noom_group_kill 0\n").unwrap();
        let cgroup_handle = CgroupHandle::open(one.path()).unwrap();
        cgroup_handle.admit(4_711).unwrap();
        assert_eq!(get(one.path(), "cgroup.procs"), "4711");
        assert!(!cgroup_handle.has_run_out());
        set(one.path(), "memory.events", "low 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 1\n").unwrap();
        assert!(cgroup_handle.has_run_out());

        let path = one.path().to_owned();
        drop(one);
        assert_eq!(get(&path, "cgroup.kill"), "1");
        // The kernel would remove these files together with a real cgroup.
        fs::read_dir(&path).unwrap().flatten().for_each(|file| fs::remove_file(file.path()).unwrap());
        assert!(is_gone(&path));
    }

    #[allow(clippy::disallowed_methods, reason = "a test without a runtime")]
    fn is_gone(path: &Path) -> bool {
        (0..500).any(|_| {
            // Another thread removes the cgroup without a notification.
            std::thread::sleep(Duration::from_millis(20));
            !path.exists()
        })
    }

    #[test]
    fn an_unusable_cgroup_is_rejected_with_the_reason() {
        let folder = delegated();
        set(folder.path(), "cgroup.procs", &format!("1\n{}\n", std::process::id())).unwrap();
        assert!(Cgroups::at(folder.path()).unwrap_err().contains("other processes"));
        set(folder.path(), "cgroup.controllers", "cpu memory\n").unwrap();
        assert!(Cgroups::at(folder.path()).unwrap_err().contains("'cpu memory', not memory and pids"));
        assert!(Cgroups::at(&folder.path().join("none")).unwrap_err().contains("not delegated"));
        assert!(!folder.path().join(WORKER).exists());
    }

    #[test]
    fn the_cgroup_of_a_process_is_found_by_its_mount() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n\
                      31 30 0:27 /pod /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        let found = own(mounts, "4:memory:/other\n0::/pod/worker\n");
        assert_eq!(found.unwrap(), Path::new("/sys/fs/cgroup/unified/worker"));
        assert_eq!(own(mounts, "0::/elsewhere\n"), None);
        assert_eq!(own(mounts, "4:memory:/pod\n"), None);
    }

    #[test]
    fn dropping_a_cgroup_kills_its_processes_and_removes_it() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let path = own(&mounts, "0::/\n").map(|root| root.join(format!("tickfleet-test-{}", std::process::id())));
        let Some(path) = path.filter(|path| fs::create_dir(path).is_ok()) else {
            return eprintln!("skipped: no cgroup v2 hierarchy that this user may write to");
        };
        let cgroup = Cgroup { path: path.clone() };
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        set(cgroup.path(), "cgroup.procs", &child.id().to_string()).unwrap();
        drop(cgroup);
        assert_eq!(child.wait().unwrap().code(), None, "a signal ended it");
        assert!(is_gone(&path));
    }
}
