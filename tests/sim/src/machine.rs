//! What simulated processes see of their machine: its clocks, its chance, their number. The C library's functions are
//! replaced in every binary that links this crate: inside a simulated process they answer from the simulation, and
//! anywhere else they ask the kernel. So the code under test needs no clock or chance of its own to be injected, and a
//! library that asks for the time by itself gets the simulated one, too.
#![allow(unsafe_code, reason = "functions of the C library are replaced, with their signatures")]

use std::cell::Cell;

/// What a process sees while it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Time since the machine was started, ns.
    pub(crate) monotonic_ns: i64,
    /// Time since the epoch, ns, by the machine's own clock.
    pub(crate) wall_ns: i64,
    /// State of the generator behind `getrandom`.
    pub(crate) chance: u64,
}

thread_local! {
    // Without a destructor or a first initialisation: it is read from within the C library's callers.
    static MACHINE: Cell<Option<Machine>> = const { Cell::new(None) };
}

/// The number of every simulated process.
const PID: libc::pid_t = 4_711;

/// Runs `inside` on a simulated machine. Gives what it answers, and the machine as it is afterwards.
pub(crate) fn on<T>(machine: Machine, inside: impl FnOnce() -> T) -> (T, Machine) {
    MACHINE.set(Some(machine));
    let answer = inside();
    (answer, MACHINE.replace(None).unwrap_or(machine))
}

/// One step of splitmix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `bytes` by the machine's chance; none outside of a simulated process.
fn fill(bytes: &mut [u8]) -> Option<isize> {
    let mut machine = MACHINE.get()?;
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next(&mut machine.chance).to_le_bytes()[..chunk.len()]);
    }
    MACHINE.set(Some(machine));
    isize::try_from(bytes.len()).ok()
}

/// Asks the kernel. The C library's own `syscall` is replaced below, so this is the instruction itself.
///
/// # Safety
/// As of the system call.
unsafe fn ask_kernel(number: i64, args: [i64; 6]) -> i64 {
    let answer: i64;
    // SAFETY: the calling convention of Linux on x86-64; the caller answers for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&answer) {
        // SAFETY: the place of this thread's error number is always there.
        unsafe { *libc::__errno_location() = i32::try_from(-answer).unwrap_or(libc::EIO) };
        return -1;
    }
    answer
}

/// # Safety
/// As of the C library: `out` points to a `timespec`.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, out: *mut libc::timespec) -> libc::c_int {
    let Some(machine) = MACHINE.get() else {
        // SAFETY: the system call has the function's own arguments.
        return unsafe { ask_kernel(libc::SYS_clock_gettime, [clock.into(), out as i64, 0, 0, 0, 0]) } as libc::c_int;
    };
    let ns = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => machine.wall_ns,
        _ => machine.monotonic_ns,
    };
    // SAFETY: the caller gives a valid place, as the C library demands.
    unsafe { *out = libc::timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) } };
    0
}

/// # Safety
/// As of the C library: `buffer` points to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, flags: libc::c_uint) -> isize {
    // SAFETY: the caller gives that many valid bytes, as the C library demands.
    let filled = fill(unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) });
    // SAFETY: the system call has the function's own arguments.
    let ask = || unsafe { ask_kernel(libc::SYS_getrandom, [buffer as i64, length as i64, flags.into(), 0, 0, 0]) };
    filled.unwrap_or_else(|| ask() as isize)
}

/// The C library's function takes any number of arguments. On x86-64 they arrive in the same places as six do, and what
/// the caller has not given is not looked at by the kernel.
///
/// # Safety
/// As of the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(number: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64) -> i64 {
    if number == libc::SYS_getrandom {
        // SAFETY: the caller answers for the arguments.
        return unsafe { getrandom(a as *mut libc::c_void, b as usize, c as libc::c_uint) } as i64;
    }
    // SAFETY: the caller answers for the arguments.
    unsafe { ask_kernel(number, [a, b, c, d, e, f]) }
}

#[unsafe(no_mangle)]
extern "C" fn getpid() -> libc::pid_t {
    if MACHINE.get().is_some() {
        return PID;
    }
    // SAFETY: the system call takes nothing.
    (unsafe { ask_kernel(libc::SYS_getpid, [0; 6]) }) as libc::pid_t
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what is tested here are the machine's own clock and chance")]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    use super::*;

    const MACHINE: Machine = Machine { monotonic_ns: 5_000_000_000, wall_ns: 1_700_000_000_000_000_000, chance: 7 };

    #[test]
    fn time_chance_and_number_are_the_simulated_ones_inside_and_the_real_ones_outside() {
        let look = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
            (Instant::now(), since, std::process::id())
        };
        let (one, _) = on(MACHINE, look);
        let (two, _) = on(Machine { monotonic_ns: 5_000_001_000, ..MACHINE }, look);
        assert_eq!((one.1, one.2), (1_700_000_000_000_000_000, 4_711));
        assert_eq!((two.0 - one.0).as_nanos(), 1_000);
        let real = look();
        assert!(real.1 > one.1 && real.2 != one.2, "{real:?}");
    }

    #[test]
    fn a_thread_that_begins_inside_hashes_in_the_same_way_each_time() {
        let hash = || {
            let thread = std::thread::spawn(|| on(MACHINE, || (RandomState::new().hash_one(1), rand_word())).0);
            thread.join().unwrap()
        };
        assert_eq!(hash(), hash());
    }

    fn rand_word() -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the bytes are there.
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
        u64::from_le_bytes(bytes)
    }
}
