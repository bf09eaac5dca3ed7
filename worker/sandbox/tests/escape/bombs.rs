//! Attacks on the resource limits of a command.

use std::time::Duration;

use tickfleet_sandbox::{Level, StopCause};

use crate::support::*;

#[tokio::test]
async fn a_fork_bomb_is_stopped_and_no_process_survives() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mark = format!("bomb{}{level}", std::process::id());
        let mut spec =
            python(&format!("# {mark}\nwhile True:\n    try: os.fork()\n    except OSError: pass"), folder.path());
        spec.limits.processes = 32;
        spec.limits.wall_ms = 60_000;
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!(outcome.stopped, Some(StopCause::Processes), "{level}");
        assert_eq!(processes_with(&mark), Vec::<String>::new(), "{level}");
    }
}

#[tokio::test]
async fn memory_is_limited_per_process_and_in_total() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut one = python(
            "try:\n    x = bytearray(400 << 20); print('got it')\nexcept MemoryError: print('refused')",
            folder.path(),
        );
        one.limits.memory_bytes = 128 << 20;
        assert_eq!(out(&run(&sandbox, level, one).await), "refused", "{level}");

        let script = "
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(os.urandom(1 << 20)) * 60; time.sleep(60)
time.sleep(60)";
        let mut many = python(script, folder.path());
        many.limits.memory_bytes = 200 << 20;
        let outcome = run(&sandbox, level, many).await;
        assert_eq!(outcome.stopped, Some(StopCause::Memory), "{level}: {outcome:?}");
    }
}

#[tokio::test]
async fn memory_that_belongs_to_no_process_cannot_be_allocated() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
import fcntl, mmap
print(attempt(lambda: mmap.mmap(-1, 4096)))
print(attempt(lambda: mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)))
print(attempt(lambda: os.open('/dev/zero', os.O_RDWR)))
print(attempt(lambda: os.open('/dev/zero', os.O_WRONLY)))
print(os.read(os.open('/dev/zero', os.O_RDONLY), 2))
pair, pipe = socket.socketpair(), os.pipe()
before = pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
for option in (7, 8, 32, 33): pair[0].setsockopt(socket.SOL_SOCKET, option, 1 << 20)
print(pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)
print(attempt(lambda: fcntl.fcntl(pipe[0], 1031, 1 << 20)))
print('ok' if libc.prctl(4, 0, 0, 0, 0) == 0 else 'EPERM')
print(['EPERM', 'ok'][libc.inotify_add_watch(libc.inotify_init(), b'.', 2) >= 0])
print(call(444, 0, 0, 1), call(436, 3, 4, 2))
print(attempt(lambda: socket.send_fds(pair[0], [b'x'], [pipe[0]])), pair[0].send(b'x'), pair[1].recv(1))
print(libc.memfd_create(b'x', 0))
file = os.open('f', os.O_RDWR | os.O_CREAT); os.write(file, b'xy')
print(attempt(lambda: os.splice(file, pipe[1], 1, offset_src=0)), attempt(lambda: os.sendfile(pipe[1], file, 0, 1)))
print(attempt(lambda: os.sendfile(pair[0].fileno(), file, 0, 1)))
import shutil, subprocess
shutil.copyfile('f', 'g'); print(subprocess.run('cp g h && cat h - < g | cat', shell=True, capture_output=True).stdout)
";
        let expected = "EPERM\nEPERM\nEACCES\nEACCES\nb'\\x00\\x00'\nTrue\nEPERM\nEPERM\nEPERM\nENOSYS EPERM\nEPERM 1 b'x'\n-1\n\
                        EINVAL EINVAL\nEINVAL\nb'xyxy'";
        assert_eq!(attack(&sandbox, level, script, folder.path()).await, expected, "{level}");
    }
}

const HIDDEN_MEMORY: [(&str, &str); 8] = [
    (
        "mappings that are not touched",
        "
libc.mmap.restype = ctypes.c_void_p
for _ in range(16):
    if os.fork() == 0:
        for number in range(60_000): libc.mmap(None, ctypes.c_long(4096), number % 2, 34, -1, ctypes.c_long(0))
        time.sleep(60)
time.sleep(60)",
    ),
    (
        "buffers of sockets",
        "
for _ in range(8):
    if os.fork() == 0:
        pairs = [socket.socketpair() for _ in range(100)]
        for end in sum(pairs, ()):
            end.setblocking(False)
            try:
                while True: end.send(b'x' * 65536)
            except BlockingIOError: pass
        time.sleep(60)
time.sleep(60)",
    ),
    (
        "pipes without a name",
        "
for _ in range(20):
    if os.fork() == 0:
        pipes = [os.pipe() for _ in range(110)]
        for reads, writes in pipes:
            os.set_blocking(writes, False)
            try:
                while True: os.write(writes, b'x' * 4096)
            except BlockingIOError: pass
        time.sleep(60)
time.sleep(60)",
    ),
    (
        "tables of pages",
        "
import mmap
x = mmap.mmap(-1, 320 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
for at in range(0, len(x), 2 << 20): x[at]
time.sleep(60)",
    ),
    (
        "descriptors that each epoll watches under many numbers",
        "
import select
pipes = [os.pipe()[0] for _ in range(50)]
for _ in range(4):
    if os.fork() == 0:
        epolls = [select.epoll() for _ in range(40)]
        for number in range(150, 250):
            for pipe in pipes:
                os.dup2(pipe, number)
                for epoll in epolls: epoll.register(number, 0)
        time.sleep(60)
time.sleep(60)",
    ),
    (
        "locks on files",
        "
import fcntl
for process in range(6):
    if os.fork() == 0:
        files = [os.open('%d.%d' % (process, number), os.O_RDWR | os.O_CREAT) for number in range(200)]
        for at in range(0, 1400, 2):
            for file in files: fcntl.lockf(file, fcntl.LOCK_SH, 1, at)
        time.sleep(60)
time.sleep(60)",
    ),
    (
        "processes whose first thread has ended",
        "
import ctypes, threading
exit_thread = ctypes.CDLL(None).syscall
def hold(more):
    more.append(bytearray(b'x') * (40 << 20))
    time.sleep(60)
for _ in range(4):
    if os.fork() == 0:
        threading.Thread(target=hold, args=([],)).start()
        # SYS_exit ends this thread alone.
        exit_thread(60 if os.uname().machine == 'x86_64' else 93, 0)
time.sleep(60)",
    ),
    (
        "a program that hides its descriptors",
        "
import shutil
shutil.copyfile(os.path.realpath(sys.executable), 'hidden')
file = os.open('hidden', os.O_RDONLY); os.fchmod(file, 0o111); os.close(file)
for _ in range(2):
    if os.fork() == 0: os.execv('hidden', ['hidden', '-c', 'import time; time.sleep(60)'])
time.sleep(60)",
    ),
];

#[tokio::test]
async fn memory_outside_resident_pages_is_limited() {
    for (level, sandbox) in each_level().await {
        for (name, script) in HIDDEN_MEMORY {
            let folder = workspace();
            let mut spec = python(script, folder.path());
            spec.limits.memory_bytes = 128 << 20;
            // A kernel needs half a minute to set this number of locks, and more beside other tests.
            spec.limits.wall_ms = 120_000;
            let outcome = run(&sandbox, level, spec).await;
            assert_eq!(outcome.stopped, Some(StopCause::Memory), "{level}: {name}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn programs_with_pipes_sockets_and_threads_stay_within_their_memory() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
import asyncio, subprocess, threading
async def several():
    each = [await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1, stderr=-1) for _ in range(10)]
    return [(await one.communicate(b'x'))[0] for one in each]
threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(20)]
for thread in threads: thread.start()
print(asyncio.run(several()) == [b'x'] * 10, subprocess.run('yes | head -n 1 | wc -l', shell=True).returncode)
for thread in threads: thread.join()";
        let mut spec = python(script, folder.path());
        spec.limits.memory_bytes = 256 << 20;
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!(out(&outcome).lines().last(), Some("True 0"), "{level}: {outcome:?} {}", err(&outcome));
    }
}

#[tokio::test]
async fn commands_have_the_highest_oom_score() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mark = format!("victim{}{level}", std::process::id());
        let mut spec = shell(&format!("sleep 600; : {mark}"), folder.path());
        spec.limits.wall_ms = 60_000;
        let running = tokio::spawn(async move { run(&sandbox, level, spec).await });
        let mut found = Vec::new();
        for _ in 0..200 {
            found = processes_with(&mark);
            if !found.is_empty() {
                break;
            }
            // No event reports that the command is executed, so this polls.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for pid in &found {
            let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
            assert_eq!(score.trim(), "1000", "{level}");
        }
        assert!(!found.is_empty(), "{level}");
        running.abort();
    }
}

#[tokio::test]
async fn cpu_time_is_limited_per_process_and_in_total() {
    for (level, sandbox) in each_level().await {
        for script in ["while True: pass", "os.fork(); os.fork()\nwhile True: pass"] {
            let folder = workspace();
            let mut spec = python(script, folder.path());
            spec.limits.cpu_ms = 400;
            let outcome = run(&sandbox, level, spec).await;
            assert_eq!(outcome.stopped, Some(StopCause::Cpu), "{level}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn cpu_time_of_ended_processes_counts_toward_the_limit() {
    // In `ended`, the pipe closes when the process that burns time has ended.
    let burn = "
def burn():
    end = time.process_time() + 0.1
    while time.process_time() < end: pass
    os._exit(0)
def ended(reads, writes):
    os.close(writes); os.read(reads, 1); os.close(reads)";
    let orphans = "
for _ in range(30):
    pipe = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0: burn()
        os._exit(0)
    os.waitpid(child, 0); ended(*pipe)";
    let dropped = "
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(30):
    pipe = os.pipe()
    if os.fork() == 0: burn()
    ended(*pipe)";
    for (level, sandbox) in each_level().await {
        for script in [orphans, dropped] {
            let folder = workspace();
            let mut spec = python(&format!("{burn}\n{script}"), folder.path());
            spec.limits.cpu_ms = 1_000;
            let outcome = run(&sandbox, level, spec).await;
            assert_eq!(outcome.stopped, Some(StopCause::Cpu), "{level}: {script} {outcome:?}");
        }
    }
}

#[tokio::test]
async fn deep_unreadable_or_unlinked_files_still_hit_the_workspace_limit() {
    let deep = "
for _ in range(400): os.mkdir('d'); os.chdir('d')
for number in range(40): open('f%d' % number, 'wb').write(b'x' * 500_000)
time.sleep(60)";
    let closed = "
os.mkdir('d'); folder = os.open('d', os.O_RDONLY)
for number in range(40): open('d/f%d' % number, 'wb').write(b'x' * 500_000)
os.fchmod(folder, 0)
time.sleep(60)";
    let nameless = "
file = open('f', 'wb'); os.unlink('f')
file.write(b'x' * 20_000_000); file.flush()
time.sleep(60)";
    for (level, sandbox) in each_level().await {
        for (script, bound) in [(deep, [StopCause::WorkspaceBytes; 2]), (nameless, [StopCause::WorkspaceBytes; 2])]
            .into_iter()
            .chain([(closed, [StopCause::WorkspaceUncountable, StopCause::WorkspaceBytes])])
        {
            let folder = workspace();
            let mut spec = python(script, folder.path());
            spec.limits.workspace_bytes = 10 << 20;
            let outcome = run(&sandbox, level, spec).await;
            assert!(outcome.stopped.is_some_and(|stop| bound.contains(&stop)), "{level}: {script} {outcome:?}");
        }
        let folder = workspace();
        let mut inodes = python("for _ in range(2_000): os.mkdir('d'); os.chdir('d')\ntime.sleep(60)", folder.path());
        inodes.limits.workspace_files = 500;
        assert_eq!(run(&sandbox, level, inodes).await.stopped, Some(StopCause::WorkspaceFiles), "{level}");
    }
}

#[tokio::test]
async fn fallocate_cannot_take_disk_beyond_the_file_size() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
file = os.open('f', os.O_RDWR | os.O_CREAT)
print([attempt(lambda: os.posix_fallocate(file, 0, length)) for length in (4096, 2 << 20)])
for mode in (0, 1, 2, 3, 8, 16):
    ctypes.set_errno(0)
    libc.fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(64 << 20))
    print(errno.errorcode[ctypes.get_errno()])";
        let mut spec = python(script, folder.path());
        spec.limits.file_bytes = 1 << 20;
        let reported = attack_with(&sandbox, level, spec).await;
        assert_eq!(reported, format!("['ok None', 'EFBIG']{}", "\nENOTSUP".repeat(6)), "{level}");
    }
}

#[tokio::test]
async fn file_size_workspace_size_and_file_count_are_limited() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut one =
            shell("head -c 3000000 /dev/zero > big; ls -l big | awk '{print $5}' >&2; stat -c %s big", folder.path());
        one.limits.file_bytes = 1 << 20;
        let outcome = run(&sandbox, level, one).await;
        assert_eq!(out(&outcome), (1 << 20).to_string(), "{level}");

        let mut many = shell("i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; done", folder.path());
        many.limits.workspace_bytes = 10 << 20;
        assert_eq!(run(&sandbox, level, many).await.stopped, Some(StopCause::WorkspaceBytes), "{level}");

        let folder = workspace();
        let mut inodes = python("i = 0\nwhile True: open('f%d' % i, 'w'); i += 1", folder.path());
        inodes.limits.workspace_files = 500;
        assert_eq!(run(&sandbox, level, inodes).await.stopped, Some(StopCause::WorkspaceFiles), "{level}");
    }
}

#[tokio::test]
async fn an_oversized_workspace_is_detected_when_the_command_ends() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("head -c 100000 /dev/zero > f", folder.path());
        spec.limits.workspace_bytes = 50_000;
        assert_eq!(run(&sandbox, level, spec).await.stopped, Some(StopCause::WorkspaceBytes), "{level}");
    }
}

#[tokio::test]
async fn endless_output_is_truncated_at_its_limit() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("yes & yes >&2", folder.path());
        spec.limits.output_bytes = 10_000;
        spec.limits.wall_ms = 1_000;
        let outcome = run(&sandbox, level, spec).await;
        assert!(outcome.truncated && outcome.timed_out(), "{level}");
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (10_000, 10_000));
    }
}

#[tokio::test]
async fn tmp_and_dev_shm_have_a_size_limit() {
    let Some(sandbox) = sandbox(Level::Strict).await else { return };
    let folder = workspace();
    let mut spec = shell(
        "for to in /tmp /dev/shm; do for i in 1 2 3 4; do head -c 40000000 /dev/zero > $to/f$i 2>/dev/null; done; \
         du -sb $to | cut -f1; done",
        folder.path(),
    );
    spec.limits.memory_bytes = 512 << 20;
    let outcome = run(&sandbox, Level::Strict, spec).await;
    let sizes: Vec<u64> = out(&outcome).lines().map(|line| line.parse().unwrap()).collect();
    assert!(sizes.len() == 2 && sizes.iter().all(|size| *size <= (64 << 20) + 4_096), "{outcome:?}");
}

#[tokio::test]
async fn a_command_at_basic_cannot_write_to_dev_shm() {
    let Some(sandbox) = sandbox(Level::Basic).await else { return };
    let folder = workspace();
    let answer = attack(&sandbox, Level::Basic, "print(attempt(lambda: open('/dev/shm/x', 'w')))", folder.path()).await;
    assert!(["EACCES", "ENOENT"].contains(&answer.as_str()), "{answer}");
}

#[tokio::test]
async fn disk_space_of_mapped_unlinked_files_is_counted() {
    let unlinked = "file = os.open('f', os.O_RDWR | os.O_CREAT); os.unlink('f')";
    let nameless = "file = os.open('.', os.O_RDWR | os.O_TMPFILE)";
    for (level, sandbox) in each_level().await {
        for open in [unlinked, nameless] {
            let folder = workspace();
            let script = format!(
                "
for _ in range(3):
    {open}
    os.write(file, b'x' * 3_000_000)
    libc.mmap(None, ctypes.c_long(4096), 1, 1, file, ctypes.c_long(0))
    os.close(file)
time.sleep(60)"
            );
            let mut spec = python(&script, folder.path());
            (spec.limits.workspace_bytes, spec.limits.file_bytes) = (6_000_000, 3_000_000);
            let outcome = run(&sandbox, level, spec).await;
            assert_eq!(
                outcome.stopped,
                Some(StopCause::WorkspaceBytes),
                "{level}: {open} {outcome:?} {}",
                err(&outcome)
            );
        }
    }
}

#[tokio::test]
async fn ordinary_mapped_temporary_files_fit_the_workspace_limit() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
import mmap, multiprocessing, tempfile
locks = []
try:
    for _ in range(20): locks.append(multiprocessing.Lock())
except OSError: pass # At basic there is no /dev/shm.
for _ in range(4):
    file = tempfile.TemporaryFile(); file.truncate(1 << 20)
    shared = mmap.mmap(file.fileno(), 1 << 20)
    time.sleep(0.25)
    shared.close(); file.close()
print('done')";
        let mut spec = python(script, folder.path());
        (spec.limits.workspace_bytes, spec.limits.file_bytes) = (6 << 20, 3 << 20);
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!((out(&outcome).as_str(), outcome.stopped), ("done", None), "{level}: {}", err(&outcome));
    }
}

#[tokio::test]
async fn a_cgroup_limits_the_memory_of_a_command() {
    for (level, sandbox) in each_level().await {
        if let Some(why) = &sandbox.support().cgroup {
            eprintln!("skipped: {level}: {why}");
            continue;
        }
        let folder = workspace();
        // Each process alone stays below the limit. The kernel ends the command before a check detects the usage.
        let script = "
for _ in range(6):
    if os.fork() == 0: x = bytearray(b'x') * (100 << 20); time.sleep(60)
time.sleep(60)";
        let mut spec = python(script, folder.path());
        spec.limits.memory_bytes = 128 << 20;
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!(outcome.stopped, Some(StopCause::Memory), "{level}: {outcome:?}");
        let mut own =
            python("print(open('/proc/self/cgroup').read() if os.path.exists('/proc/self') else '')", folder.path());
        own.limits.wall_ms = 20_000;
        let shown = attack_with(&sandbox, level, own).await;
        assert!(shown.is_empty() || shown.contains("tickfleet.command."), "{level}: {shown}");
    }
}

#[tokio::test]
async fn a_command_in_a_full_workspace_can_delete_but_not_add_files() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        std::fs::write(folder.path().join("large"), vec![1_u8; 8 << 20]).unwrap();
        let limited = |script: &str| {
            let mut spec = shell(script, folder.path());
            spec.limits.workspace_bytes = 4 << 20;
            spec
        };
        let more = run(&sandbox, level, limited("head -c 9000000 /dev/zero > more; sleep 5")).await;
        assert_eq!(more.stopped, Some(StopCause::WorkspaceBytes), "{level}: {more:?}");
        let less = run(&sandbox, level, limited("rm -f more large && ls")).await;
        assert_eq!((less.stopped, less.exit_code), (None, Some(0)), "{level}: {less:?}");
        let full = run(&sandbox, level, limited("head -c 9000000 /dev/zero > more; sleep 5")).await;
        assert_eq!(full.stopped, Some(StopCause::WorkspaceBytes), "{level}: {full:?}");
    }
}
