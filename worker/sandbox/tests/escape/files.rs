//! Commands reach only their workspace, programs, libraries and generic files of `/etc`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tickfleet_sandbox::{Grant, Level, Spec};

use crate::support::*;

/// A workspace with a secret that the file modes open to everybody.
fn open_workspace() -> tempfile::TempDir {
    let other = workspace();
    fs::write(other.path().join("secret"), "hunter2").unwrap();
    for open in [other.path().to_owned(), other.path().join("secret")] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    other
}

#[tokio::test]
async fn a_command_cannot_read_or_write_files_of_the_machine() {
    let secret = workspace();
    fs::write(secret.path().join("secret"), "hunter2").unwrap();
    for open in [secret.path().to_owned(), secret.path().join("secret")] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = format!(
            "
opened = []
for path in ('{0}/secret', '/etc/shadow', '/var/log', '/root', '/home', '/sys/kernel', '/dev/mem', '/dev/kmsg', '/boot', '/run'):
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try: os.open(path, flags); opened.append((path, flags))
        except OSError: pass
for path in ('{0}/new', '/usr/new', '/etc/new', '/new', '/dev/new'):
    try: os.open(path, os.O_CREAT | os.O_WRONLY); opened.append(path)
    except OSError: pass
print(opened)
for what in (lambda: os.listdir('{0}'), lambda: os.truncate('{0}/secret', 0), lambda: os.unlink('{0}/secret'),
             lambda: os.rename('{0}/secret', 'mine'), lambda: os.link('{0}/secret', 'mine')):
    print(attempt(what))
",
            secret.path().display()
        );
        let answers = attack(&sandbox, level, &script, folder.path()).await;
        let mut answers = answers.lines();
        assert_eq!(answers.next(), Some("[]"), "{level}");
        for answer in answers {
            assert!(["EACCES", "ENOENT", "EXDEV", "EPERM"].contains(&answer), "{level}: {answer}");
        }
        assert_eq!(fs::read(secret.path().join("secret")).unwrap(), b"hunter2");
    }
}

#[tokio::test]
async fn links_out_of_the_workspace_cannot_be_opened() {
    let other = open_workspace();
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        symlink(other.path(), folder.path().join("planted")).unwrap();
        let script = format!(
            "
os.symlink('{0}', 'made')
for path in ('planted/secret', 'made/secret', '/proc/1/root{0}/secret', '/proc/self/cwd/../{1}/secret'):
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
        print(attempt(lambda: os.open(path, flags)))
",
            other.path().display(),
            other.path().file_name().unwrap().to_string_lossy()
        );
        for answer in attack(&sandbox, level, &script, folder.path()).await.lines() {
            assert!(["EACCES", "ENOENT", "EPERM"].contains(&answer), "{level}: {answer}");
        }
        assert_eq!(fs::read(other.path().join("secret")).unwrap(), b"hunter2");
    }
}

#[tokio::test]
async fn a_rename_race_between_folder_and_link_gives_no_access() {
    let other = open_workspace();
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = format!(
            "
os.mkdir('a'); open('a/secret', 'w').write('own'); os.symlink('{0}', 'b')
end = time.time() + 1
pid = os.fork()
while time.time() < end:
    if pid == 0:
        os.rename('a', 'c'); os.rename('b', 'a'); os.rename('c', 'b')
    else:
        try:
            if open('a/secret').read() != 'own': print('won')
        except OSError: pass
if pid == 0: os._exit(0)
os.wait()
",
            other.path().display()
        );
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, "", "{level}");
    }
}

#[tokio::test]
async fn a_command_cannot_change_metadata_of_the_workers_files() {
    // Without root, the file belongs to the command's user, so only the sandbox protects the file.
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let other = workspace();
        let file = other.path().join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(other.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let before = fs::metadata(&file).unwrap();
        let script = format!(
            "
path = '{0}'
for what in (lambda: os.chmod(path, 0o777), lambda: os.chown(path, os.getuid(), os.getgid()), lambda: os.utime(path, (1, 1)),
             lambda: os.setxattr(path, 'user.x', b'y')):
    print(attempt(what))
print(call(452, -100, path.encode(), 0o777, 0))
",
            file.display()
        );
        for answer in attack(&sandbox, level, &script, folder.path()).await.lines() {
            assert!(["EPERM", "ENOENT", "ENOSYS", "EACCES"].contains(&answer), "{level}: {answer}");
        }
        let after = fs::metadata(&file).unwrap();
        assert_eq!((before.mode(), before.mtime(), before.ctime()), (after.mode(), after.mtime(), after.ctime()));
    }
}

/// At `basic` without root, a command cannot change a mode by path, even in its own workspace.
#[tokio::test]
async fn chmod_by_path_works_in_the_workspace_except_at_basic_without_root() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
open('mine', 'w').close()
print(attempt(lambda: os.chmod('mine', 0o755)), attempt(lambda: os.chown('mine', os.getuid(), os.getgid())))
print(attempt(lambda: os.utime('mine', (1, 1))))
print(attempt(lambda: os.fchmod(os.open('mine', os.O_RDONLY), 0o700)))
";
        let by_path = if level == Level::Basic && !is_root() { "EPERM" } else { "ok None" };
        let expected = format!("{by_path} {by_path}\n{by_path}\nok None");
        assert_eq!(attack(&sandbox, level, script, folder.path()).await, expected, "{level}");
    }
}

#[tokio::test]
async fn a_read_only_grant_does_not_protect_file_modes_at_basic() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let granted = workspace();
        fs::set_permissions(granted.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = granted.path().join("file");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let owner = fs::metadata(folder.path()).unwrap();
        std::os::unix::fs::chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
        let script = format!("print(attempt(lambda: os.fchmod(os.open('{}', os.O_RDONLY), 0o600)))", file.display());
        let grants = vec![Grant { path: granted.path().into(), write: false }];
        let answer = attack_with(&sandbox, level, Spec { grants, ..python(&script, folder.path()) }).await;
        let expected = if level == Level::Basic { ("ok None", 0o600) } else { ("EROFS", 0o644) };
        assert_eq!((answer.as_str(), fs::metadata(&file).unwrap().mode() & 0o777), expected, "{level}");
    }
}

#[tokio::test]
async fn a_command_cannot_reach_the_workspace_of_another_tenant() {
    for (level, sandbox) in each_level().await {
        let root = workspace();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mine = root.path().join("acme");
        let theirs = root.path().join("globex");
        for folder in [&mine, &theirs] {
            fs::create_dir(folder).unwrap();
            if is_root() {
                // The worst case: one user owns both workspaces, as without root.
                let owner = fs::metadata(root.path()).unwrap();
                std::os::unix::fs::chown(folder, Some(owner.uid()), Some(owner.gid())).unwrap();
            }
        }
        fs::write(theirs.join("plan"), "theirs").unwrap();
        let script = format!(
            "
for what in (lambda: open('{0}/plan').read(), lambda: open('../globex/plan').read(), lambda: os.listdir('{0}'),
             lambda: os.listdir('..'), lambda: open('{0}/new', 'w'), lambda: os.rename('{0}', 'theirs')):
    print(attempt(what))
",
            theirs.display()
        );
        let answers = attack(&sandbox, level, &script, &mine).await;
        for answer in answers.lines().filter(|answer| *answer != "ok ['workspace']") {
            assert!(["EACCES", "ENOENT", "EXDEV", "EPERM", "EROFS"].contains(&answer), "{level}: {answer}");
        }
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn basic_reveals_and_strict_hides_that_a_machine_file_exists() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let other = workspace();
        fs::set_permissions(other.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(other.path().join("file"), "four").unwrap();
        let script = format!("print(attempt(lambda: os.stat('{}/file').st_size))", other.path().display());
        let expected = if level == Level::Basic { "ok 4" } else { "ENOENT" };
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, expected, "{level}");
    }
}

#[tokio::test]
async fn inotify_is_forbidden_at_basic() {
    let Some(sandbox) = sandbox(Level::Basic).await else { return };
    let folder = workspace();
    let script = "
for attempted in (lambda: libc.inotify_init1(0), lambda: libc.inotify_add_watch(0, b'/etc', 0xfff)):
    ctypes.set_errno(0)
    print(attempted(), errno.errorcode[ctypes.get_errno()])";
    assert_eq!(attack(&sandbox, Level::Basic, script, folder.path()).await, "-1 EPERM\n-1 EPERM");
}
