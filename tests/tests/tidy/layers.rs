//! Checks which of the project's crates a crate may depend on, and which parts of `std` pure crates must not use.

use super::source::{Source, find_words, line_of};

/// Folder of a crate → crates of the project that it may depend on.
const CRATES: [(&str, &[&str]); 27] = [
    ("shared/model", &[]),
    ("shared/protocol", &["model"]),
    ("shared/core", &["model", "protocol"]),
    ("shared/proof", &["core", "model", "protocol"]),
    ("shared/store", &["core", "model", "protocol"]),
    ("shared/rules", &["model"]),
    ("shared/config", &["model", "protocol", "rules"]),
    ("shared/ops", &["model", "store"]),
    ("shared/client", &["core", "model", "proof", "protocol", "store"]),
    ("shared/testkit", &["ops"]),
    ("shared/engine", &["core", "model", "protocol", "rules", "store", "config", "ops"]),
    ("scheduler", &["core", "model", "proof", "protocol", "store", "config", "ops", "engine"]),
    ("worker/tools/outbound", &[]),
    ("worker/sandbox", &[]),
    ("worker/models", &["model", "protocol", "outbound"]),
    ("worker/llm", &["core", "model", "protocol", "store", "config", "ops", "client", "engine", "tools", "models"]),
    ("worker/tools/core", &["model", "protocol", "rules", "config", "ops", "engine"]),
    ("worker/tools/http", &["model", "config", "ops", "outbound", "tools"]),
    ("worker/tools/atlas", &["model", "store", "engine", "outbound", "tools", "tools-http"]),
    ("worker/tools/mcp", &["model", "config", "ops", "outbound", "tools"]),
    ("worker/tools/shell", &["model", "config", "sandbox", "tools"]),
    ("worker/tools/knowledge", &["model", "protocol", "store", "outbound", "tools"]),
    ("worker/tools/python", &["model", "config", "sandbox", "tools"]),
    // The worker must not depend on any kind of tool.
    ("worker", &["core", "model", "protocol", "rules", "store", "config", "ops", "client", "engine", "tools"]),
    ("cli/gateway", &["core", "model", "protocol", "store", "ops", "client"]),
    ("cli/bench", &["store", "ops"]),
    (
        "cli",
        &[
            "core",
            "gateway",
            "model",
            "protocol",
            "store",
            "config",
            "ops",
            "proof",
            "client",
            "engine",
            "scheduler",
            "worker",
            "llm",
            "outbound",
            "sandbox",
            "tools",
            "tools-atlas",
            "tools-http",
            "tools-mcp",
            "tools-python",
            "tools-knowledge",
            "tools-shell",
        ],
    ),
];

/// A program that only submits turns must not need to build these dependencies.
const HEAVY: [&str; 6] = ["axum", "prometheus", "opentelemetry", "reqwest", "jsonschema", "rmcp"];

/// Name → reason. Code and manifests of pure crates must not contain these names.
const IMPURE: [(&str, &str); 15] = [
    ("redis", "Redis"),
    ("deadpool", "Redis"),
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

/// Crate → folders and files. Other production code must not use the crate.
const CONFINED: [(&str, &[&str]); 4] = [
    ("redis", &["shared/store/src/", "shared/store/examples/", "shared/testkit/src/", "cli/bench/src/"]),
    ("deadpool", &["shared/store/src/"]),
    ("deadpool_redis", &["shared/store/src/"]),
    ("backoff", &["shared/model/src/retry.rs", "shared/store/src/"]),
];

fn dependencies(text: &str) -> Vec<&str> {
    let mut section = "";
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies") && !section.contains("dev-dependencies") {
            let name = line.split(['=', '.', ' ', '#']).next().unwrap_or_default();
            found.extend((!name.is_empty()).then_some(name));
        }
    }
    found
}

pub fn manifest(folder: &str, text: &str) -> Vec<String> {
    let Some((_, allowed)) = CRATES.iter().find(|(name, _)| *name == folder) else {
        let ours = ["shared/", "worker/tools/", "cli/"].iter().any(|room| folder.starts_with(room));
        return ours.then(|| format!("{folder}: say in `CRATES` what it may depend on")).into_iter().collect();
    };
    let mut complaints = Vec::new();
    for name in dependencies(text) {
        let is_heavy = HEAVY.contains(&name) && ["shared/client", "shared/store", "shared/protocol"].contains(&folder);
        let is_impure = is_pure(folder) && IMPURE.iter().any(|(word, _)| *word == name.replace('-', "_"));
        match name.strip_prefix("tickfleet-") {
            Some(own) if !allowed.contains(&own) => {
                complaints.push(format!("{folder}/Cargo.toml: it may not depend on {name}"));
            }
            None if is_heavy => complaints.push(format!("{folder}/Cargo.toml: {name} is too heavy for producers")),
            None if is_impure => complaints.push(format!("{folder}/Cargo.toml: {name} is nothing for a pure crate")),
            _ => {}
        }
    }
    complaints
}

fn is_pure(path: &str) -> bool {
    ["shared/model", "shared/core", "shared/protocol"].iter().any(|pure| path.starts_with(pure))
}

pub fn purity(source: &Source) -> Vec<String> {
    if !is_pure(&source.path) {
        return Vec::new();
    }
    let complain = |(word, what): &(&str, &str)| {
        let lines = source.lines_naming(word).into_iter();
        let complaints = lines.map(|line| format!("{}:{line}: `{word}` brings {what} into a pure crate", source.path));
        complaints.collect::<Vec<_>>()
    };
    IMPURE.iter().flat_map(complain).collect()
}

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

pub fn names_backoff(source: &Source) -> bool {
    !lines_naming_crate(source, "backoff").is_empty()
}

/// Skips `self::name`, which is one of our own modules.
fn lines_naming_crate(source: &Source, name: &str) -> Vec<usize> {
    let code = &source.production;
    let begins = |at: &usize| {
        let before = code[..*at].trim_end();
        let after = code[at + name.len()..].trim_start();
        let outer = before.strip_suffix("::").is_none_or(str::is_empty);
        outer && (after.starts_with("::") || (before.ends_with("use") && after.starts_with([';', ' '])))
    };
    find_words(code, name).filter(begins).map(|at| line_of(code, at)).collect()
}

pub fn uncalled_metrics(sources: &[&Source]) -> Vec<String> {
    let metrics = sources.iter().filter(|source| source.path.starts_with("shared/ops/src/metrics"));
    let methods = metrics.flat_map(|source| source.production.split("pub fn ").skip(1));
    let names = methods.filter_map(|rest| Some(rest.split_once("(&self")?.0).filter(|name| !name.contains(['(', '<'])));
    let is_called = |name: &str| {
        let call = format!(".{name}(");
        sources.iter().any(|source| source.production.contains(&call))
    };
    names.filter(|name| !is_called(name)).map(|name| format!("no code calls Metrics::{name}")).collect()
}

/// Tests run these decisions through a verb of the store.
const RUN_BY_VERBS: [&str; 2] = ["AcknowledgeInbound", "ReportProgress"];

/// Finds decisions that no test or no other crate names.
pub fn unused_decisions(sources: &[&Source]) -> Vec<String> {
    let core = sources.iter().filter(|source| source.path.starts_with("shared/core/src/"));
    let impls = core.flat_map(|source| source.production.split(" Decision for ").skip(1));
    let names = impls.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
    let count = |text: &str, name: &str| text.match_indices(name).count();
    let is_tested =
        |name: &str| sources.iter().any(|source| count(&source.code, name) > count(&source.production, name));
    let is_used = |name: &str| {
        let others = sources.iter().filter(|source| !source.path.starts_with("shared/core/"));
        others.into_iter().any(|source| find_words(&source.production, name).next().is_some())
    };
    let mut complaints = Vec::new();
    for name in names {
        if !is_tested(name) && !RUN_BY_VERBS.contains(&name) {
            complaints.push(format!("no test names the decision {name}"));
        }
        if !is_used(name) {
            complaints.push(format!("no other crate names the decision {name}"));
        }
    }
    complaints
}

/// Finds crates that ARCHITECTURE.md does not link to.
pub fn undescribed_crates(architecture: &str) -> Vec<String> {
    let of_program = CRATES.iter().map(|(folder, _)| *folder);
    let of_program =
        of_program.filter(|folder| !["tests", "docs", "shared/testkit"].iter().any(|one| folder.starts_with(one)));
    let undescribed = of_program.filter(|folder| !architecture.contains(&format!("({folder}/src/")));
    undescribed.map(|folder| format!("ARCHITECTURE.md has no link to {folder}")).collect()
}

#[cfg(test)]
mod tries {
    use super::*;

    #[test]
    fn an_unused_decision_and_an_undescribed_crate_are_found() {
        let decision = Source::new("shared/core/src/x.rs", "impl<'a> Decision for Skip<'a> {}");
        assert_eq!(unused_decisions(&[&decision]).len(), 2);
        let test = Source::new("shared/store/tests/x.rs", "fn f() { Skip {}; }");
        let caller = Source::new("scheduler/src/x.rs", "fn f() { Skip {}; }");
        assert!(unused_decisions(&[&decision, &test, &caller]).is_empty());
        assert!(
            undescribed_crates("[core](shared/core/src/lib.rs)")
                .contains(&"ARCHITECTURE.md has no link to scheduler".into())
        );
    }

    #[test]
    fn an_upward_heavy_or_impure_dependency_is_found() {
        let bad = "[dependencies]\n# why\ntickfleet-worker.workspace = true\n[dev-dependencies]\ntickfleet-testkit.workspace = true";
        assert_eq!(manifest("scheduler", bad).len(), 1);
        assert_eq!(manifest("scheduler", &bad.replace("[dev-", "[")).len(), 2, "the testkit is for tests");
        assert_eq!(manifest("shared/client", "[dependencies]\naxum = { workspace = true }").len(), 1);
        assert_eq!(manifest("shared/model", "[dependencies]\ntokio-util.workspace = true").len(), 1);
        assert_eq!(manifest("shared/new", "").len(), 1);
    }

    #[test]
    fn impure_and_misplaced_names_are_found() {
        let bad = "use redis::Cmd;\nfn f() { let t = std::time::Instant::now(); }";
        assert_eq!(purity(&Source::new("shared/model/src/x.rs", bad)).len(), 2);
        assert_eq!(confined(&Source::new("worker/src/x.rs", bad)).len(), 1);
        assert!(confined(&Source::new("shared/store/src/x.rs", bad)).is_empty());
        assert!(confined(&Source::new("worker/src/x.rs", "use self::redis::X; mod redis;")).is_empty());
    }

    #[test]
    fn a_metric_method_without_a_caller_is_found() {
        let metrics =
            Source::new("shared/ops/src/metrics/x.rs", "impl Metrics { pub fn a(&self) {} pub fn b(&self) {} }");
        let caller = Source::new("worker/src/x.rs", "fn f(m: &Metrics) { m.a(); }");
        assert_eq!(uncalled_metrics(&[&metrics, &caller]), ["no code calls Metrics::b"]);
    }
}
