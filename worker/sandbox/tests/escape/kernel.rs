//! Commands cannot create namespaces, reach other processes, or use parts of the kernel that they do not need.

use tickfleet_sandbox::Level;

use crate::support::*;

#[tokio::test]
async fn system_calls_that_widen_the_sandbox_are_forbidden() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        // The numbers in `old` are those of x86-64. Newer calls have the same number on every architecture.
        let script = "
import platform
if platform.machine() != 'x86_64': print('other'); sys.exit()
old = {'mount': 165, 'umount2': 166, 'pivot_root': 155, 'chroot': 161, 'ptrace': 101, 'process_vm_readv': 310,
       'process_vm_writev': 311, 'keyctl': 250, 'add_key': 248, 'request_key': 249, 'bpf': 321, 'perf_event_open': 298,
       'userfaultfd': 323, 'setns': 308, 'unshare': 272, 'kexec_load': 246, 'kexec_file_load': 320, 'init_module': 175,
       'finit_module': 313, 'delete_module': 176, 'kcmp': 312, 'open_by_handle_at': 304, 'fanotify_init': 300,
       'inotify_init': 253, 'inotify_add_watch': 254, 'inotify_rm_watch': 255, 'inotify_init1': 294,
       'shmget': 29, 'msgget': 68, 'semget': 64, 'mq_open': 240, 'reboot': 169, 'swapon': 167, 'modify_ldt': 154,
       'iopl': 172, 'ioperm': 173, 'io_uring_setup': 425, 'io_uring_enter': 426, 'io_uring_register': 427,
       'open_tree': 428, 'move_mount': 429, 'fsopen': 430, 'mount_setattr': 442, 'pidfd_getfd': 438,
       'process_madvise': 440}
unknown = {'memfd_create': 319, 'memfd_secret': 447, 'clone3': 435, 'settimeofday': 164, 'acct': 163, 'syslog': 103,
           'name_to_handle_at': 303, 'migrate_pages': 256, 'move_pages': 279, 'personality': 135, 'x32 getpid': 0x40000027,
           'a later one': 600}
print([name for name, number in old.items() if call(number, 0, 0, 0, 0, 0, 0) != 'EPERM'])
print([name for name, number in unknown.items() if call(number, 0, 0, 0, 0, 0, 0) != 'ENOSYS'])
";
        let answer = attack(&sandbox, level, script, folder.path()).await;
        assert!(["[]\n[]", "other"].contains(&answer.as_str()), "{level}: {answer}");
    }
}

#[tokio::test]
async fn a_command_cannot_create_namespaces() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
flags = {'mnt': 0x20000, 'cgroup': 0x2000000, 'uts': 0x4000000, 'ipc': 0x8000000, 'user': 0x10000000, 'pid': 0x20000000,
         'net': 0x40000000}
made = []
for name, flag in flags.items():
    ctypes.set_errno(0)
    if libc.unshare(flag) == 0 or ctypes.get_errno() != errno.EPERM: made.append('unshare ' + name)
    number = 56 if os.uname().machine == 'x86_64' else 220
    answer = libc.syscall(ctypes.c_long(number), ctypes.c_long(flag | 17), 0, 0, 0, 0)
    if answer == 0: os._exit(0)
    if answer > 0: made.append('clone ' + name)
print(made)
";
        assert_eq!(attack(&sandbox, level, script, folder.path()).await, "[]", "{level}");
    }
}

#[tokio::test]
async fn a_command_has_no_privileges_and_cannot_gain_any() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
print(os.getuid() != 0 and os.geteuid() != 0 and os.getgroups() in ([], [os.getgid()]) or (os.getuid(), os.getgroups()))
print(libc.prctl(39, 0, 0, 0, 0))
class Header(ctypes.Structure): _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]
data = (ctypes.c_uint32 * 6)()
libc.capget(ctypes.byref(Header(0x20080522, 0)), data)
print(list(data)[:2], list(data)[3:5])
print(attempt(lambda: os.setuid(0)), attempt(lambda: os.setgid(0)), attempt(lambda: os.setgroups([0])))
";
        let answer = attack(&sandbox, level, script, folder.path()).await;
        let refused = answer.lines().last().unwrap().split(' ').all(|word| ["EPERM", "EINVAL"].contains(&word));
        assert!(answer.starts_with("True\n1\n[0, 0] [0, 0]\n") && refused, "{level}: {answer}");
    }
}

#[tokio::test]
async fn a_command_cannot_signal_the_worker_or_change_its_limits_or_priority() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        // This process acts as the worker. `parent` is the launcher, or the first process of the namespace.
        let script = format!(
            "
import resource, signal
worker, parent = {0}, os.getppid()
refused = ('EPERM', 'ESRCH', 'ENOSYS')
if os.getppid() == 0 or parent == 1: parent = worker
attempts = {{
    'kill': lambda: os.kill(worker, 9), 'kill parent': lambda: os.kill(parent, 9), 'group': lambda: os.killpg(worker, 9),
    'prlimit': lambda: resource.prlimit(worker, resource.RLIMIT_CPU, (0, 0)),
    'prlimit parent': lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (0, 0)),
    'priority': lambda: os.setpriority(os.PRIO_PROCESS, worker, 19), 'user': lambda: os.setpriority(os.PRIO_USER, 0, 19),
    'affinity': lambda: os.sched_setaffinity(worker, [0]),
    'scheduler': lambda: os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0)),
    'pidfd': lambda: signal.pidfd_send_signal(os.pidfd_open(worker), 9),
}}
print([name for name, what in attempts.items() if attempt(what) not in refused])
import fcntl
pair = socket.socketpair()
fcntl.fcntl(pair[0], fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
attempt(lambda: fcntl.fcntl(pair[0], 10, 9)); attempt(lambda: fcntl.fcntl(pair[0], fcntl.F_SETOWN, worker))
pair[1].send(b'x')
",
            std::process::id()
        );
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, "[]", "{level}");
    }
}

#[tokio::test]
async fn a_signal_to_all_processes_ends_only_the_command() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let outcome = run(&sandbox, level, shell("kill -9 -1; echo alive", folder.path())).await;
        // The test process, which acts as the worker, and the launcher are still alive.
        assert!(outcome.stopped.is_none(), "{level}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_command_cannot_change_its_death_signal_or_become_a_subreaper() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "print([libc.prctl(option, 0, 0, 0, 0) for option in (1, 36, 0x59616d61, 35)])";
        assert_eq!(attack(&sandbox, level, script, folder.path()).await, "[-1, -1, -1, -1]", "{level}");
    }
}

#[tokio::test]
async fn a_command_can_see_the_kernel_release() {
    let Some(sandbox) = sandbox(Level::Strict).await else { return };
    let folder = workspace();
    let script = "print(os.uname().release == open('/proc/sys/kernel/osrelease').read().strip())";
    if sandbox.support().proc {
        assert_eq!(attack(&sandbox, Level::Strict, script, folder.path()).await, "True");
    }
}
