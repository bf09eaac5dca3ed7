//! promtool checks recording rules and alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use regex::Regex;
use serde::Deserialize;

use super::{exported, files, read, root, unknown_metrics};

const RULES: &str = "helm/tickfleet/rules";
const CASES: &str = "tests/prometheus";
const RUNBOOKS: &str = "docs/operate/runbooks.md";
const PUBLIC: &str = "https://github.com/tickfleet/tickfleet/blob/main";

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    record: Option<String>,
    alert: Option<String>,
    expr: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct CaseFile {
    group_eval_order: Vec<String>,
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    alert_rule_test: Vec<AlertCase>,
}

#[derive(Deserialize)]
struct AlertCase {
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<serde::de::IgnoredAny>,
}

fn parsed<T: serde::de::DeserializeOwned>(folder: &str) -> Vec<T> {
    let parse = |path: &PathBuf| {
        let read: Result<T, _> = serde_saphyr::from_str(&read(path));
        read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files(folder, "yaml").iter().map(parse).collect()
}

fn groups() -> Vec<Group> {
    parsed::<RuleFile>(RULES).into_iter().flat_map(|file| file.groups).collect()
}

fn rules() -> Vec<Rule> {
    groups().into_iter().flat_map(|group| group.rules).collect()
}

fn alerts() -> BTreeMap<String, Rule> {
    rules().into_iter().filter_map(|rule| Some((rule.alert.clone()?, rule))).collect()
}

fn promtool(arguments: &[&str], files: &[PathBuf]) {
    let run = match Command::new("promtool").args(arguments).args(files).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("promtool is not on the PATH; Debian has it in the package prometheus: make prepare")
        }
        run => run.unwrap(),
    };
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "promtool {arguments:?}:\n{said}");
}

#[test]
fn promtool_accepts_every_rule() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &files(RULES, "yaml"));
}

#[test]
fn every_alert_fires_when_it_should_and_not_otherwise() {
    promtool(&["test", "rules"], &files(CASES, "yaml"));
}

#[test]
fn every_alert_has_a_firing_and_a_silent_test_case() {
    let mut fires = BTreeSet::new();
    let mut keeps_still = BTreeSet::new();
    for case in parsed::<CaseFile>(CASES).into_iter().flat_map(|file| file.tests) {
        for AlertCase { alertname, exp_alerts } in case.alert_rule_test {
            if exp_alerts.is_empty() {
                keeps_still.insert(alertname)
            } else {
                fires.insert(alertname)
            };
        }
    }
    let alerts: BTreeSet<String> = alerts().into_keys().collect();
    assert_eq!(fires, alerts, "alerts that a case lets fire");
    assert_eq!(keeps_still, alerts, "alerts that a case keeps from firing");
}

/// Without this order, promtool may evaluate alerts before the recordings that they read.
#[test]
fn test_cases_evaluate_recording_rules_first_and_cover_every_group() {
    let all: BTreeSet<String> = groups().into_iter().map(|group| group.name).collect();
    for file in parsed::<CaseFile>(CASES) {
        assert_eq!(file.group_eval_order.first().unwrap(), "tickfleet.recording");
        assert_eq!(file.group_eval_order.into_iter().collect::<BTreeSet<_>>(), all);
    }
}

#[test]
fn every_alert_has_a_severity_and_a_complete_runbook() {
    let page = read(RUNBOOKS);
    let placeholder = Regex::new(r"\{\{.*?\}\}").unwrap();
    for (name, rule) in alerts() {
        assert!(name.starts_with("Tickfleet"), "{name}");
        let severity = rule.labels["severity"].as_str();
        assert!(matches!(severity, "page" | "ticket"), "{name}: {severity}");
        let anchor = name.to_lowercase();
        assert_eq!(rule.annotations["runbook_url"], format!("{PUBLIC}/{RUNBOOKS}#{anchor}"));
        for (key, words) in [("summary", 3..=12), ("description", 5..=30)] {
            let text = placeholder.replace_all(&rule.annotations[key], "x");
            assert!(words.contains(&text.split_whitespace().count()), "{name}: {key}: {text}");
        }
        let section = page.split(&format!("\n### {name}\n")).nth(1).unwrap_or_else(|| panic!("no runbook of {name}"));
        let section = section.split("\n#").next().unwrap_or_default();
        let head = format!("\n**Severity:** {severity} ([rule](../reference/alerts.md#{anchor}))\n");
        let parts = [
            head.as_str(),
            "\n**Users notice:** ",
            "\n```sh\n",
            "\n**Cause:** ",
            "\n**Fix:** ",
            "\n**Wake someone:** ",
        ];
        let places: Vec<Option<usize>> = parts.iter().map(|part| section.find(part)).collect();
        assert!(places.iter().all(Option::is_some), "{name}: {parts:?} are at {places:?}");
        assert!(places.is_sorted(), "{name}: {parts:?} are at {places:?}");
    }
}

#[test]
fn every_runbook_belongs_to_an_alert() {
    let page = read(RUNBOOKS);
    let headings: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### Tickfleet"))
        .map(|name| format!("Tickfleet{name}"))
        .collect();
    assert_eq!(headings, alerts().into_keys().collect());
}

#[test]
fn no_alert_or_scaling_rule_counts_capped_turns() {
    for rule in rules() {
        let name = rule.alert.or(rule.record).unwrap();
        assert!(!rule.expr.contains("parked_capped"), "{name}");
        // An expression must name a state, or it would cover `parked_capped`. The two recordings by state are exempt.
        let by_state = rule.expr.contains("by (namespace, state)") && name.contains("namespace_state:");
        for gauge in ["tickfleet_backlog", "tickfleet_oldest_age_seconds"] {
            let all_states = Regex::new(&format!(r"{gauge}(:max)?([^_:a-z{{]|$|\{{[^}}]*\}})")).unwrap();
            for found in all_states.find_iter(&rule.expr) {
                assert!(by_state || found.as_str().contains("state="), "{name}: {}", found.as_str());
            }
        }
    }
}

#[test]
fn rules_use_only_exported_metrics_and_recorded_values() {
    let exported = exported();
    let recorded: BTreeSet<String> = rules().into_iter().filter_map(|rule| rule.record).collect();
    let colons = Regex::new(r"\b[a-z_]+:[a-z_]+:[a-z_0-9]+\b").unwrap();
    for rule in rules() {
        let name = rule.alert.or(rule.record).unwrap();
        assert_eq!(unknown_metrics(&rule.expr, &exported), Vec::<String>::new(), "{name}");
        for found in colons.find_iter(&rule.expr) {
            assert!(recorded.contains(found.as_str()), "{name}: nobody records {}", found.as_str());
        }
    }
    assert!(root().join(RULES).is_dir());
}
