//! The simulator in continuous integration: a bounded number of games, every game that once failed, and the proof that
//! games repeat and that the oracle can fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;
use tickfleet_testkit::guards::{is_of_governance, is_of_sealing};

/// The first seeds, which are played in every run.
const GAMES: u64 = 8;
/// Guards that are switched off in every run of the tests: those whose games end first.
const SABOTAGED: usize = 12;

/// The first games in which calls are governed.
const GOVERNED: std::ops::Range<u64> = 2_000_001..2_000_003;
/// The first games whose audit log is sealed; their calls are governed, too.
const SEALED: std::ops::Range<u64> = 3_000_001..3_000_005;

/// Plays a game with these arguments more, and gives its verdict.
fn play(seed: u64, more: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickfleet-sim"));
    let output = command.args(["play", "--seed", &seed.to_string()]).args(more).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

fn is_well(seed: u64, why: &str) -> Value {
    let verdict = play(seed, &[]);
    assert_eq!(verdict["violations"], Value::Array(Vec::new()), "seed {seed} ({why}): make sim SEED={seed}");
    assert!(verdict["commands"].as_u64().unwrap() > 100, "{verdict}");
    verdict
}

#[test]
fn the_first_games_are_well() {
    for seed in 1..=GAMES {
        is_well(seed, "one of the first");
    }
}

#[test]
fn games_in_which_calls_are_governed_are_well() {
    for seed in GOVERNED {
        is_well(seed, "one in which calls are governed");
    }
}

/// The export of each verifies, anchors bear it out, it proves what was promised, and whatever is changed of it is found; where
/// one policy was in force, decided anew nothing differs; and what was found out of calls of which nobody knew is true.
#[test]
fn games_whose_audit_log_is_sealed_are_well() {
    let mut audited = [0; 4];
    for seed in SEALED {
        let verdict = is_well(seed, "one whose audit log is sealed");
        for (at, name) in ["sealed", "changed", "anew", "found_out"].into_iter().enumerate() {
            audited[at] += verdict["audited"][name].as_u64().unwrap();
        }
    }
    assert!(audited.iter().all(|count| *count > 0), "{audited:?}");
}

#[test]
fn games_that_once_failed_are_well() {
    let corpus = include_str!("../corpus.txt");
    let mut games = 0;
    for line in corpus.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (seed, why) = line.split_once(' ').unwrap();
        is_well(seed.parse().unwrap(), why);
        games += 1;
    }
    assert!(games > 0);
}

#[test]
fn a_game_repeats() {
    // Noting what is reached changes nothing.
    let (one, mut two) = (play(5, &[]), play(5, &["--coverage"]));
    assert!(two.as_object_mut().unwrap().remove("reached").is_some());
    assert_eq!(one, two);
    assert_ne!(one["digest"], play(6, &[])["digest"]);
}

#[test]
fn what_games_reach_of_the_scripts_is_told() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickfleet-sim"));
    let output = command.args(["run", "--games", "1", "--seconds", "600", "--coverage"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    for (verb, _) in tickfleet_store::Scripts::embedded().iter() {
        let row = said.lines().find(|line| line.split(' ').next() == Some(verb));
        let counts: Vec<usize> = row.unwrap().split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(counts.len() == 4 && counts[0] > 0 && counts[1] <= counts[0] && counts[3] <= counts[2], "{row:?}");
    }
    // Every fleet beats, and one game does not reach everything.
    let never_ran = |file: &str, line: &str| said.lines().any(|told| told.contains(file) && told.ends_with(line));
    assert!(!never_ran("recovery/beat.lua", "never ran: local began, run_id = epoch(now)"), "{said}");
    assert!(said.contains("never ran: ") && said.contains(" never went on: "), "{said}");
}

/// A line of `missed.txt`.
struct Missed {
    guard: usize,
    seed: u64,
    commands: u64,
}

/// The games that miss guards, those first that end first.
fn missed() -> Vec<Missed> {
    let line = |line: &str| {
        let mut words = line.split(' ').map(|word| word.parse::<u64>());
        let mut next = || words.next().unwrap().unwrap();
        let (guard, _rule, seed, _games, commands) = (next(), next(), next(), next(), next());
        Missed { guard: usize::try_from(guard).unwrap(), seed, commands }
    };
    let text = include_str!("../missed.txt");
    let mut missed: Vec<Missed> = text.lines().filter(|line| !line.starts_with('#')).map(line).collect();
    missed.sort_by_key(|missed| (missed.commands, missed.guard));
    missed
}

fn each_is_missed(missed: &[Missed]) {
    for Missed { guard, seed, .. } in missed {
        let verdict = play(*seed, &["--without", &guard.to_string()]);
        assert_ne!(verdict["violations"], Value::Array(Vec::new()), "seed {seed} without guard {guard}");
    }
}

#[test]
fn a_game_misses_a_guard_that_is_switched_off() {
    let of_others = |guard: usize| is_of_governance(guard) || is_of_sealing(guard);
    let missed: Vec<Missed> = missed().into_iter().filter(|it| !of_others(it.guard)).collect();
    each_is_missed(&missed[..SABOTAGED]);
}

#[test]
fn a_game_misses_a_guard_of_governance_that_is_switched_off() {
    let missed: Vec<Missed> = missed().into_iter().filter(|it| is_of_governance(it.guard)).collect();
    assert!(!missed.is_empty());
    each_is_missed(&missed);
}

#[test]
fn a_game_misses_a_guard_of_the_audit_log_that_is_switched_off() {
    let missed: Vec<Missed> = missed().into_iter().filter(|it| is_of_sealing(it.guard)).collect();
    assert!(!missed.is_empty());
    each_is_missed(&missed);
}
