#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use prometheus::proto::MetricType;

use super::catalogue::{ALL, LabelValues, MetricKind, PREFIX, PROCESS};
use super::*;

/// These labels would have unbounded values, or Prometheus sets them itself.
const FORBIDDEN_LABELS: [&str; 16] = [
    "tenant", "agent", "turn", "task", "call", "pod", "slice", "consumer", "worker", "id", "instance", "job", "inbox",
    "reply_to", "shard", "le",
];

/// For 500 tools with every outcome. The page `docs/reference/metrics.md` states this number.
const SERIES_MAX: usize = 500 * 40 + 2_500;

fn samples(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no line {line:?} in:\n{text}");
}

#[test]
fn a_scrape_shows_the_recorded_events() {
    let metrics = Metrics::new().unwrap();
    metrics.admitted(Decision::Queued, 3);
    metrics.call_ended("search", Outcome::Ok, Some(Duration::from_millis(20)));
    metrics.call_ended("search", Outcome::Denied, None);
    metrics.fenced("settle");
    metrics.refused("unknown_agent");
    metrics.refused("a code that nobody foresaw");
    metrics.watch_slots(|| Some((2, 8)));
    metrics.watch_slots(|| Some((1, 4)));
    metrics.watch_slots(|| None);
    let server = |name: &str, up, quarantined| McpServer { name: name.into(), up, quarantined };
    metrics.watch_mcp(move || vec![server("notes", true, 2), server("files", false, 0)]);
    metrics.sandbox_found([("basic".to_owned(), true), ("strict".to_owned(), false)], 1);
    metrics.ticked(0, Duration::from_millis(2), Duration::from_secs(3));
    metrics.ticked(1, Duration::from_millis(2), Duration::ZERO);
    let text = metrics.render();
    for line in [
        "tickfleet_turns_admitted_total{decision=\"queued\"} 3",
        "tickfleet_calls_total{outcome=\"ok\",tool=\"search\"} 1",
        "tickfleet_calls_total{outcome=\"denied\",tool=\"search\"} 1",
        "tickfleet_call_duration_seconds_count{tool=\"search\"} 1",
        "tickfleet_fenced_total{verb=\"settle\"} 1",
        "tickfleet_turns_rejected_total{reason=\"unknown_agent\"} 1",
        "tickfleet_turns_rejected_total{reason=\"other\"} 1",
        "tickfleet_slots_busy 3",
        "tickfleet_mcp_server_up{server=\"files\"} 0",
        "tickfleet_mcp_server_up{server=\"notes\"} 1",
        "tickfleet_mcp_tools_quarantined{server=\"notes\"} 2",
        "tickfleet_sandbox_level_held{level=\"basic\"} 1",
        "tickfleet_sandbox_level_held{level=\"strict\"} 0",
        "tickfleet_sandbox_tools_refused 1",
        "tickfleet_slots 12",
        "tickfleet_tick_lag_seconds 3",
        "tickfleet_tick_duration_seconds_count 2",
    ] {
        has(&text, line);
    }
    assert!(text.contains("tickfleet_build_info{version=\""));
    assert!(text.contains("process_cpu_seconds_total"));
}

#[test]
fn gateway_metrics_count_requests_by_status_and_rejections_by_reason() {
    let metrics = Metrics::of(ProcessRole::Gateway).unwrap();
    let gateway = &metrics.gateway;
    for status in [200, 202, 401, 429, 503] {
        gateway.answered("submit", status, Duration::from_millis(2));
        gateway.refused(status);
    }
    gateway.over_rate();
    gateway.auth_failure_rate();
    gateway.answered("a path that nobody foresaw", 404, Duration::ZERO);
    gateway.gone("submit_wait");
    gateway.mcp_called("task");
    gateway.watch_waiting(|| 7);
    let open = [gateway.stream(), gateway.stream()];
    drop(gateway.stream());
    let text = metrics.render();
    for line in [
        "tickfleet_gateway_requests_total{request=\"submit\",status=\"2xx\"} 2",
        "tickfleet_gateway_requests_total{request=\"submit\",status=\"4xx\"} 2",
        "tickfleet_gateway_requests_total{request=\"submit\",status=\"5xx\"} 1",
        "tickfleet_gateway_requests_total{request=\"other\",status=\"4xx\"} 1",
        "tickfleet_gateway_requests_total{request=\"submit_wait\",status=\"client_closed\"} 1",
        "tickfleet_gateway_request_duration_seconds_count{request=\"submit\"} 5",
        "tickfleet_gateway_rejected_total{reason=\"key\"} 1",
        "tickfleet_gateway_rejected_total{reason=\"busy\"} 1",
        "tickfleet_gateway_rejected_total{reason=\"unavailable\"} 1",
        "tickfleet_gateway_rejected_total{reason=\"forbidden\"} 0",
        "tickfleet_gateway_rejected_total{reason=\"rate\"} 1",
        "tickfleet_gateway_mcp_calls_total{response=\"task\"} 1",
        "tickfleet_gateway_waiting 7",
        "tickfleet_gateway_streams 2",
    ] {
        has(&text, line);
    }
    drop(open);
    has(&metrics.render(), "tickfleet_gateway_streams 0");
    assert!(!text.contains("tickfleet_slots"), "it has no slots");
}

#[test]
fn counters_start_at_zero_for_every_known_label() {
    let metrics = Metrics::new().unwrap();
    metrics.tools_known(["search"]);
    let text = metrics.render();
    for line in [
        "tickfleet_state_lost_total 0",
        "tickfleet_turns_rejected_total{reason=\"tenant_queue_full\"} 0",
        "tickfleet_redis_errors_total{verb=\"commit\"} 0",
        "tickfleet_calls_total{outcome=\"outcome_unknown\",tool=\"other\"} 0",
        "tickfleet_calls_total{outcome=\"outcome_unknown\",tool=\"search\"} 0",
        "tickfleet_config_reloads_total{result=\"rejected\"} 0",
    ] {
        has(&text, line);
    }
}

/// The time after the given number of seconds from now, in ms since the epoch.
fn in_seconds(seconds: i64) -> i64 {
    i64::try_from(Duration::from_secs_f64(seconds_since_epoch()).as_millis()).unwrap() + seconds * 1_000
}

#[test]
fn values_missing_from_redis_are_absent_not_zero() {
    let metrics = Metrics::new().unwrap();
    let waiting = Backlog { count: 7, oldest: Some(Duration::from_secs(5)) };
    let mut scraped = RedisScrape {
        backlog: vec![(WorkStage::Ready, waiting), (WorkStage::Dead, Backlog::default())],
        memory_used: 10,
        memory_max: 100,
        pressure: true,
        unsealed: Some(Duration::from_secs(7)),
        shard_times_ms: vec![in_seconds(20), in_seconds(-7_200)],
    };
    metrics.scraped(Some(&scraped));
    let text = metrics.render();
    has(&text, "tickfleet_backlog{state=\"ready\"} 7");
    has(&text, "tickfleet_oldest_age_seconds{state=\"ready\"} 5");
    has(&text, "tickfleet_redis_memory_used_bytes 10");
    has(&text, "tickfleet_redis_memory_max_bytes 100");
    has(&text, "tickfleet_redis_pressure 1");
    has(&text, "tickfleet_audit_unsealed_age_seconds 7");
    let ahead = text.lines().find_map(|line| line.strip_prefix("tickfleet_shard_clock_ahead_seconds ")).unwrap();
    let ahead: f64 = ahead.parse().unwrap();
    assert!((-7_260.0..-7_199.0).contains(&ahead), "of two shards that which is furthest off: {ahead}");

    scraped.backlog.remove(0);
    metrics.scraped(Some(&scraped));
    assert!(!metrics.render().contains("tickfleet_backlog{state=\"ready\"}"));
    has(&metrics.render(), "tickfleet_backlog{state=\"dead\"} 0");

    metrics.scraped(None);
    for name in [
        "backlog",
        "oldest_age_seconds",
        "redis_memory_used_bytes",
        "redis_memory_max_bytes",
        "redis_pressure",
        "audit_unsealed_age_seconds",
        "shard_clock_ahead_seconds",
    ] {
        assert!(!metrics.render().contains(&format!("tickfleet_{name}")), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failover_counts_once_and_a_missing_primary_shows_its_duration() {
    let metrics = Metrics::new().unwrap();
    assert!(!metrics.render().contains("tickfleet_redis_primary_missing_seconds"), "no sentinels were asked");
    metrics.primary_searched("fleet", Some("a:1"));
    has(&metrics.render(), "tickfleet_redis_primary_missing_seconds 0");
    has(&metrics.render(), "tickfleet_redis_primary_moves_total 0");
    metrics.primary_searched("fleet", None);
    tokio::time::advance(Duration::from_secs(3)).await;
    // This is the same outage.
    metrics.primary_searched("fleet", None);
    has(&metrics.render(), "tickfleet_redis_primary_missing_seconds 3");
    for _ in 0..4 {
        // Each connection finds the new primary separately.
        metrics.primary_searched("fleet", Some("b:1"));
    }
    has(&metrics.render(), "tickfleet_redis_primary_missing_seconds 0");
    has(&metrics.render(), "tickfleet_redis_primary_moves_total 1");
    metrics.primary_searched("fleet", None);
    metrics.primary_searched("fleet", Some("b:1"));
    has(&metrics.render(), "tickfleet_redis_primary_moves_total 1");
    // Each shard of a cluster has its own primary.
    metrics.primary_searched("slot 1", Some("a:1"));
    metrics.primary_searched("slot 2", None);
    tokio::time::advance(Duration::from_secs(2)).await;
    metrics.primary_searched("slot 1", Some("a:1"));
    has(&metrics.render(), "tickfleet_redis_primary_missing_seconds 2");
    has(&metrics.render(), "tickfleet_redis_primary_moves_total 1");
}

#[test]
fn one_configuration_is_shown_at_a_time() {
    let metrics = Metrics::new().unwrap();
    metrics.config_in_force("0123456789abcdef", 3);
    has(&metrics.render(), "tickfleet_config_last_reload_successful 1");
    metrics.config_reloaded(false);
    has(&metrics.render(), "tickfleet_config_last_reload_successful 0");
    metrics.config_in_force("fedcba9876543210", 4);
    metrics.config_admits(3, 2);
    has(&metrics.render(), "tickfleet_config_agents 3");
    has(&metrics.render(), "tickfleet_config_tenants 2");
    metrics.tool_lists_omitted(2);
    has(&metrics.render(), "tickfleet_tool_lists_omitted 2");
    metrics.config_reloaded(true);
    let text = metrics.render();
    has(&text, "tickfleet_config_info{digest=\"fedcba987654\"} 1");
    assert!(!text.contains("0123456789ab"), "{text}");
    has(&text, "tickfleet_config_generation 4");
    // Another shard has a lower generation, because its configuration changed less often.
    metrics.config_in_force("fedcba9876543210", 2);
    has(&metrics.render(), "tickfleet_config_generation 4");
    has(&text, "tickfleet_config_last_reload_successful 1");
    has(&text, "tickfleet_config_reloads_total{result=\"ok\"} 1");
    has(&text, "tickfleet_config_reloads_total{result=\"rejected\"} 1");
    assert!(!text.contains("tickfleet_config_last_reload_success_timestamp_seconds 0\n"), "{text}");
}

/// Every event has happened, so every metric has a series.
fn busy(part: ProcessRole) -> Metrics {
    let metrics = Metrics::of(part).unwrap();
    for verb in labels::VERBS.iter() {
        metrics.redis_answered(verb, Some(Duration::ZERO));
    }
    metrics.primary_searched("fleet", None);
    metrics.loops(["turns", "tasks", "tick", "reap", "collect", "lease", "heartbeat"].map(|name| (name, 1.0)));
    let backlog = WorkStage::ALL.map(|place| (place, Backlog::default())).to_vec();
    metrics.scraped(Some(&RedisScrape {
        backlog,
        unsealed: Some(Duration::ZERO),
        shard_times_ms: vec![0],
        ..RedisScrape::default()
    }));
    metrics.config_in_force("0123456789abcdef", 1);
    metrics.redis_rejecting(None);
    metrics.call_ended("search", Outcome::Ok, Some(Duration::ZERO));
    metrics.model_asked("default", "ok");
    metrics.model_used("default", 1, 1, 1);
    metrics.task_step("plan");
    metrics.breaker("search", BreakerEvent::Opened);
    metrics.rule_denied("permissions.search.rules.short", RuleAction::Deny);
    metrics.approval(ApprovalEvent::Asked);
    metrics.gateway.answered("submit", 202, Duration::ZERO);
    metrics.watch_mcp(|| vec![McpServer { name: "notes".into(), up: true, quarantined: 0 }]);
    metrics.sandbox_found(labels::SANDBOX_LEVELS.map(|level| (level.to_owned(), true)), 0);
    // The metrics of MCP servers are read at a scrape.
    drop(metrics.render());
    metrics
}

#[test]
fn the_registry_exports_exactly_the_catalogue() {
    for part in
        [ProcessRole::Scheduler, ProcessRole::Worker, ProcessRole::Both, ProcessRole::Exporter, ProcessRole::Gateway]
    {
        let expected: BTreeSet<String> = ALL
            .iter()
            .filter(|def| builder::exported(part, def.by))
            .map(|def| format!("{PREFIX}{}", def.name))
            .chain(PROCESS.iter().map(|(name, _)| (*name).to_owned()))
            .collect();
        let found: BTreeSet<String> =
            busy(part).registry.gather().iter().map(|family| family.name().to_owned()).collect();
        assert_eq!(found, expected, "{part:?}");
    }
    let table: BTreeSet<&str> = ALL.iter().map(|def| def.name).collect();
    assert_eq!(table.len(), ALL.len(), "a name is in the catalogue twice");
}

#[test]
fn types_labels_and_help_match_the_catalogue() {
    for family in busy(ProcessRole::Both).registry.gather() {
        let Some(def) = ALL.iter().find(|def| family.name() == format!("{PREFIX}{}", def.name)) else { continue };
        assert_eq!(family.help(), def.help);
        let kind = match def.kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
            MetricKind::Histogram(_) => MetricType::HISTOGRAM,
        };
        assert_eq!(family.get_field_type(), kind, "{}", def.name);
        for metric in family.get_metric() {
            let found: BTreeSet<&str> = metric.get_label().iter().map(|pair| pair.name()).collect();
            assert_eq!(found, def.labels.iter().map(|(name, _)| *name).collect(), "{}", def.name);
            for pair in metric.get_label() {
                let values = def.labels.iter().find(|(name, _)| *name == pair.name()).unwrap().1;
                let fits = match values {
                    LabelValues::Words(words) => words().contains(&pair.value()),
                    LabelValues::Bounded(_) => true,
                };
                assert!(fits, "{}: {}={} is no word of the catalogue", def.name, pair.name(), pair.value());
            }
        }
    }
}

/// A name ends with a base unit, and only counters end with `_total`.
fn misnamed(name: &str, kind: MetricKind) -> Option<&'static str> {
    let has_any = |parts: &[&str]| name.split('_').any(|part| parts.contains(&part));
    if !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') || name.starts_with('_') {
        return Some("only small letters and _");
    }
    if name.ends_with("_total") != (kind == MetricKind::Counter) {
        return Some("_total is for counters, and for all of them");
    }
    if matches!(kind, MetricKind::Histogram(_)) && !name.ends_with("_seconds") && !name.ends_with("_bytes") {
        return Some("a histogram has a unit");
    }
    if has_any(&[
        "ms",
        "us",
        "ns",
        "milliseconds",
        "minutes",
        "hours",
        "days",
        "kb",
        "mb",
        "gb",
        "kib",
        "mib",
        "percent",
    ]) {
        return Some("units are base units: seconds, bytes, ratio");
    }
    let base = name.trim_end_matches("_total");
    if has_any(&["seconds", "bytes"]) && !base.ends_with("_seconds") && !base.ends_with("_bytes") {
        return Some("the unit goes last");
    }
    if ["_count", "_sum", "_bucket"].iter().any(|suffix| name.ends_with(suffix)) {
        return Some("this suffix belongs to histograms");
    }
    None
}

#[test]
fn names_have_base_units_last_and_total_on_counters_only() {
    for def in ALL {
        assert_eq!(misnamed(def.name, def.kind), None, "{}", def.name);
        assert!(def.help.ends_with('.') && def.help.starts_with(|c: char| c.is_uppercase() || c == '0' || c == '1'));
    }
    for (name, kind) in [
        ("calls", MetricKind::Counter),
        ("calls_total", MetricKind::Gauge),
        ("call_duration_ms", MetricKind::Gauge),
        ("call_duration", MetricKind::Histogram(&[1.0])),
        ("seconds_of_calls", MetricKind::Gauge),
        ("calls_count", MetricKind::Gauge),
        ("Calls_total", MetricKind::Counter),
    ] {
        assert!(misnamed(name, kind).is_some(), "{name} passes");
    }
}

#[test]
fn no_metric_has_an_unbounded_label() {
    for def in ALL {
        for (label, _) in def.labels {
            assert!(!FORBIDDEN_LABELS.contains(label), "{} has the label {label}", def.name);
        }
    }
}

#[test]
fn many_agents_and_tools_stay_within_the_series_limit() {
    let metrics = busy(ProcessRole::Both);
    metrics.tools_known((0..600).map(|n| format!("tool_{n}")).collect::<Vec<_>>().iter().map(String::as_str));
    for agent in 0..1_000 {
        let tool = format!("tool_{}", agent % 600);
        for outcome in Outcome::ALL {
            metrics.call_ended(&tool, outcome, Some(Duration::from_millis(1)));
            metrics.call_ended(&format!("made_up_by_{agent}"), Outcome::UnknownTool, None);
        }
        BreakerEvent::ALL.into_iter().for_each(|event| metrics.breaker(&tool, event));
        metrics.refused(&format!("code_{agent}"));
        for action in [RuleAction::Deny, RuleAction::Undecided, RuleAction::Shadow] {
            metrics.rule_denied(&format!("permissions.{tool}.rules[{agent}]"), action);
        }
    }
    metrics.watch_mcp(|| {
        (0..500).map(|n| McpServer { name: format!("server_{n:03}"), up: true, quarantined: n }).collect()
    });
    let text = metrics.render();
    let series = samples(&text).len();
    assert!(series <= SERIES_MAX, "{series} series, at most {SERIES_MAX} are allowed");
    assert!(series > 500 * 35, "{series}: the test makes fewer series than it should");
    assert!(!text.contains("made_up_by"));
}
