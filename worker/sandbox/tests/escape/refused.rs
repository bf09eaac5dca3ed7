//! A run at an unsupported level is rejected: no command runs without its confinement. These tests run on any machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tickfleet_sandbox::{Launcher, Level, RunError, Sandbox, Spec};

use crate::support::*;

#[tokio::test]
async fn a_launcher_that_confines_nothing_supports_no_level() {
    let folder = workspace();
    // `/bin/true` ends without a report, like a launcher that a container's policy kills.
    let sandbox = Sandbox::probe(Launcher::program("/bin/true"), None, folder.path()).await;
    for level in [Level::Basic, Level::Strict, Level::Docker] {
        let spec = shell("touch ran", folder.path());
        assert!(matches!(try_run(&sandbox, level, spec).await, Err(RunError::Machine(_))), "{level}");
        assert!(!folder.path().join("ran").exists());
    }
}

#[tokio::test]
async fn a_missing_launcher_is_reported() {
    let folder = workspace();
    let sandbox = Sandbox::probe(Launcher::program("/no/such/launcher"), None, folder.path()).await;
    let reported = sandbox.support().to_string();
    assert!(reported.contains("/no/such/launcher") && reported.contains("basic: no"), "{reported}");
    assert!(
        reported.contains("a cgroup for each command: no (this machine supports no level that needs one)"),
        "{reported}"
    );
}

/// A launcher that runs as on a machine with fewer features. `restrict` is Python code that removes the features first.
fn lesser(folder: &Path, owner: &Path, restrict: &str) -> Launcher {
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(owner).unwrap());
    let script = format!(
        "#!{PYTHON}
import ctypes, os, struct
libc = ctypes.CDLL(None)
if os.getuid() == 0: os.setgroups([]); os.setresgid({owner}, {owner}, {owner}); os.setresuid({owner}, {owner}, {owner})
def no_namespaces():
    libc.prctl(4, 1, 0, 0, 0)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(0x10000000): return
    for name, text in (('setgroups', 'deny'), ('uid_map', '%d %d 1' % (uid, uid)), ('gid_map', '%d %d 1' % (gid, gid))):
        open('/proc/self/' + name, 'w').write(text)
    open('/proc/sys/user/max_user_namespaces', 'w').write('0')
def no_landlock():
    filter = [(0x20, 0, 0, 0), (0x35, 0, 2, 444), (0x25, 1, 0, 446), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in filter))
    program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(filter), ctypes.addressof(code)))
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, program, 0, 0): raise SystemExit('no filter')
{restrict}
os.execv('{0}', ['{0}'])
",
        env!("CARGO_BIN_EXE_tickfleet-sandbox-exec")
    );
    let program = folder.join("launcher");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    Launcher::program(program)
}

#[tokio::test]
async fn a_machine_without_namespaces_or_landlock_rejects_the_affected_levels() {
    let folder = workspace();
    let whole = Sandbox::probe(launcher(), None, folder.path()).await;
    let basic = whole.support().basic.is_none();
    let strict = whole.support().strict.is_none();
    for (restrict, basic, strict) in [
        ("no_namespaces()", basic, false),
        ("no_landlock()", false, strict),
        ("no_namespaces(); no_landlock()", false, false),
    ] {
        let tools = tempfile::tempdir().unwrap();
        let sandbox = Sandbox::probe(lesser(tools.path(), folder.path(), restrict), None, folder.path()).await;
        let found = sandbox.support();
        assert_eq!((found.basic.is_none(), found.strict.is_none()), (basic, strict), "{restrict}: {found}");
        for (level, holds) in [(Level::Basic, basic), (Level::Strict, strict)] {
            let ran = try_run(&sandbox, level, shell("touch ran", folder.path())).await;
            assert_eq!(
                (ran.is_ok(), folder.path().join("ran").exists()),
                (holds, holds),
                "{restrict}: {level} {ran:?}"
            );
            let _ = std::fs::remove_file(folder.path().join("ran"));
        }
    }
}

#[tokio::test]
async fn root_cannot_run_commands_in_a_workspace_owned_by_root() {
    if !is_root() {
        eprintln!("skipped: the suite is not root");
        return;
    }
    for (level, sandbox) in each_level().await {
        let folder = tempfile::tempdir().unwrap();
        let ran = try_run(&sandbox, level, shell("id", folder.path())).await;
        assert!(matches!(&ran, Err(RunError::Machine(why)) if why.contains("another user")), "{level}: {ran:?}");
    }
}

#[tokio::test]
async fn a_run_with_a_redirectable_grant_is_rejected() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = Spec::new(["true"], folder.path());
        spec.grants.push(tickfleet_sandbox::Grant { path: folder.path().join("link"), write: false });
        assert!(matches!(try_run(&sandbox, level, spec).await, Err(RunError::Spec(_))), "{level}");
    }
}
