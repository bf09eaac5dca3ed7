//! Alerts, rules and dashboards as files. `cli/tests/cli/operation/watched` tests them with a real Prometheus.

mod dashboards;
mod rules;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use regex::Regex;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = root().join(folder).read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    assert!(!found.is_empty(), "no .{extension} in {folder}");
    found.sort();
    found
}

/// Reads the names from the documentation. Another test checks that the page agrees with the code.
fn exported() -> BTreeSet<String> {
    let row = Regex::new(r"(?m)^\| `((?:tickfleet|process)_[a-z_]+)` \| (\w+) \|").unwrap();
    let page = read("docs/reference/metrics.md");
    let mut names = BTreeSet::new();
    for found in row.captures_iter(&page) {
        let name = &found[1];
        if &found[2] == "histogram" {
            names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        } else {
            names.insert(name.to_owned());
        }
    }
    assert!(names.len() > 40, "docs/reference/metrics.md is not read: {names:?}");
    names
}

/// Skips recording rules, which have colons in their names.
fn unknown_metrics(query: &str, exported: &BTreeSet<String>) -> Vec<String> {
    let name = Regex::new(r"[a-z_:]*\b(?:tickfleet|process)_[a-z_:0-9]+").unwrap();
    let named = name.find_iter(query).map(|found| found.as_str().to_owned());
    named.filter(|name| !name.contains(':') && !exported.contains(name)).collect()
}

#[test]
fn a_query_of_an_unexported_metric_is_found() {
    let exported = exported();
    let query = "sum by (namespace) (rate(tickfleet_calls_totals{tool=\"x\"}[5m])) / namespace:tickfleet_slots:sum \
                 + tickfleet_slots - process_open_fds + tickfleet_call_duration_seconds";
    assert_eq!(unknown_metrics(query, &exported), ["tickfleet_calls_totals", "tickfleet_call_duration_seconds"]);
}
