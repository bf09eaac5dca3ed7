//! The benchmark, which starts its own fleet.

use crate::support::binary::tickfleet;

#[test]
fn a_short_bench_measures_turns_latency_and_redis_and_the_drain_of_a_boundary() {
    let short = ["bench", "--json", "--seconds", "1", "--steady-seconds", "1", "--rate", "50", "--agents", "300"];
    let report = tickfleet(&short).exits(0).json();
    for figure in ["/turns_per_s", "/raw_cycle_per_s", "/latency_ms/p50", "/redis_us_per_turn", "/redis_us_floor"] {
        let found = report.pointer(figure).and_then(serde_json::Value::as_f64);
        assert!(found.is_some_and(|found| found > 0.0), "{figure}: {report:#}");
    }
    let drained = tickfleet(&["bench", "--json", "--boundary", "50"]).exits(0).json();
    assert_eq!(drained["agents"], 50, "{drained}");
}
