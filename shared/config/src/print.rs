//! Prints the effective configuration as YAML.

use std::fmt::Write;

use super::Configuration;
use crate::document::errors::ConfigLocation;
use crate::document::tree::{Node, Value, join};
use crate::mask::{MASK, hides_number, masked};
use tickfleet_model::Redactor;

const COMMENT_COLUMN: usize = 48;

#[must_use]
pub fn print(configuration: &Configuration) -> String {
    let mut out = format!("# Policy digest: {}\n", configuration.digest);
    let redactor = &redactor(configuration);
    for tree in configuration.trees.settings.iter() {
        tree.entries()
            .iter()
            .for_each(|e| Printer { out: &mut out, origins: true, redactor }.member(&e.key, &e.node, "", 0));
    }
    for (name, text) in files(configuration, redactor) {
        let _ = write!(out, "\n# From {name}\n{text}");
    }
    out
}

fn files(configuration: &Configuration, redactor: &Redactor) -> Vec<(String, String)> {
    let trees = &configuration.trees;
    let files =
        [&trees.agents, &trees.tools, &trees.permissions, &trees.tenants, &trees.limits, &trees.models, &trees.mcp];
    let print = |tree: &Node| {
        let mut out = String::new();
        tree.entries()
            .iter()
            .for_each(|e| Printer { out: &mut out, origins: false, redactor }.member(&e.key, &e.node, "", 0));
        (file(&tree.place), out)
    };
    files.into_iter().flatten().map(print).collect()
}

fn redactor(configuration: &Configuration) -> Redactor {
    Redactor::new(&configuration.settings.audit.redact_keys)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrintedConfig {
    pub settings: Vec<PrintedSetting>,
    pub files: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrintedSetting {
    /// Such as `caps.tick`.
    pub path: String,
    pub value: String,
    pub origin: String,
}

#[must_use]
pub fn printed_parts(configuration: &Configuration) -> PrintedConfig {
    let mut settings = Vec::new();
    let redactor = &redactor(configuration);
    for tree in configuration.trees.settings.iter() {
        tree.entries().iter().for_each(|entry| leaves(&entry.key, &entry.node, "", redactor, &mut settings));
    }
    PrintedConfig { files: files(configuration, redactor), settings }
}

fn leaves(key: &str, node: &Node, path: &str, redactor: &Redactor, settings: &mut Vec<PrintedSetting>) {
    let path = join(path, key);
    match &node.value {
        Value::Mapping(entries) if !entries.is_empty() => {
            entries.iter().for_each(|entry| leaves(&entry.key, &entry.node, &path, redactor, settings));
        }
        _ => settings.push(PrintedSetting { value: flow(node, &path, redactor), origin: origin(&node.place), path }),
    }
}

fn file(place: &ConfigLocation) -> String {
    match place {
        ConfigLocation::BuiltIn { file, .. } => format!("the built-in {file}"),
        ConfigLocation::File { file, .. } => file.to_string(),
        ConfigLocation::Environment(name) => name.to_string(),
    }
}

struct Printer<'a> {
    out: &'a mut String,
    origins: bool,
    redactor: &'a Redactor,
}

// Writing to a String cannot fail, so results of `write!` are ignored.
impl Printer<'_> {
    fn member(&mut self, key: &str, node: &Node, path: &str, depth: usize) {
        let path = join(path, key);
        let indent = "  ".repeat(depth);
        let key = word(key);
        match &node.value {
            Value::Mapping(entries) if !entries.is_empty() => {
                let _ = writeln!(self.out, "{indent}{key}:");
                entries.iter().for_each(|entry| self.member(&entry.key, &entry.node, &path, depth + 1));
            }
            _ => {
                let line = format!("{indent}{key}: {}", flow(node, &path, self.redactor));
                match self.origins {
                    true => {
                        let _ = writeln!(self.out, "{line:COMMENT_COLUMN$} # {}", origin(&node.place));
                    }
                    false => {
                        let _ = writeln!(self.out, "{line}");
                    }
                }
            }
        }
    }
}

fn origin(place: &ConfigLocation) -> String {
    match place {
        ConfigLocation::BuiltIn { .. } => "default".into(),
        ConfigLocation::File { file, line, .. } => format!("{file}:{line}"),
        ConfigLocation::Environment(name) => format!("{name} (environment)"),
    }
}

fn flow(node: &Node, path: &str, redactor: &Redactor) -> String {
    match &node.value {
        Value::Text(text) => word(&masked(text, path, redactor)),
        Value::List(items) => {
            let items = items.iter().enumerate();
            let items = items.map(|(at, item)| flow(item, &format!("{path}[{at}]"), redactor));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        Value::Integer(_) | Value::Float(_) if hides_number(path, redactor) => word(MASK),
        Value::Mapping(entries) => {
            let members =
                entries.iter().map(|e| format!("{}: {}", word(&e.key), flow(&e.node, &join(path, &e.key), redactor)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Null => "null".into(),
        Value::Boolean(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => format!("{value:?}"),
    }
}

fn word(text: &str) -> String {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let taken = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let bare = starts && text.chars().all(plain) && !taken.contains(&text.to_ascii_lowercase().as_str());
    let bare = bare || is_measure(text);
    if bare { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

fn is_measure(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_unit = matches!(unit, "ms" | "s" | "m" | "h" | "d" | "B" | "KiB" | "MiB" | "GiB");
    is_unit && unit.len() < text.len()
}
