//! Games: a whole fleet runs on the store in memory, with crashes, pauses, lost replies and lost writes. An oracle
//! checks the guarantees.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "knobs of the games, documented beside them, and the time that they take"
)]

#[path = "games/executor.rs"]
mod executor;
#[path = "games/fleet.rs"]
mod fleet;
#[path = "games/governed.rs"]
mod governed;
#[path = "games/oracle.rs"]
mod oracle;
#[path = "games/watched.rs"]
mod watched;
#[path = "games/worker.rs"]
mod worker;

use fleet::{Game, Plan};

fn play(seeds: std::ops::Range<u64>, plan: Plan) {
    let mut polls = 0;
    let mut commits = 0;
    let mut conflicts = 0;
    let mut crashes = 0;
    let mut losses = 0;
    let mut excused = 0;
    let mut words = std::collections::BTreeMap::<String, u64>::new();
    let began = std::time::Instant::now();
    for seed in seeds {
        let mut game = Game::new(seed, plan);
        game.play();
        let violations = game.violations();
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        let oracle = game.oracle.lock().unwrap();
        polls += game.executor.polls;
        commits += oracle.commits;
        conflicts += oracle.conflicts;
        crashes += game.executor.crashes;
        losses += oracle.losses.len();
        excused += game.excused;
        for (word, count) in &game.words {
            *words.entry(word.clone()).or_default() += count;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{polls} steps, {commits} transactions, {conflicts} conflicts, {crashes} crashes, {losses} losses ({excused} excused) in \
         {seconds:.1} s: {:.0} steps/s; {words:?}",
        polls as f64 / seconds
    );
}

fn games(usual: u64) -> u64 {
    std::env::var("TICKFLEET_GAMES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn calm() -> Plan {
    Plan::calm()
}

fn crashes() -> Plan {
    Plan { crash: 30, pause: 60, ..calm() }
}

fn cancels() -> Plan {
    Plan { turns: 30, crash: 10, pause: 60, cancel_later: 60, ..calm() }
}

fn answers() -> Plan {
    Plan { crash: 10, pause: 20, refused: 20, unanswered: 20, ..calm() }
}

fn losses() -> Plan {
    Plan { crash: 3, pause: 20, lose: 10, ..calm() }
}

/// After each restart of the store, the only worker takes the lost turns again.
fn lone() -> Plan {
    Plan { workers: 1, pause: 10, lose: 25, advance: 500, ..calm() }
}

fn clocks() -> Plan {
    Plan { crash: 10, pause: 30, step: 10, short: 10, ..calm() }
}

fn governed() -> Plan {
    Plan { turns: 20, crash: 20, pause: 60, governed: true, ..calm() }
}

#[test]
fn a_calm_fleet_keeps_its_promises() {
    play(0..games(20), calm());
}

#[test]
fn a_fleet_that_crashes_keeps_its_promises() {
    play(1_000..1_000 + games(20), crashes());
}

#[test]
fn a_fleet_whose_turns_are_canceled_keeps_its_promises() {
    play(0..games(15), cancels());
}

#[test]
fn a_fleet_whose_store_loses_answers_keeps_its_promises() {
    play(2_000..2_000 + games(8), answers());
}

#[test]
fn a_fleet_whose_store_loses_its_last_writes_keeps_its_promises() {
    play(0..games(20), losses());
}

#[test]
fn a_lone_worker_that_takes_lost_turns_again_keeps_its_promises() {
    play(3_000..3_000 + games(20), lone());
}

#[test]
fn a_fleet_whose_store_has_a_bad_clock_and_little_memory_keeps_its_promises() {
    play(4_000..4_000 + games(20), clocks());
}

#[test]
fn a_fleet_keeps_its_promises_about_governed_calls() {
    play(5_000..5_000 + games(20), governed());
}

/// The removal of a guard must be detected within this number of games.
const DETECTED_WITHIN: u64 = 40;

type Detected = (&'static str, fn() -> Plan, u64);

/// A guard of the core, a plan, and the seed of the first game that fails without the guard. If a seed changes, raise
/// [`DETECTED_WITHIN`] to find the new one.
const MUTANTS: &[Detected] = &[
    ("limits_guard_the_room", crashes, 0),
    ("due_guards_the_version", crashes, 1),
    ("holder_guards_the_version", crashes, 8),
    ("advance_reads_recovered_calls", losses, 63),
    ("claim_guards_its_record", governed, 13),
    ("no_call_begins_during_a_report", losses, 128),
];

#[test]
fn games_detect_each_guard_that_is_missing() {
    let hook = std::panic::take_hook();
    // Do not print panics: without a guard, a game may also fail by a panic.
    std::panic::set_hook(Box::new(|_| {}));
    let undetected: Vec<&str> = MUTANTS
        .iter()
        .filter(|(mutant, plan, first)| {
            !(*first..*first + DETECTED_WITHIN).any(|seed| is_detected(mutant, seed, plan()))
        })
        .map(|(mutant, ..)| *mutant)
        .collect();
    std::panic::set_hook(hook);
    assert_eq!(undetected, Vec::<&str>::new());
}

fn is_detected(mutant: &'static str, seed: u64, plan: Plan) -> bool {
    let played = || {
        let mut game = Game::new(seed, plan);
        game.play();
        !game.violations().is_empty()
    };
    tickfleet_core::mutants::with(mutant, || {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(played)).unwrap_or(true)
    })
}
