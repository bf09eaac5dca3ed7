//! Who may know whom: `cli → {scheduler, worker} → shared`; inside shared `store → model`, `formats → model`.

use super::source::{Source, closing, find_words, line_of};

/// Crate folder → our crates that it may depend on. The tests may see everything.
const CRATES: [(&str, &[&str]); 4] = [
    ("shared", &[]),
    ("scheduler", &["tickfleet-shared"]),
    ("worker", &["tickfleet-shared"]),
    ("cli", &["tickfleet-shared", "tickfleet-scheduler", "tickfleet-worker"]),
];

/// Module of shared → modules of shared that it may name. A module that is not here is free.
const MODULES: [(&str, &[&str]); 3] = [("model", &[]), ("formats", &["model"]), ("store", &["model"])];

/// What pure modules may not name, and why.
const IMPURE: [(&str, &str); 14] = [
    ("redis", "Redis"),
    ("deadpool_redis", "Redis"),
    ("tokio", "the runtime"),
    ("tokio_util", "the runtime"),
    ("axum", "the network"),
    ("reqwest", "the network"),
    ("std::net", "the network"),
    ("std::fs", "files"),
    ("std::env", "the environment"),
    ("SystemTime", "a clock"),
    ("Instant", "a clock"),
    ("Utc::now", "a clock"),
    ("Local", "a clock"),
    ("rand", "chance"),
];

/// Crate → folders or files whose production code may name it.
const CONFINED: [(&str, &[&str]); 3] = [
    ("redis", &["shared/src/store/", "shared/src/testkit/", "cli/src/bench"]),
    ("deadpool_redis", &["shared/src/store/", "cli/src/"]),
    ("backoff", &["shared/src/model/retry.rs", "shared/src/store/"]),
];

/// A crate's own dependencies, dev-dependencies left out.
pub fn manifest(folder: &str, text: &str) -> Vec<String> {
    let Some((_, allowed)) = CRATES.iter().find(|(name, _)| *name == folder) else { return Vec::new() };
    let mut section = "";
    let mut complaints = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        if section.contains("dev-dependencies") || !section.contains("dependencies") {
            continue;
        }
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        if name.starts_with("tickfleet-") && !allowed.contains(&name) {
            complaints.push(format!("{folder}/Cargo.toml: {folder} may not depend on {name}"));
        }
        if name.starts_with("tickfleet-") && line.contains("testkit") {
            complaints.push(format!("{folder}/Cargo.toml: the testkit is for dev-dependencies"));
        }
    }
    complaints
}

/// Which module of shared a file belongs to.
fn module_of(source: &Source) -> Option<&str> {
    let inside = source.path.strip_prefix("shared/src/")?;
    inside.split(['/', '.']).next()
}

/// Modules of shared that name others which they may not know.
pub fn modules(source: &Source) -> Vec<String> {
    let Some((module, allowed)) = module_of(source).and_then(|m| MODULES.iter().find(|(name, _)| *name == m)) else {
        return Vec::new();
    };
    let mut complaints = Vec::new();
    for (at, name) in siblings(&source.production) {
        if name != *module && !allowed.contains(&name) {
            let line = line_of(&source.production, at);
            complaints.push(format!("{}:{line}: `{module}` may not know `{name}`", source.path));
        }
    }
    complaints
}

/// Every `crate::name`, and each name of `crate::{a, b::c}`, with its offset.
fn siblings(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for at in find_words(code, "crate::") {
        let after = at + "crate::".len();
        if code[after..].starts_with('{') {
            let group = &code[after + 1..closing(code, after).saturating_sub(1)];
            found.extend(top_level_names(group).into_iter().map(|name| (at, name)));
        } else {
            found.push((at, first_name(&code[after..])));
        }
    }
    found
}

fn first_name(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

/// The first names of the comma-separated parts, inner braces left out.
fn top_level_names(group: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let (mut at, mut fresh) = (0, true);
    while let Some(c) = group[at..].chars().next() {
        match c {
            '{' => {
                at = closing(group, at);
                continue;
            }
            ',' => fresh = true,
            _ if fresh && (c.is_alphabetic() || c == '_') => {
                names.push(first_name(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
        at += c.len_utf8();
    }
    names
}

/// Pure modules that name what they may not.
pub fn purity(source: &Source) -> Vec<String> {
    if !matches!(module_of(source), Some("model" | "formats")) {
        return Vec::new();
    }
    let complain = |(word, what): &(&str, &str)| {
        let lines = source.lines_naming(word).into_iter();
        let complaints = lines.map(|line| format!("{}:{line}: `{word}` brings {what} into a pure module", source.path));
        complaints.collect::<Vec<_>>()
    };
    IMPURE.iter().flat_map(complain).collect()
}

/// Crates named outside the places they are confined to.
pub fn confined(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, places) in CONFINED {
        if places.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for line in lines_naming_crate(source, name) {
            complaints.push(format!("{}:{line}: `{name}` is for {places:?} only", source.path));
        }
    }
    complaints
}

/// Whether production code names the crate `backoff`.
pub fn names_backoff(source: &Source) -> bool {
    !lines_naming_crate(source, "backoff").is_empty()
}

/// `name::…` or `use name;` where `name` begins a path: `self::name` is a module of ours.
fn lines_naming_crate(source: &Source, name: &str) -> Vec<usize> {
    let code = &source.production;
    let begins = |at: &usize| {
        let (before, after) = (code[..*at].trim_end(), code[at + name.len()..].trim_start());
        let outer = before.strip_suffix("::").is_none_or(str::is_empty);
        outer && (after.starts_with("::") || (before.ends_with("use") && after.starts_with([';', ' '])))
    };
    find_words(code, name).filter(begins).map(|at| line_of(code, at)).collect()
}

/// Production code that names the testkit.
pub fn testkit(source: &Source) -> Vec<String> {
    if source.path.starts_with("shared/src/testkit/") || source.path.starts_with("tests/") {
        return Vec::new();
    }
    // The one place that declares it, behind its feature.
    let declared = source.path == "shared/src/lib.rs";
    let lines = source.lines_naming("testkit").into_iter();
    lines
        .skip(usize::from(declared))
        .map(|line| format!("{}:{line}: production names the testkit", source.path))
        .collect()
}

#[cfg(test)]
mod tries {
    use super::*;

    #[test]
    fn a_manifest_that_points_upwards_is_found() {
        let bad =
            "[dependencies]\ntickfleet-worker.workspace = true\n[dev-dependencies]\ntickfleet-cli.workspace = true";
        assert_eq!(manifest("scheduler", bad).len(), 1);
        let kit = "[dependencies]\ntickfleet-shared = { workspace = true, features = [\"testkit\"] }";
        assert_eq!(manifest("worker", kit).len(), 1);
        assert!(manifest("worker", &kit.replace("[dep", "[dev-dep")).is_empty());
    }

    #[test]
    fn a_module_that_points_sideways_is_found() {
        let bad = "use crate::store::Store;\nuse crate::{model::{self, Turn}, formats};\n";
        assert_eq!(modules(&Source::new("shared/src/model/x.rs", bad)).len(), 2);
        assert_eq!(modules(&Source::new("shared/src/store/x.rs", bad)).len(), 1);
        assert!(modules(&Source::new("shared/src/client.rs", bad)).is_empty());
    }

    #[test]
    fn impure_and_misplaced_names_are_found() {
        let bad = "use redis::Cmd;\nfn f() { let t = std::time::Instant::now(); }";
        assert_eq!(purity(&Source::new("shared/src/model/x.rs", bad)).len(), 2);
        assert_eq!(confined(&Source::new("worker/src/x.rs", bad)).len(), 1);
        assert!(confined(&Source::new("shared/src/store/x.rs", bad)).is_empty());
        assert!(confined(&Source::new("worker/src/x.rs", "use self::redis::X; mod redis;")).is_empty());
    }

    #[test]
    fn the_testkit_in_production_is_found_and_in_tests_it_is_fine() {
        let code = "use shared::testkit::RedisServer;";
        assert_eq!(testkit(&Source::new("worker/src/x.rs", code)).len(), 1);
        let test = format!("#[cfg(test)]\nmod tests {{ {code} }}");
        assert!(testkit(&Source::new("worker/src/x.rs", &test)).is_empty());
    }
}
