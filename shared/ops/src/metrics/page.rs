//! Keeps `docs/metrics.md` true: the page is written from the catalogue, and this test compares. To write it anew:
//! `TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet-ops the_page_of_metrics`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::Path;

use super::catalogue::{ALL, By, Def, Kind, PREFIX, PROCESS, Values};
use super::labels::{self, OTHER};

const HEAD: &str = "\
# Metrics

What every Tickfleet process answers on `/metrics`, in Prometheus' text format. This page is written from the code by
a test and compared with it in each run.

- A process exports what it can know: a worker has no backlog, a scheduler has no slots. So a metric that is absent
  everywhere means that such a process, or Redis, is away.
- An exporter is `tickfleet audit export --follow` or `tickfleet approvals notify`, a gateway `tickfleet gateway --metrics
  ADDRESS`. Both also export what is said to be exported by schedulers and workers.
- Every scheduler shows the backlog of the whole fleet. Take the maximum over them: `max by (state)
  (tickfleet_backlog)`. All counters and the workers' slots belong to their own process: sum those.
- The backlog, its ages and what is said of Redis' memory are asked of Redis during the scrape, in at most 0.9 s. While
  Redis does not answer they are absent, and `tickfleet_redis_up` is 0. They never keep an old value.
- Counters begin at zero with every value of their labels that is known beforehand, so `increase` sees the first event.
- No label names a tenant, an agent, a turn, a task, a call or a pod. Those are in logs, audit and `tickfleet explain`.
  The labels with most values from outside are `tool` and `rule`: tools that are configured, at most 500, and rules
  that were not met, at most 200; every other name is `other`. So 1,000 agents with 500 tools make fewer than 20,000 series a process, and an agent adds none. Where [`tracing.gen_ai`](operating.md#opentelemetrys-names) asks for it, `gen_ai_execute_tool_duration_seconds` comes on top, which is in no list below: 17 series a tool and outcome.
- Words that no list has are `other` too. Lists may grow with a version.

";

fn kind(def: &Def) -> &'static str {
    match def.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    }
}

fn by(def: &Def) -> &'static str {
    match def.by {
        By::Everyone => "schedulers, workers",
        By::Schedulers => "schedulers",
        By::Workers => "workers",
        By::Exporters => "exporters",
        By::Gateways => "gateways",
    }
}

fn labels(def: &Def) -> String {
    let label = |(name, values): &(&str, Values)| match values {
        Values::Words(_) => format!("`{name}`: [words](#{}-of-{})", name, anchor(def)),
        Values::Bounded(what) => format!("`{name}`: {what}"),
    };
    let labels: Vec<String> = def.labels.iter().map(label).collect();
    if labels.is_empty() { "–".to_owned() } else { labels.join("; ") }
}

fn anchor(def: &Def) -> String {
    format!("{PREFIX}{}", def.name)
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("## All metrics\n\n| Metric | Type | Labels | Exported by | Meaning |\n|---|---|---|---|---|\n");
    for def in ALL {
        writeln!(page, "| `{}` | {} | {} | {} | {} |", anchor(def), kind(def), labels(def), by(def), def.help).unwrap();
    }
    for (name, kind) in PROCESS {
        writeln!(page, "| `{name}` | {kind} | – | schedulers, workers | What the system says of the process. |")
            .unwrap();
    }
    page.push_str("\n## Words of labels\n");
    for def in ALL {
        for (label, values) in def.labels {
            let Values::Words(values) = values else { continue };
            let values: Vec<String> = values().iter().map(|word| format!("`{word}`")).collect();
            write!(page, "\n### `{label}` of `{}`\n\n{}\n", anchor(def), values.join(", ")).unwrap();
        }
    }
    page.push_str("\n## Buckets of histograms\n\nUpper bounds in seconds.\n\n| Metric | Buckets |\n|---|---|\n");
    for def in ALL {
        let Kind::Histogram(buckets) = def.kind else { continue };
        let buckets: Vec<String> = buckets.iter().map(ToString::to_string).collect();
        writeln!(page, "| `{}` | {} |", anchor(def), buckets.join(", ")).unwrap();
    }
    page
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a knob of this test, not of the product")]
fn the_page_of_metrics_is_what_the_code_exports() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = page();
    if std::env::var_os("TICKFLEET_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/metrics.md is not what the code exports; regenerate it with\n  TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet-ops the_page_of_metrics"
    );
}

#[test]
fn every_list_that_may_be_left_ends_with_other() {
    for list in [&labels::rejections()[..], &labels::RETRIES[..], &labels::FENCED[..], &labels::VERBS[..]] {
        assert_eq!(list.last(), Some(&OTHER));
    }
}
