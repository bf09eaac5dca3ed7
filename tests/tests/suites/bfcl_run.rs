//! Runs every call of the leaderboard through a real Redis, schedulers and workers.

use std::time::Duration;

use serde_json::Value;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_store::{Keys, StoreOptions};
use tickfleet_tests::bfcl::{self, Bfcl};
use tickfleet_tests::bfcl_course::{Course, agents, names_problem, outcomes};
use tickfleet_tests::bfcl_tools::registered;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inbox::submit_all;
use tokio::time::Instant;

const SILENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_leaderboard_call_gets_one_correct_result() {
    let Some(data) = bfcl::load_unless_skipped().unwrap() else { return };
    let fleet = Fleet::start(Plan {
        schedulers: 2,
        workers: 2,
        agents: agents(),
        // Some turns wait for a window, but no turn waits for a day.
        caps: DefaultCaps {
            tick_ms: 100,
            calls_per_tick: 10,
            max_actions_per_day: 1_000_000,
            ..DefaultCaps::default()
        },
        // With this lease, a late heartbeat does not look like a death.
        store: StoreOptions { lease_ms: 10_000, ..StoreOptions::default() },
        // The leaderboard has its own `echo`, so the standard `echo` is left out.
        standard_tools: false,
        registered: data.tools().iter().map(registered).collect(),
        ..Plan::default()
    })
    .await;
    let started = Instant::now();
    let mut course = Course::new(&data);
    submit_all(&fleet.server, fleet.store.keys(), &course.begin()).await;
    run(&fleet, &mut course).await;
    eprintln!("{} turns in {:.1?}", course.turns(), started.elapsed());
    assert_eq!(fleet.inbox("box").await.total().await, course.turns(), "replies in all");
    judge(&data, &course);
    fleet.stop().await;
}

async fn run(fleet: &Fleet, course: &mut Course) {
    let keys: &Keys = fleet.store.keys();
    let mut inbox = fleet.inbox("box").await;
    while course.answered() < course.turns() {
        let replies = inbox.next(SILENCE).await;
        assert!(!replies.is_empty(), "{SILENCE:?} without a reply; missing: {:?}", course.missing());
        let next: Vec<Value> = replies.into_iter().filter_map(|reply| course.take(reply)).collect();
        submit_all(&fleet.server, keys, &next).await;
    }
}

fn judge(data: &Bfcl, course: &Course) {
    let results = course.results();
    let mut invalid = [0; 3];
    for (id, turn, results) in &results {
        for (((tool, arguments), valid), result) in turn.calls.iter().zip(&turn.valid).zip(results.iter()) {
            if *valid {
                assert_eq!(
                    (result["outcome"].as_str(), &result["output"]),
                    (Some("ok"), arguments),
                    "{id}: {tool}: {result}"
                );
                continue;
            }
            let problem = data.judge(tool, arguments).unwrap().unwrap();
            assert_eq!(result["outcome"], "invalid_arguments", "{id}: {tool}");
            assert!(names_problem(result, &problem), "{id}: {tool} breaks {problem:?}: {result}");
            let kind = if turn.category.starts_with("multi_turn") {
                1
            } else {
                usize::from(turn.category.starts_with("simple_java")) * 2
            };
            invalid[kind] += 1;
        }
    }
    let counts = outcomes(results.iter().flat_map(|(.., results)| results.iter()));
    eprintln!("outcomes: {counts:?}");
    assert_eq!(counts.values().sum::<usize>(), 3_152 + 150 + 4_625);
    assert_eq!(invalid, [24, 4, 18], "invalid calls: single-turn, multi-turn, Java and JavaScript");
}
