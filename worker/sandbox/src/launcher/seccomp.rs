//! seccomp filters. The first filter permits the calls of [`super::syscalls`], and the others forbid some of these
//! calls by their arguments. If several filters match a call, the strictest result applies.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::{Refusal, raw, step, syscalls};
use crate::spec::{Level, Network};
use crate::support::ABI_SCOPES;

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Lower ABIs of Landlock do not restrict `truncate`.
const ABI_TRUNCATE: i32 = 3;
const NEW_NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Denied: a command could outlive its launcher, keep its orphans, let others trace it, or hide its descriptors.
const PRCTL: [libc::c_int; 5] = [
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_CHILD_SUBREAPER,
    libc::PR_SET_PTRACER,
    libc::PR_SET_MM,
    libc::PR_SET_DUMPABLE,
];
/// Denied: these requests type into a terminal, or choose the process that receives signals.
const IOCTL: [u64; 4] = [0x5412, 0x541C, 0x8901, 0x8902];
/// Denied: data in the first packet of a connection would bypass Landlock's check of `connect`.
const FASTOPEN: u64 = 0x2000_0000;
/// The other bits of a socket's type argument are flags.
const TYPE_MASK: u64 = 0xf;

/// Denied: shared memory without a file and huge pages do not appear in the resident pages of a process.
const MAPPINGS: [libc::c_int; 2] = [libc::MAP_SHARED | libc::MAP_ANONYMOUS, libc::MAP_HUGETLB];
/// A filter makes these options do nothing.
const BUFFERS: [libc::c_int; 4] = [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE];

/// The restriction is permanent, also for children. `shared` is true if worker and command run as one user.
pub(super) fn restrict(level: Level, network: &Network, shared: bool) -> Result<(), Refusal> {
    let errno = |code: libc::c_int| SeccompAction::Errno(code.unsigned_abs());
    let forbidden = forbidden(level, network, shared).map_err(step("write the seccomp filter"))?;
    let buffers = buffers().map_err(step("write the seccomp filter"))?;
    // From here on, the filters block the query of Landlock's ABI. So `forbidden`, which queries it, ran before.
    let known = syscalls::allowed().map(|call| (call, Vec::new())).collect();
    apply(known, errno(libc::ENOSYS), SeccompAction::Allow)?;
    apply(forbidden, SeccompAction::Allow, errno(libc::EPERM))?;
    // Programs that request larger buffers also work with the default buffers.
    apply(buffers, SeccompAction::Allow, errno(0))?;
    apply(unsupported(), SeccompAction::Allow, errno(libc::EOPNOTSUPP))?;
    // After `EINVAL`, programs copy the data themselves.
    let unsuited = syscalls::SPLICES.map(|call| (call, Vec::new())).into();
    apply(unsuited, SeccompAction::Allow, errno(libc::EINVAL))
}

fn buffers() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::new();
    for option in BUFFERS {
        let level = u64::from(libc::SOL_SOCKET.unsigned_abs());
        let option = u64::from(option.unsigned_abs());
        when(&mut rules, libc::SYS_setsockopt, &[(1, Op::Eq, level), (2, Op::Eq, option)])?;
    }
    Ok(rules)
}

/// `fallocate` could take gigabytes of disk before the next check. Without `fallocate`, programs write the data.
fn unsupported() -> Rules {
    [(libc::SYS_fallocate, Vec::new())].into()
}

fn apply(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> Result<(), Refusal> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into().map_err(step("seccomp"))?;
    let filter = SeccompFilter::new(rules, otherwise, matching, architecture).map_err(step("seccomp"))?;
    let program: BpfProgram = filter.try_into().map_err(step("seccomp"))?;
    seccompiler::apply_filter(&program).map_err(step("seccomp"))
}

fn forbidden(level: Level, network: &Network, shared: bool) -> Result<Rules, seccompiler::BackendError> {
    let abi = raw::landlock_abi();
    let mut rules = Rules::new();
    let mut whole: Vec<libc::c_long> = syscalls::forbidden();
    for flag in NEW_NAMESPACES {
        let flag = u64::from(flag.unsigned_abs());
        when(&mut rules, libc::SYS_clone, &[(0, Op::MaskedEq(flag), flag)])?;
    }
    for option in PRCTL {
        when(&mut rules, libc::SYS_prctl, &[(0, Op::Eq, u64::from(option.unsigned_abs()))])?;
    }
    for request in IOCTL {
        when(&mut rules, libc::SYS_ioctl, &[(1, Op::Eq, request)])?;
    }
    uncounted_memory(&mut rules)?;
    others_by_number(&mut rules)?;
    sockets(&mut rules, &mut whole, network)?;
    if level == Level::Basic {
        // Without a mount namespace, these calls would reach the machine's files.
        if shared {
            whole.extend(syscalls::metadata_by_path());
            when(&mut rules, libc::SYS_utimensat, &[(1, Op::Ne, 0)])?;
        }
        if abi < ABI_TRUNCATE {
            whole.push(libc::SYS_truncate);
        }
        if abi < ABI_SCOPES {
            whole.extend(syscalls::SIGNALS);
            for command in [libc::F_SETOWN, 15, 10] {
                when(&mut rules, libc::SYS_fcntl, &[(1, Op::Eq, u64::from(command.unsigned_abs()))])?;
            }
        }
    }
    rules.extend(whole.into_iter().map(|call| (call, Vec::new())));
    Ok(rules)
}

fn uncounted_memory(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    for flags in MAPPINGS {
        let flags = u64::from(flags.unsigned_abs());
        when(rules, libc::SYS_mmap, &[(3, Op::MaskedEq(flags), flags)])?;
    }
    when(rules, libc::SYS_fcntl, &[(1, Op::Eq, u64::from(libc::F_SETPIPE_SZ.unsigned_abs()))])?;
    // Descriptors are counted once per process, so a thread must not have its own descriptor table.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let files = u64::from(libc::CLONE_FILES.unsigned_abs());
    when(rules, libc::SYS_clone, &[(0, Op::MaskedEq(thread | files), thread)])?;
    let unshare = u64::from(libc::CLOSE_RANGE_UNSHARE);
    when(rules, libc::SYS_close_range, &[(2, Op::MaskedEq(unshare), unshare)])
}

/// Permits only process number 0, the caller. Otherwise, a command could change the limits of its worker.
fn others_by_number(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
        libc::SYS_get_robust_list,
    ] {
        when(rules, call, &[(0, Op::Ne, 0)])?;
    }
    for (call, itself) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
        when(rules, call, &[(0, Op::Ne, itself)])?;
        when(rules, call, &[(1, Op::Ne, 0)])?;
    }
    Ok(())
}

fn sockets(
    rules: &mut Rules,
    whole: &mut Vec<libc::c_long>,
    network: &Network,
) -> Result<(), seccompiler::BackendError> {
    let family = |family: libc::c_int| u64::from(family.unsigned_abs());
    // Datagram sockets of a pair could send to other sockets by name. Stream sockets of a pair cannot.
    when(rules, libc::SYS_socketpair, &[(0, Op::Ne, family(libc::AF_UNIX))])?;
    when(rules, libc::SYS_socketpair, &[(1, Op::MaskedEq(TYPE_MASK), family(libc::SOCK_DGRAM))])?;
    when(rules, libc::SYS_socketpair, &[(1, Op::MaskedEq(TYPE_MASK), family(libc::SOCK_RAW))])?;
    if *network == Network::None {
        whole.extend(syscalls::SOCKETS);
        return Ok(());
    }
    // TCP over IPv4 and IPv6 only: no UDP, raw packets or Multipath TCP, which Landlock does not check.
    let other = [(0, Op::Ne, family(libc::AF_INET)), (0, Op::Ne, family(libc::AF_INET6))];
    when(rules, libc::SYS_socket, &other)?;
    for kind in (0..=TYPE_MASK).filter(|kind| *kind != family(libc::SOCK_STREAM)) {
        when(rules, libc::SYS_socket, &[(1, Op::MaskedEq(TYPE_MASK), kind)])?;
    }
    let other = [(2, Op::Ne, 0), (2, Op::Ne, family(libc::IPPROTO_TCP))];
    when(rules, libc::SYS_socket, &other)?;
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        when(rules, call, &[(flags, Op::MaskedEq(FASTOPEN), FASTOPEN)])?;
    }
    Ok(())
}

fn when(rules: &mut Rules, call: libc::c_long, all: &[(u8, Op, u64)]) -> Result<(), seccompiler::BackendError> {
    // The kernel reads 32 bits of these arguments, except for pointers. A pointer is only compared with 0.
    let length = |value: u64, op: &Op| match op {
        Op::Ne if value == 0 && call == libc::SYS_utimensat => Len::Qword,
        _ => Len::Dword,
    };
    let conditions = all.iter().map(|(at, op, value)| Condition::new(*at, length(*value, op), op.clone(), *value));
    let rule = SeccompRule::new(conditions.collect::<Result<_, _>>()?)?;
    rules.entry(call).or_default().push(rule);
    Ok(())
}
