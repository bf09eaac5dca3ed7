//! Workspaces: one folder for each task of a tenant. A call without a task uses the folder of its agent.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use tickfleet_model::hex;
use tickfleet_sandbox::removal;
use tickfleet_tools::CallContext;
use tokio::time::Instant;

/// If the worker is root: the first user that owns workspaces.
const FIRST_USER: u32 = 0x4000_0000;
/// Two workspaces rarely have the same user id. Even in this case, Landlock isolates the workspaces.
const USERS: u32 = 0x1000_0000;
/// The pause between two removals of unused workspaces.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// The suffix of a workspace's marker file. The file's modification time is the time of the last use.
const USED: &str = ".used";

#[derive(Debug)]
pub struct Workspaces {
    root: PathBuf,
    keep: Duration,
    swept: Mutex<Option<Instant>>,
    sweeping: Arc<Mutex<()>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    pub path: PathBuf,
    /// The user and group id. `None` if the worker's own user owns the workspace.
    pub owner: Option<u32>,
}

impl Workspaces {
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, keep: Duration) -> Self {
        Self { root: root.into(), keep, swept: Mutex::new(None), sweeping: Arc::default() }
    }

    pub fn of(&self, context: &CallContext) -> io::Result<Workspace> {
        let tenant = context.tenant.as_str();
        let agent = context.agent.as_str();
        match &context.task {
            Some((task, _)) => self.get(&["task", tenant, task.as_str()]),
            None => self.get(&["agent", tenant, agent]),
        }
    }

    /// For probing the sandbox levels. No call uses this workspace.
    pub fn scratch(&self) -> io::Result<Workspace> {
        self.get(&["scratch"])
    }

    fn get(&self, name: &[&str]) -> io::Result<Workspace> {
        // Names of tenants and tasks can be long and can contain any characters, so the folder is named by a digest.
        let digest = Sha256::digest(name.join("\0").as_bytes());
        let key = hex(&digest[..16]);
        let number = u32::from_be_bytes([digest[28], digest[29], digest[30], digest[31]]);
        let owner = geteuid().is_root().then_some(FIRST_USER + number % USERS);
        self.make_root()?;
        let workspace = Workspace { path: self.root.join(&key), owner };
        // Write the marker before the folder. Otherwise another worker's sweep could remove the folder as unused.
        File::create(self.root.join(format!("{key}{USED}")))?.set_modified(now())?;
        self.make(&workspace)?;
        Ok(workspace)
    }

    fn make_root(&self) -> io::Result<()> {
        if let Ok(found) = fs::metadata(&self.root) {
            // A user who creates this folder in `/tmp` first must not own all workspaces.
            let trusted = found.is_dir() && [0, geteuid().as_raw()].contains(&found.uid());
            let why = || io::Error::other(format!("{} is not owned by this user or root", self.root.display()));
            return trusted.then_some(()).ok_or_else(why);
        }
        fs::create_dir_all(&self.root)?;
        // Other users reach their own workspace through this folder, but cannot list it.
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o711))
    }

    fn make(&self, workspace: &Workspace) -> io::Result<()> {
        let path = &workspace.path;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let found = fs::symlink_metadata(path)?;
        if !found.is_dir() {
            return Err(io::Error::other("the workspace is not a folder"));
        }
        match workspace.owner {
            Some(owner) if found.uid() != owner => chown(path, Some(owner), Some(owner)),
            _ => Ok(()),
        }
    }

    /// Workspaces can contain any number of folders, so the sweep has its own thread. `None` if no sweep is due.
    pub fn sweep_when_due(&self) -> Option<JoinHandle<()>> {
        let mut swept = self.swept.lock();
        if swept.is_some_and(|at| at.elapsed() < SWEEP_EVERY) {
            return None;
        }
        *swept = Some(Instant::now());
        drop(swept);
        let sweep = Sweep { root: self.root.clone(), keep: self.keep, under_way: Arc::clone(&self.sweeping) };
        let started = std::thread::Builder::new().name("workspace-sweep".into()).spawn(move || sweep.run());
        started
            .inspect_err(|error| tracing::warn!(%error, "failed to start the thread that removes old workspaces"))
            .ok()
    }
}

struct Sweep {
    root: PathBuf,
    keep: Duration,
    under_way: Arc<Mutex<()>>,
}

impl Sweep {
    fn run(&self) {
        let Some(_one_at_a_time) = self.under_way.try_lock() else { return };
        let Ok(entries) = fs::read_dir(&self.root) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let marker = path.extension().is_some_and(|extension| extension == USED.trim_start_matches('.'));
            if marker && self.is_old(&path) {
                remove(&path);
            }
        }
    }

    fn is_old(&self, marker: &Path) -> bool {
        let used = marker.metadata().and_then(|found| found.modified());
        used.is_ok_and(|used| now().duration_since(used).is_ok_and(|unused| unused > self.keep))
    }
}

/// Does not follow links, even if links are created during the removal.
fn remove(marker: &Path) {
    let folder = marker.with_extension("");
    match removal::remove(&folder) {
        Err(error) => tracing::warn!(folder = %folder.display(), %error, "cannot remove an old workspace"),
        // Another worker may already have removed the marker.
        Ok(()) => drop(fs::remove_file(marker)),
    }
}

/// The clock that determines the modification times of files.
#[allow(clippy::disallowed_methods, reason = "it is held against times of files, which are this clock's")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn each_name_maps_to_its_own_workspace() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = Workspaces::new(root.path(), Duration::from_secs(60));
        let one = workspaces.get(&["task", "acme", "t1"]).unwrap();
        std::fs::write(one.path.join("f"), "x").unwrap();
        assert_eq!(workspaces.get(&["task", "acme", "t1"]).unwrap(), one);
        let names = [["task", "acme", "t2"], ["task", "globex", "t1"], ["agent", "acme", "t1"]];
        assert!(names.iter().all(|name| workspaces.get(name).unwrap().path != one.path));
        assert!(workspaces.get(&["task", "../..", "/etc"]).unwrap().path.starts_with(root.path()));
    }

    #[test]
    fn a_folder_of_another_user_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = Workspaces::new(root.path(), Duration::from_secs(60));
        assert!(workspaces.scratch().is_ok());
        if geteuid().is_root() {
            chown(root.path(), Some(65_534), None).unwrap();
            assert!(workspaces.scratch().unwrap_err().to_string().contains("owned by this user or root"));
        }
    }

    #[test]
    fn only_a_long_unused_workspace_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = Workspaces::new(root.path(), Duration::from_secs(60));
        let old = workspaces.get(&["old"]).unwrap();
        let new = workspaces.get(&["new"]).unwrap();
        std::fs::create_dir(old.path.join("below")).unwrap();
        let marker = old.path.with_extension("used");
        File::options().write(true).open(&marker).unwrap().set_modified(now() - Duration::from_secs(61)).unwrap();
        workspaces.sweep_when_due().unwrap().join().unwrap();
        assert!(!old.path.exists() && !marker.exists() && new.path.exists());
    }

    #[test]
    fn an_old_workspace_with_deep_folders_is_removed() {
        let test = "workspace::tests::an_old_workspace_with_deep_folders_is_removed";
        crate::files::tests::with_few_descriptors(test, || {
            let root = tempfile::tempdir().unwrap();
            let workspaces = Workspaces::new(root.path(), Duration::from_secs(60));
            let old = workspaces.get(&["old"]).unwrap();
            fs::create_dir_all(old.path.join(["d"; 500].join("/"))).unwrap();
            let marker = File::options().write(true).open(old.path.with_extension("used")).unwrap();
            marker.set_modified(now() - Duration::from_secs(61)).unwrap();
            workspaces.sweep_when_due().unwrap().join().unwrap();
            assert!(!old.path.exists());
        });
    }
}
