//! The root file system at the level `strict`. The workspace is bound last, so that no mount target is below a path
//! that commands can write to.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::pivot_root;

use super::files::{DEVICES, ETC, SYSTEM, ZERO};
use super::{Refusal, raw, step};
use crate::spec::{Spec, WORKSPACE};

/// The new root is mounted on the first of these folders that exists, and hides its content.
const STAGES: [&str; 4] = ["/tmp", "/mnt", "/run", "/var"];
/// For each of `/tmp` and `/dev/shm`. The run's limits can make the size smaller.
const SCRATCH_BYTES: u64 = 64 << 20;
const NONE: Option<&str> = None;

/// Opened before the new root hides the path.
struct BindSource {
    file: File,
    target: PathBuf,
    is_folder: bool,
    write: bool,
    device: bool,
}

impl BindSource {
    fn open(path: &Path, target: &Path, write: bool) -> Option<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path).ok()?;
        let is_folder = file.metadata().ok()?.is_dir();
        Some(Self { file, target: target.to_owned(), is_folder, write, device: false })
    }
}

/// True if the root has a `/proc`.
pub(super) fn make_root(spec: &Spec) -> Result<bool, Refusal> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(step("make a mount namespace"))?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).map_err(step("make the mounts private"))?;
    let sources = sources(spec)?;
    let links = links();
    let stage = STAGES.iter().map(Path::new).find(|path| path.is_dir());
    let stage = stage.ok_or_else(|| Refusal::Step("found no folder for the new root".into()))?;
    memory(stage, 16 << 20, MsFlags::empty())?;
    for (path, leads_to) in links {
        symlink(leads_to, below(stage, &path)).map_err(step("link a folder"))?;
    }
    let scratch = SCRATCH_BYTES.min(spec.limits.memory_bytes);
    for path in ["tmp", "dev/shm"] {
        let path = stage.join(path);
        fs::create_dir_all(&path).map_err(step("make a folder"))?;
        memory(&path, scratch, MsFlags::MS_NODEV)?;
    }
    for source in &sources {
        bind(stage, source)?;
    }
    let proc = proc(stage)?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID;
    mount(NONE, stage, NONE, flags, NONE).map_err(step("close the root"))?;
    std::env::set_current_dir(stage).map_err(step("enter the root"))?;
    pivot_root(".", ".").map_err(step("change the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(step("leave the old root"))?;
    std::env::set_current_dir("/").map_err(step("enter the root"))?;
    Ok(proc)
}

fn sources(spec: &Spec) -> Result<Vec<BindSource>, Refusal> {
    let is_link = |path: &&&str| Path::new(path).is_symlink();
    let system = SYSTEM.iter().filter(|path| !is_link(path)).chain(&ETC);
    let mut all: Vec<BindSource> =
        system.filter_map(|path| BindSource::open(Path::new(path), Path::new(path), false)).collect();
    // Only Landlock makes a device read-only, so `/dev/zero` needs Landlock.
    let zero = (raw::landlock_abi() > 0).then_some(&ZERO);
    let devices =
        DEVICES.iter().chain(zero).filter_map(|path| BindSource::open(Path::new(path), Path::new(path), true));
    all.extend(devices.map(|source| BindSource { device: true, ..source }));
    for grant in &spec.grants {
        let source = BindSource::open(&grant.path, &grant.path, grant.write);
        let missing = || Refusal::Step(format!("the granted path {} does not exist", grant.path.display()));
        all.push(source.ok_or_else(missing)?);
    }
    let workspace = BindSource::open(&spec.workspace, Path::new(WORKSPACE), true);
    all.push(workspace.ok_or_else(|| Refusal::Step("the workspace does not exist".into()))?);
    Ok(all)
}

/// Returns each link with its target.
fn links() -> Vec<(PathBuf, PathBuf)> {
    let devices = [("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "/proc/self/fd/0"), ("/dev/stdout", "/proc/self/fd/1")];
    let devices = devices.into_iter().chain([("/dev/stderr", "/proc/self/fd/2")]);
    let devices = devices.map(|(path, leads_to)| (PathBuf::from(path), PathBuf::from(leads_to)));
    let system = SYSTEM.iter().filter_map(|path| Some((PathBuf::from(path), fs::read_link(path).ok()?)));
    system.chain(devices).collect()
}

fn below(stage: &Path, path: &Path) -> PathBuf {
    let inner = stage.join(path.strip_prefix("/").unwrap_or(path));
    if let Some(above) = inner.parent() {
        // If this fails, the next step also fails and reports the error.
        let _ = fs::create_dir_all(above);
    }
    inner
}

fn memory(path: &Path, bytes: u64, flags: MsFlags) -> Result<(), Refusal> {
    let options = format!("size={bytes},nr_inodes=10000,mode=0755");
    mount(Some("tmpfs"), path, Some("tmpfs"), flags | MsFlags::MS_NOSUID, Some(options.as_str()))
        .map_err(step("make a file system in memory"))
}

fn bind(stage: &Path, source: &BindSource) -> Result<(), Refusal> {
    let target = below(stage, &source.target);
    if source.is_folder {
        fs::create_dir_all(&target).map_err(step("make a folder"))?;
    } else if !target.exists() {
        File::create(&target).map_err(step("make a file"))?;
    }
    let from = format!("/proc/self/fd/{}", source.file.as_raw_fd());
    mount(Some(from.as_str()), &target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
        .map_err(|error| Refusal::Step(format!("bind {}: {error}", source.target.display())))?;
    for (path, had) in mounted_at(&target)? {
        let mut flags = had | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID;
        if !source.device {
            flags |= MsFlags::MS_NODEV;
        }
        if !source.write {
            flags |= MsFlags::MS_RDONLY;
        }
        mount(NONE, &path, NONE, flags, NONE)
            .map_err(|error| Refusal::Step(format!("close {}: {error}", source.target.display())))?;
    }
    Ok(())
}

/// Includes the flags, because a remount must keep inherited flags.
fn mounted_at(target: &Path) -> Result<Vec<(PathBuf, MsFlags)>, Refusal> {
    let text = fs::read_to_string("/proc/self/mountinfo").map_err(step("read the mounts"))?;
    let all = text.lines().filter_map(mount_of).filter(|(path, _)| path.starts_with(target)).collect();
    Ok(all)
}

fn mount_of(line: &str) -> Option<(PathBuf, MsFlags)> {
    let mut fields = line.split(' ').skip(4);
    let path =
        fields.next()?.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    let flag = |word: &str| match word {
        "ro" => MsFlags::MS_RDONLY,
        "nosuid" => MsFlags::MS_NOSUID,
        "nodev" => MsFlags::MS_NODEV,
        "noexec" => MsFlags::MS_NOEXEC,
        "noatime" => MsFlags::MS_NOATIME,
        "nodiratime" => MsFlags::MS_NODIRATIME,
        "relatime" => MsFlags::MS_RELATIME,
        _ => MsFlags::empty(),
    };
    Some((path.into(), fields.next()?.split(',').map(flag).fold(MsFlags::empty(), |all, one| all | one)))
}

/// False if the kernel forbids the mount, because the machine's own `/proc` is partly hidden, as in most containers.
fn proc(stage: &Path) -> Result<bool, Refusal> {
    let path = stage.join("proc");
    fs::create_dir_all(&path).map_err(step("make a folder"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some("proc"), &path, Some("proc"), flags, NONE).is_ok())
}
