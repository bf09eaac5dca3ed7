//! Each rule that a script keeps, switched off: the interleavings must notice. A guard that nothing notices is
//! either not tested or not needed.
//!
//! Here are the rules that scripts keep. Of the rules that the processes keep (7: send only while the heartbeat is
//! fresh; 10: a turn in the wrong shard; 12: beat first, then lease; 16: read one priority at a time) the tests are
//! with the scheduler and the worker; rule 13 and what chance rarely reaches is in `targeted`.

use tickfleet_store::Scripts;
use tickfleet_testkit::RedisServer;
use tickfleet_testkit::guards::{
    Guard, LIMITS, RULE_17, RULE_22, RULES_1_TO_3, RULES_4_TO_6, RULES_7_AND_8, RULES_9_TO_12, RULES_13_AND_20,
    RULES_14_TO_16, RULES_18_AND_21, TASKS,
};

use super::game::Table;
use super::play;

/// In how many interleavings each must be noticed.
const INTERLEAVINGS_MAX: u64 = 4_000;
/// Interleavings that have noticed a guard before: they are looked at first, and the others follow. A line: the seed, and what
/// is switched off.
const NOTICED: &str = include_str!("noticed.txt");

fn noticed_before(what: &str) -> Option<u64> {
    let of = |line: &'static str| line.split_once(' ').filter(|(_, of)| *of == what)?.0.parse().ok();
    NOTICED.lines().find_map(of)
}

async fn each_is_noticed(guards: &[Guard]) {
    let server = RedisServer::start().await;
    let mut missed = Vec::new();
    for (rule, what, from, to) in guards {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let mut table = Table::new(&server.url(), scripts).await;
        let mut noticed = None;
        for seed in noticed_before(what).into_iter().chain(0..INTERLEAVINGS_MAX) {
            if let Err(violation) = play(&mut table, seed).await {
                assert!(!violation.contains("cannot be reached"), "{violation}");
                noticed = Some((seed, violation));
                break;
            }
        }
        match noticed {
            Some((seed, violation)) => {
                println!("rule {rule}, {seed} {what}: {}", violation.lines().next().unwrap_or_default());
            }
            None => missed.push(format!("rule {rule}: {what}")),
        }
    }
    assert!(missed.is_empty(), "not noticed in {INTERLEAVINGS_MAX} interleavings:\n{}", missed.join("\n"));
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_1_to_3_is_noticed() {
    each_is_noticed(RULES_1_TO_3).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_4_to_6_is_noticed() {
    each_is_noticed(RULES_4_TO_6).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_7_and_8_is_noticed() {
    each_is_noticed(RULES_7_AND_8).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_9_to_12_is_noticed() {
    each_is_noticed(RULES_9_TO_12).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_13_and_20_is_noticed() {
    each_is_noticed(RULES_13_AND_20).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_14_to_16_is_noticed() {
    each_is_noticed(RULES_14_TO_16).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rule_17_is_noticed() {
    each_is_noticed(RULE_17).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rules_18_and_21_is_noticed() {
    each_is_noticed(RULES_18_AND_21).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_rule_22_is_noticed() {
    each_is_noticed(RULE_22).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_tasks_is_noticed() {
    each_is_noticed(TASKS).await;
}

#[tokio::test]
async fn switching_off_a_guard_of_limits_is_noticed() {
    each_is_noticed(LIMITS).await;
}

#[test]
fn the_guards_of_the_program_are_where_its_sabotage_looks_for_them() {
    for script in ["sabotage.py", "sabotaged.py"] {
        let path = format!("{}/{script}", env!("CARGO_MANIFEST_DIR"));
        let looked = std::process::Command::new("python3").args([&path, "--check"]).output().unwrap();
        let said = [looked.stdout, looked.stderr].concat();
        assert!(looked.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}
