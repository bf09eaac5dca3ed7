//! The history that Prometheus would have if the scrapes were one minute apart. `promtool test rules` evaluates the
//! chart's rules on it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};

use super::fleet::{Fleet, Scrape};
use super::{NAMESPACE, chart};

const MINUTE_S: u32 = 60;
const BEGAN: &str = "process_start_time_seconds";
/// An alert that fires in every phase, as proof that promtool evaluated the phase.
const ASKED: &str = "Asked";

pub struct History {
    asked_for: BTreeSet<String>,
    series: BTreeMap<String, Vec<Option<f64>>>,
    /// By member and reported start time: the start time by the clock of the history.
    began: BTreeMap<String, f64>,
    minutes: u32,
    phases: Vec<(&'static str, u32)>,
}

pub struct AlertResult {
    pub fired: Vec<(&'static str, BTreeSet<String>)>,
    /// The output of promtool, with the labels and annotations of the firing alerts.
    pub said: String,
}

impl History {
    pub fn new() -> Self {
        let metric = Regex::new(r"\b(?:tickfleet|process)_[a-z_]+").unwrap();
        let rules = rule_files().into_iter().map(|(_, text)| text).collect::<String>();
        let mut asked_for: BTreeSet<String> = metric.find_iter(&rules).map(|name| name.as_str().to_owned()).collect();
        asked_for.insert("up".to_owned());
        Self { asked_for, series: BTreeMap::new(), began: BTreeMap::new(), minutes: 0, phases: Vec::new() }
    }

    pub fn phase(&mut self, name: &'static str) {
        self.phases.push((name, self.minutes));
    }

    /// The scrape counts as one minute after the previous one.
    pub fn add(&mut self, fleet: &Fleet, scrape: &Scrape) {
        for (member, page) in fleet.members.iter().zip(&scrape.pages) {
            let added = format!("instance=\"{}\",job=\"{}\",namespace=\"{NAMESPACE}\"", member.instance, member.job);
            self.set(format!("up{{{added}}}"), f64::from(u8::from(page.is_some())));
            for (series, value) in page.iter().flatten() {
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                if !self.asked_for.contains(name) {
                    continue;
                }
                // The timestamp keeps the age that it had at the time of the scrape.
                let is_time = name.ends_with("_timestamp_seconds");
                let stated = value - scrape.at + f64::from(self.minutes * MINUTE_S);
                let value = match name {
                    // The start time stays as in the first scrape, so that the process ages by one minute per scrape.
                    BEGAN => *self.began.entry(format!("{} {value}", member.instance)).or_insert(stated),
                    _ if is_time => stated,
                    _ => *value,
                };
                let labels = labels.strip_suffix('}').unwrap();
                let comma = if labels.is_empty() || labels.ends_with(',') { "" } else { "," };
                self.set(format!("{name}{{{labels}{comma}{added}}}"), value);
            }
        }
        self.minutes += 1;
    }

    fn set(&mut self, series: String, value: f64) {
        let values = self.series.entry(series).or_default();
        values.resize(self.minutes as usize, None);
        values.push(Some(value));
    }

    /// In the notation of promtool. A series that is missing in later scrapes becomes stale.
    fn input(&self) -> Vec<Value> {
        let notation = |values: &Vec<Option<f64>>| {
            let mut words = Vec::new();
            let mut present = false;
            for minute in 0..self.minutes as usize {
                let value = values.get(minute).copied().flatten();
                words.push(match value {
                    Some(value) => value.to_string(),
                    None if present => "stale".to_owned(),
                    None => "_".to_owned(),
                });
                present = value.is_some();
            }
            words.join(" ")
        };
        self.series.iter().map(|(series, values)| json!({"series": series, "values": notation(values)})).collect()
    }

    fn spans(&self) -> Vec<(&'static str, u32, u32)> {
        let ends = self.phases.iter().skip(1).map(|(_, first)| *first).chain([self.minutes]);
        self.phases.iter().zip(ends).map(|((name, first), end)| (*name, *first, end - 1)).collect()
    }

    pub fn verdict(&self) -> AlertResult {
        let rules = rule_files();
        let names = |pattern: &str| {
            let pattern = Regex::new(pattern).unwrap();
            let found = rules.iter().flat_map(|(_, text)| pattern.captures_iter(text)).map(|found| found[1].to_owned());
            found.collect::<Vec<_>>()
        };
        // Recording rules are evaluated before the rules that use them.
        let (recorded, alerting): (Vec<_>, Vec<_>) =
            names(r"(?m)^ +- name: (\S+)$").into_iter().partition(|group| group.ends_with(".recording"));
        let groups = [recorded, alerting].concat();
        let fired = |(phase, first, last): &(&str, u32, u32)| {
            // Versions of Prometheus differ about the ends of a range, so the range is half a minute longer than the
            // phase.
            let span = (last - first) * MINUTE_S + MINUTE_S / 2;
            let firing = format!("group by (alertname) (last_over_time(ALERTS{{alertstate=\"firing\"}}[{span}s]))");
            let asked = format!("label_replace(vector(1), \"alertname\", \"{ASKED}\", \"\", \"\")");
            let reported = format!("label_replace({firing} or {asked}, \"phase\", \"{phase}\", \"\", \"\")");
            json!({"expr": reported, "eval_time": format!("{last}m"), "exp_samples": []})
        };
        let spans = self.spans();
        let alerts = names(r"(?m)^ +- alert: (\S+)$");
        let at_the_end = spans.iter().flat_map(|(_, _, last)| {
            alerts.iter().map(move |name| json!({"alertname": name, "eval_time": format!("{last}m"), "exp_alerts": []}))
        });
        let cases = json!({
            "rule_files": rules.iter().map(|(path, _)| path).collect::<Vec<_>>(),
            "group_eval_order": groups,
            "evaluation_interval": format!("{MINUTE_S}s"),
            "tests": [{
                "interval": format!("{MINUTE_S}s"),
                "input_series": self.input(),
                "promql_expr_test": spans.iter().map(fired).collect::<Vec<_>>(),
                "alert_rule_test": at_the_end.collect::<Vec<_>>(),
            }],
        });
        let said = promtool(&cases);
        let answer = Regex::new(r#"\{alertname="([^"]+)", phase="([^"]+)"\}"#).unwrap();
        let answers: BTreeSet<(&str, String)> =
            answer.captures_iter(&said).map(|a| (a.get(2).unwrap().as_str(), a[1].to_owned())).collect();
        let of = |phase: &'static str| {
            let reported = answers.iter().filter(|(of, _)| *of == phase).map(|(_, alert)| alert.clone());
            let mut fired: BTreeSet<String> = reported.collect();
            assert!(fired.remove(ASKED), "promtool says nothing of {phase:?}:\n{said}");
            (phase, fired)
        };
        let fired = self.phases.iter().map(|(phase, _)| of(phase)).collect();
        AlertResult { fired, said }
    }
}

fn rule_files() -> Vec<(String, String)> {
    let files = chart("rules").canonicalize().unwrap().read_dir().unwrap().map(|file| file.unwrap().path());
    files.map(|path| (path.to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The cases fail on purpose, because promtool lists the alerts only of failed cases.
fn promtool(cases: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cases.yaml");
    // JSON is valid YAML.
    std::fs::write(&file, cases.to_string()).unwrap();
    let run = match Command::new("promtool").args(["test", "rules"]).arg(&file).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("promtool is not on the PATH; Debian has it in the package prometheus: make prepare")
        }
        run => run.unwrap(),
    };
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}
