//! A test compares `docs/reference/metrics.md` with the catalogue. To regenerate the page, run `TICKFLEET_WRITE_DOCS=1
//! cargo test -p tickfleet-ops the_page_of_metrics`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::Path;

use super::catalogue::{ALL, ExportedBy, LabelValues, MetricDef, MetricKind, PREFIX, PROCESS};
use super::labels::{self, OTHER};

const HEAD: &str = "\
<!-- Generated; to regenerate: TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet-ops the_page_of_metrics -->
# Metrics

Tickfleet processes serve these metrics on `/metrics`, in the text format of Prometheus. \
[Monitor and trace](../operate/monitoring.md) shows how to collect them, and which to watch.

- Exporters are `tickfleet audit export --follow` and `tickfleet approvals notify`. A gateway needs `--metrics ADDRESS`.
  Both also export the metrics of `schedulers, workers`.
- Every scheduler reports the backlog of the whole fleet: use `max by (state) (tickfleet_backlog)`. Counters and slots
  belong to one process: sum them.
- The backlog, its ages and the memory of Redis are read from Redis during the scrape, within 0.9 s. While Redis does
  not answer, they are absent and `tickfleet_redis_up` is 0.
- Counters start at zero for every known label value, so that `increase` detects the first event.
- No label names a tenant, agent, turn, task, call or pod. `tickfleet explain`, logs and the audit log do.
- A process has fewer than 40 series for each of at most 500 tools, and 2,500 others, with any number of agents. With
  [`tracing.gen_ai`](settings.md#tracing), workers also export the histogram
  `gen_ai_execute_tool_duration_seconds`, with 17 series for each tool and outcome.
- A value outside the lists below is `other`. Versions can add values.

";

fn kind(def: &MetricDef) -> &'static str {
    match def.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    }
}

fn by(def: &MetricDef) -> &'static str {
    match def.by {
        ExportedBy::Everyone => "schedulers, workers",
        ExportedBy::Schedulers => "schedulers",
        ExportedBy::Workers => "workers",
        ExportedBy::Exporters => "exporters",
        ExportedBy::Gateways => "gateways",
    }
}

fn labels(def: &MetricDef) -> String {
    let label = |(name, values): &(&str, LabelValues)| match values {
        LabelValues::Words(values) => format!("[`{name}`](#{name}-of-{})", anchor(first_with(name, &values()))),
        LabelValues::Bounded(what) => format!("`{name}`: {what}"),
    };
    let labels: Vec<String> = def.labels.iter().map(label).collect();
    if labels.is_empty() { "–".to_owned() } else { labels.join("; ") }
}

fn anchor(def: &MetricDef) -> String {
    format!("{PREFIX}{}", def.name)
}

fn first_with(label: &str, values: &[&str]) -> &'static MetricDef {
    let has =
        |(name, of): &(&str, LabelValues)| *name == label && matches!(of, LabelValues::Words(of) if of() == values);
    ALL.iter().find(|def| def.labels.iter().any(has)).unwrap()
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("## All metrics\n\n| Metric | Type | Labels | Exported by | Meaning |\n|---|---|---|---|---|\n");
    for def in ALL {
        writeln!(page, "| `{}` | {} | {} | {} | {} |", anchor(def), kind(def), labels(def), by(def), def.help).unwrap();
    }
    for (name, kind) in PROCESS {
        writeln!(page, "| `{name}` | {kind} | – | schedulers, workers | As the operating system reports it. |")
            .unwrap();
    }
    page.push_str("\n## Label values\n");
    for def in ALL {
        for (label, values) in def.labels {
            let LabelValues::Words(values) = values else { continue };
            let values = values();
            if first_with(label, &values).name != def.name {
                continue;
            }
            let lines: Vec<String> = values.chunks(8).map(|line| line.join("  ")).collect();
            write!(page, "\n### `{label}` of `{}`\n\n```text\n{}\n```\n", anchor(def), lines.join("\n")).unwrap();
        }
    }
    page.push_str("\n## Histogram buckets\n\nUpper bounds in seconds.\n\n| Metric | Buckets |\n|---|---|\n");
    for def in ALL {
        let MetricKind::Histogram(buckets) = def.kind else { continue };
        let buckets: Vec<String> = buckets.iter().map(ToString::to_string).collect();
        writeln!(page, "| `{}` | {} |", anchor(def), buckets.join(", ")).unwrap();
    }
    page
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a knob of this test, not of the product")]
fn the_page_of_metrics_is_what_the_code_exports() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = page();
    if std::env::var_os("TICKFLEET_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/metrics.md does not match the code; regenerate it with\n  \
         TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet-ops the_page_of_metrics"
    );
}

#[test]
fn every_open_label_list_ends_with_other() {
    for list in [&labels::rejections()[..], &labels::RETRIES[..], &labels::FENCED[..], &labels::VERBS[..]] {
        assert_eq!(list.last(), Some(&OTHER));
    }
}
