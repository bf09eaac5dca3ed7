//! Plays the pages of the site: each command of a `console` block runs as shown, and must print what is shown.
//!
//! A page that begins with `<!-- fleet: shop -->` gets a fleet with the configuration docs/snippets/shop, and the service
//! that its tools call: `service.py` of that folder, or the shop's. A page without that comment gets the built-in
//! configuration. If the page's first command creates a key for seals, it runs before the fleet starts, and SEAL_KEY has
//! the key.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tickfleet_testkit::{RedisOptions, RedisServer};
use tokio::time::Instant;

use crate::support::binary::{DevFleet, Said};
use crate::support::documents::{REPOSITORY, Shown, agrees, shown, with_binary};

/// How long a command is run again until it prints what is shown: its effect may still be on its way.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands that change nothing, so that they may run again.
const READS: [&str; 11] = [
    "explain",
    "approvals list",
    "approvals show",
    "audit",
    "doctor",
    "stats",
    "top",
    "tools",
    "dead list",
    "rules",
    "whatif",
];

macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(#[tokio::test]
        async fn $name() {
            play($page).await;
        })*
    };
}

pages! {
    readme: "README.md",
    quickstart: "docs/start/quickstart.md",
    approvals: "docs/govern/approvals.md",
    rules: "docs/govern/rules.md",
    shadow_and_what_if: "docs/govern/shadow-and-what-if.md",
    session_facts: "docs/govern/session-facts.md",
    limits: "docs/govern/limits.md",
    concurrency_and_fairness: "docs/govern/concurrency-and-fairness.md",
    model_budgets: "docs/govern/model-budgets.md",
    permissions: "docs/govern/permissions.md",
    configuration_folder: "docs/operate/configuration-folder.md",
    duplicate_effects: "docs/govern/duplicate-effects.md",
    loops: "docs/govern/loops.md",
    cached_reads: "docs/govern/cached-reads.md",
    audit_log: "docs/govern/audit-log.md",
    tamper_evident_audit: "docs/govern/tamper-evident-audit.md",
    agents: "docs/build/agents.md",
    delegate: "docs/build/delegate.md",
    knowledge: "docs/build/knowledge.md",
}

/// For authors: plays the page that `PAGE` names, such as `docs/govern/limits.md`.
#[tokio::test]
#[ignore = "plays the page that the variable PAGE names"]
async fn page_by_name() {
    play(&std::env::var("PAGE").expect("PAGE names a page, such as docs/govern/limits.md")).await;
}

#[test]
fn every_page_with_commands_is_played() {
    let mut found = BTreeSet::new();
    for section in ["start", "build", "govern", "operate", "understand"] {
        for entry in fs::read_dir(Path::new(REPOSITORY).join("docs").join(section)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md")
                && !shown(&fs::read_to_string(&path).unwrap()).is_empty()
            {
                found.insert(format!("docs/{section}/{}", path.file_name().unwrap().to_string_lossy()));
            }
        }
    }
    found.insert("README.md".to_owned());
    assert_eq!(found, PAGES.iter().map(|&page| page.to_owned()).collect());
}

/// A stand-in for the service that a fleet's tools call, on a port of its own.
struct Service(Child);

impl Service {
    /// Starts `service.py` of one of the snippet folders, or the shop's if it has none, and returns its address.
    fn start(snippets: &Path, name: &str) -> (Self, String) {
        let own = snippets.join(name).join("service.py");
        let program = if own.exists() { own } else { snippets.join("shop/service.py") };
        let mut command = Command::new("python3");
        let mut child = command.arg(program).arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().last().unwrap().to_owned();
        (Self(child), url)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The name after `fleet:` in the page's first line.
fn configuration(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("<!-- fleet: ")?.strip_suffix(" -->")
}

/// A folder with copies of all snippets.
fn snippets() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(REPOSITORY).join("docs/snippets");
    let copied = Command::new("cp").arg("-R").arg(source.join(".")).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    folder
}

/// Runs the first command of a page if it creates a key for seals. Returns the key.
fn seal_key(first: &Shown, folder: &Path) -> Option<String> {
    if !first.command.contains("audit key --new seal.key") {
        return None;
    }
    let mut shell = Command::new("sh");
    let created = with_binary(shell.args(["-c", &first.command])).current_dir(folder).output().unwrap();
    let printed = String::from_utf8(created.stderr).unwrap();
    assert!(agrees(&first.output, &printed), "`{}` printed something else:\n{printed}", first.command);
    Some(fs::read_to_string(folder.join("seal.key")).unwrap().trim().to_owned())
}

async fn play(page: &str) {
    let text = fs::read_to_string(Path::new(REPOSITORY).join(page)).unwrap();
    let (folder, redis) =
        (snippets(), RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await);
    let url = redis.url();
    let mut args = vec!["--redis-url", url.as_str()];
    let (mut variables, mut service) = (Vec::new(), None);
    if let Some(name) = configuration(&text) {
        args.extend(["--config", name]);
        variables.push(("TICKFLEET_CONFIG", name.to_owned()));
        let (running, url) = Service::start(folder.path(), name);
        variables.push(("SHOP_URL", url));
        service = Some(running);
    }
    let mut commands = shown(&text);
    if let Some(key) = commands.first().and_then(|first| seal_key(first, folder.path())) {
        variables.push(("SEAL_KEY", key));
        commands.remove(0);
    }
    let borrowed: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let fleet = DevFleet::start_in(folder.path(), &args, &borrowed);
    let mut ids = Ids::default();
    for shown in commands {
        let command = ids.real(&shown.command);
        let run = || {
            // Both streams in the order in which a terminal shows them.
            let mut shell = fleet.shell(&format!("exec 2>&1; {command}"));
            shell.envs(borrowed.iter().copied());
            let said = Said::of(with_binary(&mut shell).current_dir(folder.path()), "");
            said.stdout
        };
        let reads = READS.iter().any(|verb| command.contains(&format!("tickfleet {verb}")));
        let (mut printed, began) = (run(), Instant::now());
        while reads && !agrees(&shown.output, &printed) && began.elapsed() < PATIENCE {
            printed = run();
        }
        assert!(
            agrees(&shown.output, &printed),
            "{page}:{}: `{command}` printed something else:\n{printed}",
            shown.line
        );
        ids.learn(&shown.output.join("\n"), &printed);
    }
    assert_eq!(fleet.stop(), Some(0));
    drop(service);
}

/// The ids that a page shows, and those that this run has in their place.
#[derive(Default)]
struct Ids(BTreeMap<String, String>);

impl Ids {
    /// The ids in a text that differ from run to run: those of approvals, and of turns that their producer gave none.
    fn found(text: &str) -> Vec<String> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let varies = |word: &&str| {
            word.strip_prefix("apr-").is_some_and(|hex| hex.len() == 16 && hex.chars().all(|c| c.is_ascii_hexdigit()))
                || word
                    .strip_prefix(['t', 'k'])
                    .is_some_and(|rest| rest.len() > 12 && rest.chars().all(|c| c.is_ascii_digit() || c == '-'))
        };
        words.filter(varies).map(str::to_owned).collect()
    }

    fn learn(&mut self, shown: &str, printed: &str) {
        for (written, real) in Self::found(shown).into_iter().zip(Self::found(printed)) {
            self.0.entry(written).or_insert(real);
        }
    }

    fn real(&self, command: &str) -> String {
        self.0.iter().fold(command.to_owned(), |command, (written, real)| command.replace(written, real))
    }
}

#[test]
fn ids_of_a_run_replace_those_that_a_page_shows() {
    let mut ids = Ids::default();
    ids.learn("acme:apr-4f1d0c6b2a9e8d37 waits", "acme:apr-00000000000000aa waits");
    assert_eq!(
        ids.real("tickfleet approvals show acme:apr-4f1d0c6b2a9e8d37"),
        "tickfleet approvals show acme:apr-00000000000000aa"
    );
}

/// The path of every file that a page includes.
fn included(text: &str) -> Vec<&str> {
    let parts = text.split("{{#include ").skip(1);
    parts.filter_map(|part| part.split("}}").next()).collect()
}

#[test]
fn every_included_snippet_exists() {
    let mut missing = Vec::new();
    for section in ["start", "build", "govern", "operate", "reference", "understand"] {
        let folder = Path::new(REPOSITORY).join("docs").join(section);
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path: PathBuf = entry.unwrap().path();
            let Ok(text) = fs::read_to_string(&path) else { continue };
            for snippet in included(&text) {
                let (file, anchor) = snippet.split_once(':').unwrap_or((snippet, ""));
                let found = fs::read_to_string(folder.join(file)).unwrap_or_default();
                if found.is_empty() || (!anchor.is_empty() && !found.contains(&format!("ANCHOR: {anchor}\n"))) {
                    missing.push(format!("{}: {snippet}", path.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
