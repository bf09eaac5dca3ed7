//! Plays the pages of the site: each command of a `console` block must print the output that the page shows.
//! `<!-- fleet: shop -->` selects the configuration docs/snippets/shop, and no such comment the built-in configuration.
//! `<!-- runs: agents -->` means that the page runs programs in docs/snippets/agents, with a stub of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tickfleet_testkit::{RedisOptions, RedisServer};
use tokio::time::Instant;

use crate::operation::gateway::{Gateway, add_key};
use crate::support::binary::{CommandOutput, DevFleet};
use crate::support::documents::{DocumentedCommand, REPOSITORY, agrees, shown, with_binary};
use crate::support::node::Node;
use crate::support::process::until;
use crate::support::python::{installed, interpreter};

/// Some effects need a moment, so a command is repeated for at most this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Only these commands may be repeated, because they change nothing.
const READS: [&str; 13] = [
    "tickfleet explain",
    "tickfleet approvals list",
    "tickfleet approvals show",
    "tickfleet audit",
    "tickfleet doctor",
    "tickfleet stats",
    "tickfleet top",
    "tickfleet tools",
    "tickfleet dead list",
    "tickfleet tasks list",
    "tickfleet rules",
    "tickfleet whatif",
    "cat ",
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
    install: "docs/start/install.md",
    tour: "docs/start/tour.md",
    first_fleet_on_kubernetes: "docs/start/kubernetes.md",
    openai_agent: "docs/start/openai-agent.md",
    bring_your_agent: "docs/build/bring-your-agent.md",
    python: "docs/build/python.md",
    typescript: "docs/build/typescript.md",
    openai: "docs/build/openai.md",
    openai_agents_sdk: "docs/build/openai-agents-sdk.md",
    langgraph: "docs/build/langgraph.md",
    pydantic_ai: "docs/build/pydantic-ai.md",
    ai_sdk: "docs/build/ai-sdk.md",
    approvals: "docs/govern/approvals.md",
    rules: "docs/govern/rules.md",
    shadow_and_what_if: "docs/govern/shadow-and-what-if.md",
    session_facts: "docs/govern/session-facts.md",
    limits: "docs/govern/limits.md",
    concurrency_and_fairness: "docs/govern/concurrency-and-fairness.md",
    model_budgets: "docs/govern/model-budgets.md",
    permissions: "docs/govern/permissions.md",
    configuration_folder: "docs/operate/configuration-folder.md",
    redis_users_and_tls: "docs/operate/redis-users-and-tls.md",
    backup: "docs/operate/backup.md",
    interventions: "docs/operate/interventions.md",
    reload: "docs/operate/reload.md",
    duplicate_effects: "docs/govern/duplicate-effects.md",
    loops: "docs/govern/loops.md",
    cached_reads: "docs/govern/cached-reads.md",
    audit_log: "docs/govern/audit-log.md",
    tamper_evident_audit: "docs/govern/tamper-evident-audit.md",
    http: "docs/build/http.md",
    mcp_clients: "docs/build/mcp-clients.md",
    any_language_over_redis: "docs/build/redis.md",
    retry_safely: "docs/build/retry-safely.md",
    tools_python: "docs/build/tools-python.md",
    tools_typescript: "docs/build/tools-typescript.md",
    tools_http: "docs/build/tools-http.md",
    tools_openapi: "docs/build/tools-openapi.md",
    tools_mcp: "docs/build/tools-mcp.md",
    mcp_wrap: "docs/build/mcp-wrap.md",
    tools_shell: "docs/build/tools-shell.md",
    composed_tools: "docs/build/composed-tools.md",
    governed_tools: "docs/build/governed-tools.md",
    test_a_tool: "docs/build/test-a-tool.md",
    monitoring: "docs/operate/monitoring.md",
    troubleshooting: "docs/operate/troubleshooting.md",
    agents: "docs/build/agents.md",
    delegate: "docs/build/delegate.md",
    knowledge: "docs/build/knowledge.md",
}

/// These pages are played by `typed_tools` with another program, and by `quickstart` with installed packages.
const PLAYED_ELSEWHERE: [&str; 3] = ["README.md", "docs/build/tools-rust.md", "docs/start/quickstart.md"];

#[tokio::test]
#[ignore = "plays the page that the variable PAGE names"]
async fn page_by_name() {
    #[allow(clippy::disallowed_methods, reason = "the author names the page")]
    let page = std::env::var("PAGE").expect("PAGE names a page, such as docs/govern/limits.md");
    play(&page).await;
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
    assert_eq!(found, PAGES.iter().chain(&PLAYED_ELSEWHERE).map(|&page| page.to_owned()).collect());
}

pub struct Service(Child);

impl Service {
    pub fn start(snippets: &Path, name: &str) -> (Self, String) {
        let own = snippets.join(name).join("service.py");
        Self::run(&if own.exists() { own } else { snippets.join("shop/service.py") })
    }

    fn run(program: &Path) -> (Self, String) {
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
        // Fails only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn configuration(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("<!-- fleet: ")?.strip_suffix(" -->")
}

struct PageEnvironment {
    model: Service,
    /// `None` if tests with Node.js are skipped.
    node: Option<Node>,
    /// These folders precede all others in the PATH.
    folders: Vec<PathBuf>,
    variables: Vec<(String, String)>,
}

impl PageEnvironment {
    fn of(page: &str, folder: &Path) -> Option<Self> {
        if !page.lines().any(|line| line == "<!-- runs: agents -->") {
            return None;
        }
        let (model, url) = Service::run(&folder.join("agents/model.py"));
        let mut variables = vec![
            ("OPENAI_BASE_URL", format!("{url}/v1")),
            ("OPENAI_API_KEY", "stand-in".to_owned()),
            // Without this variable, the SDK would send traces to OpenAI.
            ("OPENAI_AGENTS_DISABLE_TRACING", "1".to_owned()),
            ("PYTHONPATH", format!("{REPOSITORY}/python/src")),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ];
        let mut folders = vec![installed("adapters")];
        let node = page.contains("$ node ").then(Node::unless_skipped).flatten();
        if let Some(node) = &node {
            let modules = folder.join("node_modules");
            fs::create_dir(&modules).unwrap();
            std::os::unix::fs::symlink(&node.package, modules.join("tickfleet")).unwrap();
            std::os::unix::fs::symlink(node.package.join("node_modules/ai"), modules.join("ai")).unwrap();
            variables.push(("NODE_OPTIONS", format!("--import {}/agents/model.mjs", folder.display())));
            folders.extend(node.folder());
        }
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Some(Self { model, node, folders, variables })
    }

    fn can_run(&self, command: &str) -> bool {
        !command.starts_with("node ") || self.node.is_some()
    }

    fn prelude(&self) -> String {
        let folders: String = self.folders.iter().map(|folder| format!("{}:", folder.display())).collect();
        format!("PATH=\"{folders}$PATH\"; ")
    }
}

pub fn snippets() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(REPOSITORY).join("docs/snippets");
    let copied = Command::new("cp").arg("-R").arg(source.join(".")).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    folder
}

/// A first command that creates a key for seals or pins tools must run before the fleet starts.
fn prepared(first: &DocumentedCommand, folder: &Path, variables: &[(&str, &str)]) -> bool {
    if !["audit key --new seal.key", "mcp pin"].iter().any(|verb| first.command.contains(verb)) {
        return false;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1; {}", first.command)]).envs(variables.iter().copied());
    let created = with_binary(&mut shell).current_dir(folder).output().unwrap();
    let printed = String::from_utf8(created.stdout).unwrap();
    assert!(agrees(&first.output, &printed), "`{}` printed something else:\n{printed}", first.command);
    true
}

/// Also links a Python with the package, and creates workspaces that the users of sandboxed commands can reach.
fn environment(snippets: &Path, name: &str) -> Vec<(String, String)> {
    let read = |file: &str| fs::read_to_string(snippets.join(name).join(file)).unwrap_or_default();
    let pairs = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut variables: Vec<_> = read("env").lines().filter_map(pairs).collect();
    let tools = read("tools.yaml");
    if tools.contains("interpreter: .venv/bin/python") {
        std::os::unix::fs::symlink(interpreter().ancestors().nth(2).unwrap(), snippets.join(".venv")).unwrap();
    }
    if tools.contains("shell:") {
        fs::set_permissions(snippets, std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let workspaces = snippets.join("workspaces").display().to_string();
        variables.push(("TICKFLEET_WORKER_WORKSPACES".to_owned(), workspaces));
    }
    variables
}

fn install_typescript(snippets: &Path, name: &str) -> Option<Node> {
    let node = Node::that_strips_types()?;
    node.link(&snippets.join(name));
    Some(node)
}

fn lacks_sandbox(folder: &Path, name: &str) -> bool {
    let mut shell = Command::new("sh");
    let call = "tickfleet tools try count_words --agent support '{\"text\":\"a b\"}'";
    let tried =
        with_binary(shell.args(["-c", call]).env("TICKFLEET_CONFIG", name)).current_dir(folder).output().unwrap();
    String::from_utf8_lossy(&tried.stderr).contains("this machine does not support the sandbox level")
}

fn borrowed(variables: &[(String, String)]) -> Vec<(&str, &str)> {
    variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Without a scheduler and a worker, `submit` would print a warning.
fn until_ready(fleet: &DevFleet, folder: &Path, variables: &[(&str, &str)]) {
    let doctor = || {
        let mut shell = fleet.shell("tickfleet doctor 2>&1");
        shell.envs(variables.iter().copied());
        CommandOutput::of(with_binary(&mut shell).current_dir(folder), "").stdout
    };
    let is_ready =
        |said: &String| ["schedulers   1 alive", "workers      1 alive"].iter().all(|text| said.contains(text));
    until("a scheduler and a worker", doctor, is_ready);
}

async fn play(page: &str) {
    let text = fs::read_to_string(Path::new(REPOSITORY).join(page)).unwrap();
    let (folder, redis) =
        (snippets(), RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await);
    let url = redis.url();
    let mut args = vec!["--redis-url", url.as_str()];
    let mut variables = Vec::<(String, String)>::new();
    let mut service = None;
    let mut node_folder = None;
    if let Some(name) = configuration(&text) {
        if name == "shop-typescript" {
            let Some(node) = install_typescript(folder.path(), name) else { return };
            node_folder = node.folder();
        }
        args.extend(["--config", name]);
        variables = environment(folder.path(), name);
        variables.push(("TICKFLEET_CONFIG".to_owned(), name.to_owned()));
        if name == "shop-shell" && lacks_sandbox(folder.path(), name) {
            eprintln!("skipped: this machine has no sandbox");
            return;
        }
        let (running, url) = Service::start(folder.path(), name);
        variables.push(("SHOP_URL".to_owned(), url));
        service = Some(running);
    }
    variables.push(("REDIS_ADMIN_URL".to_owned(), url.clone()));
    variables.push(("XDG_DATA_HOME".to_owned(), folder.path().join("data-home").display().to_string()));
    let mut commands = shown(&text);
    let given = borrowed(&variables);
    if commands.first().is_some_and(|first| prepared(first, folder.path(), &given)) {
        commands.remove(0);
    }
    if let Ok(key) = fs::read_to_string(folder.path().join("seal.key")) {
        variables.push(("SEAL_KEY".to_owned(), key.trim().to_owned()));
    }
    let agents = PageEnvironment::of(&text, folder.path());
    let mut prelude = agents.as_ref().map(PageEnvironment::prelude).unwrap_or_default();
    let mut of_fleet = variables.clone();
    if let Some(node) = &node_folder {
        prelude = format!("PATH=\"{}:$PATH\"; ", node.display());
        of_fleet.push(("PATH".to_owned(), path_with(node)));
    }
    if let Some(agents) = &agents {
        of_fleet.push(("PATH".to_owned(), path_with(interpreter().parent().unwrap())));
        variables.extend(agents.variables.iter().cloned());
    }
    let fleet = DevFleet::start_in(folder.path(), &args, &borrowed(&of_fleet));
    until_ready(&fleet, folder.path(), &borrowed(&of_fleet));
    let gateway = text.contains("FLEET_KEY").then(|| {
        let keys = folder.path().join("keys.yaml");
        let key = add_key(&keys, &["--id", "shop", "--tenant", "acme"]);
        let gateway = Gateway::start(&url, &keys);
        variables.extend([("FLEET_URL".to_owned(), gateway.url()), ("FLEET_KEY".to_owned(), key)]);
        gateway
    });
    let given = borrowed(&variables);
    let mut ids = Ids::default();
    for shown in commands {
        if agents.as_ref().is_some_and(|agents| !agents.can_run(&shown.command)) {
            continue;
        }
        let command = ids.real(&shown.command);
        let run = || {
            let mut shell = fleet.shell(&format!("exec 2>&1; {prelude}{command}"));
            shell.envs(given.iter().copied());
            let said = CommandOutput::of(with_binary(&mut shell).current_dir(folder.path()), "");
            said.stdout
        };
        let reads = READS.iter().any(|verb| command.contains(verb));
        let mut printed = run();
        let began = Instant::now();
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
    drop((service, gateway, agents.map(|agents| agents.model)));
}

#[allow(clippy::disallowed_methods, reason = "the reader's PATH, with a virtual environment in front")]
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

#[derive(Default)]
struct Ids(BTreeMap<String, String>);

impl Ids {
    /// IDs of approvals, and IDs that the fleet generated for turns.
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
fn ids_of_a_run_replace_the_ids_on_a_page() {
    let mut ids = Ids::default();
    ids.learn("acme:apr-4f1d0c6b2a9e8d37 waits", "acme:apr-00000000000000aa waits");
    assert_eq!(
        ids.real("tickfleet approvals show acme:apr-4f1d0c6b2a9e8d37"),
        "tickfleet approvals show acme:apr-00000000000000aa"
    );
}

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
