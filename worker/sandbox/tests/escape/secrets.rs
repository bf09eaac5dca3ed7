//! Environment, descriptors and memory of the worker, the launcher and the first process must not leak to commands.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use tickfleet_sandbox::{Level, Spec};

use crate::support::*;

#[tokio::test]
async fn the_environment_has_only_four_defaults_and_given_variables() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = Spec::new(["/usr/bin/env"], folder.path());
        spec.environment.insert("GIVEN".into(), "1".into());
        let outcome = run(&sandbox, level, spec).await;
        let text = out(&outcome);
        let mut names: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
        names.sort_unstable();
        assert_eq!(names, ["GIVEN", "HOME", "LANG", "PATH", "TMPDIR"], "{level}");
    }
}

#[tokio::test]
async fn environment_memory_and_descriptors_of_other_processes_are_hidden() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = format!(
            "
found = []
parent = os.getppid()
for pid in ('1', '{0}', str(parent)):
    for name in ('environ', 'mem', 'maps', 'cmdline', 'fd', 'root', 'cwd', 'exe', 'task', 'auxv', 'io'):
        path = '/proc/%s/%s' % (pid, name)
        try:
            if os.path.isdir(path): found += [path for _ in os.listdir(path) if name in ('fd', 'cwd')]
            else:
                text = open(path, 'rb').read(4096)
                if text and name != 'cmdline': found.append(path)
        except OSError: pass
        try: found.append(os.readlink(path))
        except OSError: pass
print(found)
",
            std::process::id()
        );
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, "[]", "{level}");
    }
}

#[tokio::test]
async fn inherited_descriptors_are_closed_in_the_command() {
    let folder = workspace();
    let secret = workspace();
    fs::write(secret.path().join("secret"), "hunter2").unwrap();
    let file = File::open(secret.path().join("secret")).unwrap();
    // The file stays open across `exec`, like a file that a C library opens in a real worker.
    let flags = nix::fcntl::FdFlag::empty();
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(flags)).unwrap();
    for (level, sandbox) in each_level().await {
        let script = format!(
            "
print([fd for fd in range(3, 256) if attempt(lambda: os.fstat(fd)) != 'EBADF'])
print(attempt(lambda: os.read({}, 10)))
print([attempt(lambda: os.lseek(fd, 0, 0)) for fd in (1, 2)])
",
            file.as_raw_fd()
        );
        let expected = "[]\nEBADF\n['ESPIPE', 'ESPIPE']";
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, expected, "{level}");
    }
}

#[tokio::test]
async fn standard_input_is_read_only() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = python("print(attempt(lambda: os.write(0, b'x' * 100)), os.read(0, 10))", folder.path());
        spec.stdin = b"input".to_vec();
        assert_eq!(attack_with(&sandbox, level, spec).await, "EPERM b'input'", "{level}");
    }
}

#[tokio::test]
async fn other_processes_are_not_listed_in_proc() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
try: print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))
except OSError as error: print(errno.errorcode[error.errno])";
        let listed = attack(&sandbox, level, script, folder.path()).await;
        match level {
            Level::Basic => assert_eq!(listed, "EACCES"),
            _ if sandbox.support().proc => assert_eq!(listed, "[1, 2]"),
            _ => assert_eq!(listed, "[]"),
        }
    }
}

#[tokio::test]
async fn the_first_process_shows_its_program_name_or_nothing() {
    let Some(sandbox) = sandbox(Level::Strict).await else { return };
    let folder = workspace();
    let script = "
try: print([part for part in open('/proc/1/cmdline', 'rb').read().split(bytes(1)) if part])
except OSError as error: print(errno.errorcode[error.errno])";
    let shown = attack(&sandbox, Level::Strict, script, folder.path()).await;
    let is_program_alone = shown.ends_with("tickfleet-sandbox-exec']") && !shown.contains(", ");
    assert!(is_program_alone || ["ENOENT", "EACCES"].contains(&shown.as_str()), "{shown}");
}
