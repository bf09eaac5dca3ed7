//! Twenty questions about the documentation of this repository. Do not adjust them to improve the results.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what is found is to be read, and the rates are published")]

use std::path::Path;
use std::sync::Arc;

use tickfleet_model::TenantId;
use tickfleet_store::seam::memory::MemoryStore;
use tickfleet_store::{Store, StoreOptions};
use tickfleet_tools::Environment;
use tickfleet_tools_knowledge::Knowledge;
use tickfleet_tools_knowledge::documents::{FileFormat, read};
use tickfleet_tools_knowledge::import::Import;
use tickfleet_tools_knowledge::search::Ranking;

/// A question, and texts that identify the answer. A passage on any page has the answer if it contains one of the
/// texts.
const QUESTIONS: [(&str, &[&str]); 20] = [
    ("At what fill level of Redis memory does the fleet stop taking in new turns?", &["80 %"]),
    (
        "How long can I still ask for a reply that was lost on its way?",
        &["for an hour", "one hour", "retention.records"],
    ),
    ("What becomes of a call that must not happen twice when its worker dies?", &["outcome_unknown"]),
    ("How do I keep one agent from calling a tool that everybody else may use?", &["deny_agents"]),
    ("Which signal should I send to a worker so that nothing is lost when I scale in?", &["SIGTERM"]),
    ("How many workers do I need for 2000 calls a second of half a second each?", &["Little's law", "2,000 | 0.5 s"]),
    ("Can I run it on Redis Cluster or with Sentinel?", &["redis+cluster://", "redis+sentinel://", "Redis Cluster"]),
    ("How does a declared web service tool obtain an access token?", &["access token", "oauth2"]),
    ("Can I see what each check says about one call without a running fleet?", &["tools try"]),
    ("May a tool reach a machine inside my own network?", &["allow_private"]),
    ("How do I turn an OpenAPI document into tools?", &["tools import"]),
    ("What do others call a visibility timeout?", &["visibility timeout"]),
    ("How do I make it safe to send the same turn again after an error?", &["idempotent", "turn ID", "turn_id"]),
    ("Where does Prometheus read the numbers, and is a password needed?", &["/metrics", "no authentication"]),
    ("How do I repeat a run of chaos that failed?", &["make chaos SEED", "TICKFLEET_CHAOS_SEED"]),
    ("What happens after somebody flushed Redis?", &["flush", "FLUSH"]),
    ("In which providers' formats can tools be shown to a model?", &["--format", "eight dialects", "Chat Completions"]),
    ("Where do I put the password that a tool needs?", &["${SECRET}", "secrets:", "Secrets of tools", "secret"]),
    ("How do I hold an agent at an older version of a tool?", &["tool_versions"]),
    ("Do more shards make the fleet faster?", &["Shards", "shards"]),
];

/// The number of questions that the first five passages must answer. The first results were 20 by words and 19 by
/// meaning. The pages change over time, so this number is lower.
const WITHIN_FIVE: usize = 15;

/// Leaves out decision records and the page about searching, because that page shows searches of these pages.
fn pages(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(below) = folders.pop() {
        for entry in folder.join(&below).read_dir().unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                if !["adr", "site", "console", "snippets", "example-tools", "own-fleet"].contains(&name.as_str()) {
                    folders.push(format!("{name}/"));
                }
            } else if name.ends_with(".md") && name != "build/knowledge.md" {
                found.push(name);
            }
        }
    }
    found
}

/// Returns the number of questions that the first five passages answer, and that the first passage answers.
async fn asked(environment: Environment) -> (usize, usize, Ranking) {
    tickfleet_outbound::install_crypto_provider();
    let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
    let knowledge = Knowledge::new(&environment);
    let tenant = TenantId::new("docs").unwrap();
    let mut import = Import::begin(&store, &tenant, knowledge.embedder().unwrap()).await.unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    for name in pages(&folder) {
        let form = FileFormat::of(&name).unwrap();
        for draft in read(&format!("docs/{name}"), form, &std::fs::read(folder.join(&name)).unwrap(), "docs") {
            import.keep(draft.unwrap()).await.unwrap();
        }
    }
    assert_eq!(import.without_meaning(), None);
    let mut five = 0;
    let mut first = 0;
    let mut ranking = Ranking::Words;
    for (question, answering) in QUESTIONS {
        let found = knowledge.search(&store, &tenant, question, None, 5).await.unwrap();
        let answers = |passage: &tickfleet_tools_knowledge::search::FoundPassage| {
            answering.iter().any(|text| passage.text.contains(text))
        };
        let at = found.passages.iter().position(answers);
        println!("{} {question}", at.map_or("-".to_owned(), |at| (at + 1).to_string()));
        (five, first) = (five + usize::from(at.is_some()), first + usize::from(at == Some(0)));
        ranking = found.ranking;
    }
    println!("{five} of 20 within five, {first} first, ranked by {ranking:?}");
    (five, first, ranking)
}

#[tokio::test]
async fn questions_over_the_documentation_are_answered_by_words() {
    let (five, _, ranking) = asked(Environment::of([])).await;
    assert_eq!(ranking, Ranking::Words);
    assert!(five >= WITHIN_FIVE, "{five} of 20");
}

/// `EMBEDDINGS_MODEL` and `EMBEDDINGS_BASE_URL` name the endpoint, such as tests/python/embeddings.py.
#[tokio::test]
#[ignore = "it needs an endpoint of embeddings, and two minutes of both cores"]
#[allow(clippy::disallowed_methods, reason = "whoever starts the test names the endpoint")]
async fn questions_over_the_documentation_are_answered_by_meaning() {
    let allowed = |name: &str| if name == "TICKFLEET_ALLOW_PRIVATE" { Some("127.0.0.1".to_owned()) } else { None };
    let environment = Environment::new(move |name| allowed(name).or_else(|| std::env::var(name).ok()));
    let (five, _, ranking) = asked(environment).await;
    assert_eq!(ranking, Ranking::Meaning);
    assert!(five >= WITHIN_FIVE, "{five} of 20");
}
