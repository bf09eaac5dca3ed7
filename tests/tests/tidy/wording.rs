//! Finds forbidden text: paths of machines, hosts of registries, and exceptions and sleeps without a reason.

use super::source::{Source, closing, find_words, line_of};

/// Written in two parts, so that this file does not match.
const PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/", "wt"),
    concat!("/tmp/", "target"),
    concat!("/ho", "me/"),
];

/// Forbidden, because each machine sets its own source of packages.
const HOSTS: [&str; 6] = [
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("registry.", "npmjs.org"),
    concat!("pypi.", "org/simple"),
    concat!("files.", "pythonhosted.org"),
    concat!("proxy.", "golang.org"),
];

const WRITTEN_BY_TOOLS: [&str; 2] = ["Cargo.lock", "package-lock.json"];

pub fn machines(path: &str, text: &str) -> Vec<String> {
    if WRITTEN_BY_TOOLS.iter().any(|name| path.ends_with(name)) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let paths = PATHS.iter().filter(|word| begins_a_path(line, word));
        let hosts = HOSTS.iter().filter(|word| line.contains(**word));
        complaints.extend(paths.chain(hosts).map(|word| format!("{path}:{}: names {word}", number + 1)));
    }
    complaints
}

/// The middle of a longer path or of a URL does not match.
fn begins_a_path(line: &str, start: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | ')' | '*' | '~');
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(inner))
}

pub fn unreasoned_exceptions(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for (at, _) in source.code.match_indices('#') {
        let attribute = source.code[at + 1..].trim_start_matches('!');
        let Some(inside) = attribute.strip_prefix('[') else { continue };
        let open = source.code.len() - inside.len() - 1;
        let attribute = &source.code[open..closing(&source.code, open)];
        let exception =
            ["allow", "expect"].iter().any(|word| find_words(attribute, &format!("{word}(")).next().is_some());
        if exception && find_words(attribute, "reason").next().is_none() {
            complaints.push(format!(
                "{}:{}: a lint exception without a reason",
                source.path,
                line_of(&source.code, at)
            ));
        }
    }
    complaints
}

/// Finds sleeps without a reason. A comment on the same line or just above must give the reason.
pub fn unreasoned_sleeps(source: &Source) -> Vec<String> {
    let texts: Vec<&str> = source.text.lines().collect();
    let production: Vec<&str> = source.production.lines().collect();
    let mut complaints = Vec::new();
    for (index, code) in source.code.lines().enumerate() {
        let in_a_test = production.get(index).is_none_or(|line| !line.contains("sleep"));
        let sleeps = find_words(code, "sleep(").next().is_some() && find_words(code, "fn sleep").next().is_none();
        let above =
            index.checked_sub(1).and_then(|above| texts.get(above)).is_some_and(|line| line.trim().starts_with("//"));
        if in_a_test && sleeps && !above && !texts.get(index).is_some_and(|line| line.contains("//")) {
            complaints.push(format!("{}:{}: a sleep in a test without a reason", source.path, index + 1));
        }
    }
    complaints
}

#[test]
fn machine_paths_and_registry_hosts_are_found() {
    let path = concat!("cd /wo", "rk/main");
    assert_eq!(machines("README.md", path).len(), 1);
    assert!(machines("README.md", "see .github/work/x and https://host/work/y").is_empty());
    assert_eq!(machines("Makefile", concat!("index = https://index.", "crates.io")).len(), 1);
}

#[test]
fn lint_exceptions_without_a_reason_are_found() {
    let bad = "#[allow(dead_code)]\nfn a() {}\n#![allow(x, reason = \"y\")]\n#[cfg_attr(z, allow(w))]\nfn b() {}";
    assert_eq!(unreasoned_exceptions(&Source::new("x.rs", bad)).len(), 2);
}

#[test]
fn unexplained_sleeps_are_found_only_in_tests() {
    let bad = "fn a() { sleep(STEP); }\n#[cfg(test)]\nmod tests { fn b() {\nsleep(STEP);\n// The server needs it.\nsleep(STEP);\n} }";
    let complaints = unreasoned_sleeps(&Source::new("shared/src/x.rs", bad));
    assert_eq!(complaints, ["shared/src/x.rs:4: a sleep in a test without a reason"]);
}
