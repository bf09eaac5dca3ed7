//! Tests the benchmark. The benchmark starts its own fleet from the `tickfleet` program in the same folder.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tickfleet-bench")).args(args).output().unwrap()
}

fn report(args: &[&str]) -> serde_json::Value {
    let ended = bench(args);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn a_short_bench_measures_turns_latency_and_redis() {
    let short = ["--json", "--seconds", "1", "--steady-seconds", "1", "--rate", "50", "--agents", "300"];
    let measured = report(&short);
    for figure in ["/turns_per_s", "/raw_cycle_per_s", "/latency_ms/p50", "/redis_us_per_turn", "/redis_us_floor"] {
        let found = measured.pointer(figure).and_then(serde_json::Value::as_f64);
        assert!(found.is_some_and(|found| found > 0.0), "{figure}: {measured:#}");
    }
}

#[test]
fn the_bench_rejects_a_missing_program_with_a_reason() {
    let ended = bench(&["--tickfleet", "/nowhere/tickfleet"]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("/nowhere/tickfleet does not exist"), "{said}");
}
