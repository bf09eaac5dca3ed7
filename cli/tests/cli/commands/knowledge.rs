//! `kb` and `memory`: accepted and rejected imports, and the state after a killed import.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::routing::post;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;
use tokio::sync::Notify;

use crate::support::binary::{CommandOutput, DevFleet, command};
use crate::support::serve::serve;

struct KnowledgeFixture {
    redis: RedisServer,
    dir: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

impl KnowledgeFixture {
    async fn new() -> Self {
        Self { redis: RedisServer::start().await, dir: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let url = self.redis.url();
        let mut command = command(&[args, &["--redis-url", &url]].concat());
        for name in ["EMBEDDINGS_MODEL", "EMBEDDINGS_BASE_URL", "EMBEDDINGS_API_KEY"] {
            command.env_remove(name);
        }
        command.current_dir(self.dir.path()).envs(self.variables.iter().map(|(name, value)| (*name, value.as_str())));
        command
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(&mut self.command(args), "")
    }

    fn import(&self, args: &[&str]) -> CommandOutput {
        self.run(&[&["kb", "import", "--tenant", "demo", "--json"], args].concat())
    }

    fn sources(&self) -> Vec<String> {
        let listed = self.run(&["kb", "list", "--tenant", "demo", "--json"]).exits(0).json();
        listed.as_array().unwrap().iter().map(|document| document["source"].as_str().unwrap().to_owned()).collect()
    }
}

fn counts(report: &Value) -> [i64; 5] {
    ["new", "replaced", "unchanged", "removed", "gone"].map(|name| report[name].as_i64().unwrap())
}

#[tokio::test]
async fn a_reimport_skips_unchanged_files_and_prunes_missing_ones_on_request() {
    let place = KnowledgeFixture::new().await;
    place.write("docs/a.md", "# Refunds\n\nA refund takes three days.");
    place.write("docs/deep/b.txt", "Parcels go out at noon.");
    place.write("docs/c.jsonl", "{\"title\":\"Hours\",\"text\":\"We open at nine.\",\"category\":\"times\"}\n");
    place.write("docs/picture.png", b"\x89PNG\0");
    place.write("elsewhere.md", "# Elsewhere\n\nNot in the folder.");
    let report = place.import(&["./docs/", "elsewhere.md", "--category", "handbook"]).exits(0).json();
    assert_eq!((counts(&report), &report["left_out"]), ([4, 0, 0, 0, 0], &json!(1)));
    assert_eq!(counts(&place.import(&["docs", "--category", "handbook"]).exits(0).json()), [0, 0, 3, 0, 0]);
    assert_eq!(place.sources(), ["docs/a.md", "docs/c.jsonl", "docs/deep/b.txt", "elsewhere.md"]);

    place.write("docs/a.md", "# Refunds\n\nA refund takes five days.");
    fs::remove_file(place.dir.path().join("docs/deep/b.txt")).unwrap();
    let report = place.import(&["docs", "--category", "handbook"]).exits(0).json();
    assert_eq!(counts(&report), [0, 1, 1, 0, 1], "nothing is removed that nobody asked to be");
    let report = place.import(&["docs", "--category", "handbook", "--prune"]).exits(0).json();
    assert_eq!(counts(&report), [0, 0, 2, 1, 1]);
    assert_eq!(place.sources(), ["docs/a.md", "docs/c.jsonl", "elsewhere.md"]);

    let found =
        place.run(&["kb", "search", "--tenant", "demo", "how long does a refund take", "--json"]).exits(0).json();
    assert_eq!(found["passages"][0]["text"], "A refund takes five days.");
    assert_eq!((&found["ranking"], &found["passages"][0]["category"]), (&json!("words"), &json!("handbook")));
    let times = ["kb", "search", "--tenant", "demo", "open", "--category", "times", "--json"];
    assert_eq!(place.run(&times).exits(0).json()["passages"][0]["title"], "Hours");
    let other = place.run(&["kb", "search", "--tenant", "atlas-ux", "refund", "--json"]).exits(0).json();
    assert_eq!(other["passages"], json!([]));

    place
        .run(&["kb", "remove", "--tenant", "demo", "docs/a.md", "nothing"])
        .exits(1)
        .prints_error("Nothing was removed");
    place.run(&["kb", "remove", "--tenant", "demo", "docs/"]).exits(0).says("documents removed: 2");
    place.run(&["kb", "remove", "--tenant", "demo", "--all"]).exits(0).says("documents removed: 1");
    place.run(&["kb", "list", "--tenant", "demo"]).exits(0).says("no documents");
}

#[tokio::test]
async fn an_import_reports_invalid_files_and_imports_the_others() {
    let place = KnowledgeFixture::new().await;
    place.write("docs/good.md", "Good.");
    assert_eq!(counts(&place.import(&["docs"]).exits(0).json()), [1, 0, 0, 0, 0]);
    fs::remove_file(place.dir.path().join("docs/good.md")).unwrap();
    place.write("docs/other.md", "Other.");
    place.write("docs/huge.md", vec![b'x'; 10 << 20]);
    place.write("docs/binary.md", b"MZ\0\0");
    place.write("docs/latin.txt", b"caf\xe9");
    place.write("docs/empty.md", "");
    place.write("docs/lines.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}\nno json\n[1]\n");
    place.write("tool.exe", "x");
    let said = place.import(&["docs", "tool.exe", "missing", "--prune"]).exits(1);
    let report = said.json();
    assert_eq!(counts(&report), [2, 0, 0, 0, 0], "what cannot be read is not gone: nothing is pruned");
    let mut problems: Vec<String> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reported| reported["place"].as_str().unwrap().to_owned())
        .collect();
    problems.sort();
    assert_eq!(
        problems,
        [
            "docs/binary.md",
            "docs/empty.md",
            "docs/huge.md",
            "docs/latin.txt",
            "docs/lines.jsonl",
            "docs/lines.jsonl:3",
            "docs/lines.jsonl:4",
            "missing",
            "tool.exe"
        ]
    );
    assert_eq!(place.sources(), ["docs/good.md", "docs/lines.jsonl", "docs/other.md"]);
    place.run(&["kb", "import", "docs/good.md", "--tenant", "nobody"]).exits(1).prints_error("unknown tenant");
}

async fn endpoint(answers: usize) -> (String, Arc<Notify>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let stuck = Arc::new(Notify::new());
    let is_stuck = Arc::clone(&stuck);
    let answer = move |Json(question): Json<Value>| {
        let number = asked.fetch_add(1, Ordering::SeqCst);
        let stuck = Arc::clone(&is_stuck);
        async move {
            if number >= answers {
                stuck.notify_one();
                std::future::pending::<()>().await;
            }
            let texts = question["input"].as_array().unwrap().len();
            let data: Vec<Value> = (0..texts).map(|index| json!({"index": index, "embedding": [0.5, 1.0]})).collect();
            Json(json!({"data": data}))
        }
    };
    let address = serve(axum::Router::new().route("/v1/embeddings", post(answer))).await;
    (format!("http://{address}/v1"), stuck)
}

async fn versions(redis: &RedisServer) -> HashMap<String, Vec<String>> {
    let mut connection = redis.connection().await;
    let command = redis::cmd("HGETALL").arg("{tickfleet:0}:parts:passages:demo").to_owned();
    let documents: HashMap<String, Vec<u8>> = command.query_async(&mut connection).await.unwrap();
    let passages = |bytes: Vec<u8>| -> Vec<String> {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
        let passages: Vec<Value> = serde_json::from_slice(line).unwrap();
        passages.iter().map(|passage| passage["text"].as_str().unwrap()[..2].to_owned()).collect()
    };
    documents.into_iter().map(|(id, bytes)| (id, passages(bytes))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_import_keeps_documents_whole_and_a_rerun_completes_it() {
    const DOCUMENTS: usize = 40;
    const ANSWERED: usize = 15;
    let mut place = KnowledgeFixture::new().await;
    let write = |place: &KnowledgeFixture, version: &str| {
        // The import never joins sections, so each document has three passages.
        let section = |number| format!("## Part {number}\n\n{version} of the text.\n\n");
        let text: String = (0..3).map(section).collect();
        (0..DOCUMENTS).for_each(|number| place.write(&format!("docs/{number:02}.md"), &text));
    };
    write(&place, "v1");
    assert_eq!(counts(&place.import(&["docs"]).exits(0).json())[0], 40);
    write(&place, "v2");
    let (url, stuck) = endpoint(ANSWERED).await;
    place.variables = vec![
        ("EMBEDDINGS_MODEL", "m".into()),
        ("EMBEDDINGS_BASE_URL", url),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1".into()),
    ];
    let mut import = place.command(&["kb", "import", "docs", "--tenant", "demo"]).spawn().unwrap();
    tokio::time::timeout(Duration::from_secs(60), stuck.notified()).await.unwrap();
    import.kill().unwrap();
    import.wait().unwrap();
    let documents = versions(&place.redis).await;
    assert_eq!(documents.len(), DOCUMENTS);
    let whole = |version: &str| documents.values().filter(|passages| **passages == [version; 3]).count();
    assert_eq!((whole("v1"), whole("v2")), (DOCUMENTS - ANSWERED, ANSWERED));
    place.variables[1].1 = endpoint(usize::MAX).await.0;
    let report = place.import(&["docs"]).exits(0).json();
    assert_eq!(counts(&report), [0, 25, 15, 0, 0]);
    assert!(versions(&place.redis).await.values().all(|passages| *passages == ["v2"; 3]));
}

#[tokio::test]
async fn memories_are_added_listed_and_deleted_per_agent() {
    let place = KnowledgeFixture::new().await;
    let memory = |what: &[&str], agent: &str| {
        place.run(&[&["memory"], what, &["--tenant", "demo", "--agent", agent, "--json"]].concat())
    };
    let added = memory(&["add", "Ben wants posts before nine.", "--tag", "ben"], "kelly").exits(0).json();
    assert_eq!(added, json!({"added": 1, "known": 0, "forgotten": 0}));
    assert_eq!(memory(&["add", "Ben wants posts before nine."], "kelly").exits(0).json()["known"], 1);
    place.write("notes.jsonl", "{\"text\":\"One.\",\"tags\":[\"a\"]}\n{\"text\":\"Two.\"}\n");
    place.write("notes.txt", "Three.\n\nFour\nlines.\n");
    assert_eq!(memory(&["import", "notes.jsonl"], "kelly").exits(0).json()["added"], 2);
    assert_eq!(memory(&["import", "notes.txt"], "kelly").exits(0).json()["added"], 2);
    place.write("bad.jsonl", "{\"text\":\"Five.\"}\n{\"text\":\"\"}\n");
    memory(&["import", "bad.jsonl"], "kelly").exits(1).prints_error("line 2: text: it says nothing");
    let listed = memory(&["list"], "kelly").exits(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 5, "all of a file or none");
    assert_eq!(memory(&["list"], "atlas").exits(0).json(), json!([]));
    let id = listed[0]["id"].as_str().unwrap();
    memory(&["forget", id], "atlas").exits(1).prints_error("nothing was deleted");
    assert_eq!(memory(&["forget", id], "kelly").exits(0).json()["forgotten"], 1);
    assert_eq!(memory(&["forget", "--all"], "kelly").exits(0).json()["forgotten"], 4);
    memory(&["list"], "kely").exits(1).prints_error("Did you mean \"kelly\"?");
}

fn call(fleet: &DevFleet, tenant: &str, agent: &str, tool: &str, arguments: &Value, more: &[&str]) -> Value {
    let call = format!("{tool} {arguments}");
    let turn = ["submit", "--tenant", tenant, "--agent", agent, "--call", &call, "--wait", "--json"];
    let reply = fleet.run(&[&turn, more].concat()).json();
    reply["results"][0].clone()
}

/// (source, text) of each memory.
fn recalled(fleet: &DevFleet, (tenant, agent): (&str, &str), arguments: &Value) -> Vec<(String, String)> {
    let result = call(fleet, tenant, agent, "search_my_memories", arguments, &[]);
    assert_eq!((&result["outcome"], &result["output"]["incomplete"]), (&json!("ok"), &json!([])), "{result:#}");
    let text = |found: &Value, member: &str| found[member].as_str().unwrap().to_owned();
    let results = result["output"]["results"].as_array().unwrap();
    results.iter().map(|found| (text(found, "source"), text(found, "text"))).collect()
}

#[tokio::test]
async fn agents_recall_only_their_own_notes_calls_and_tasks() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let kelly = ("demo", "kelly");
    let atlas = ("demo", "atlas");
    let note = json!({"text": "The zeppelin post goes out on Friday.", "tags": ["plans"]});
    for _ in 0..2 {
        call(&fleet, "demo", "kelly", "remember", &note, &["--turn-id", "note-1"]);
    }
    let noted = fleet.run(&["memory", "list", "--tenant", "demo", "--agent", "kelly", "--json"]).exits(0).json();
    assert_eq!(noted.as_array().unwrap().len(), 1);
    call(&fleet, "demo", "kelly", "echo", &json!({"text": "a zeppelin over the lake"}), &[]);
    fleet.run(&["delegate", "--tenant", "demo", "--to", "kelly", "Describe the zeppelin hangar.", "--wait"]).exits(1);
    let found = recalled(&fleet, kelly, &json!({"query": "zeppelin"}));
    for (source, text) in [("memory", "goes out on Friday"), ("workflows", "zeppelin hangar")] {
        assert!(found.iter().any(|(of, said)| of == source && said.contains(text)), "no {text:?} in {found:#?}");
    }
    let lake = found.iter().filter(|(_, text)| text.contains("over the lake")).count();
    assert_eq!(lake, 1, "a call and its turn are one: {found:#?}");
    let calls = recalled(&fleet, kelly, &json!({"query": "zeppelin", "sources": ["audit"]}));
    assert_eq!(calls.len(), 1, "looking up is not found: {calls:#?}");
    assert!(calls[0].1.contains("over the lake") && calls[0].0 == "audit");
    assert_eq!(recalled(&fleet, atlas, &json!({"query": "zeppelin"})), []);
    assert_eq!(recalled(&fleet, ("atlas-ux", "kelly"), &json!({"query": "zeppelin"})), []);
    let wrong = call(&fleet, "demo", "kelly", "search_my_memories", &json!({"query": "x", "sources": ["mail"]}), &[]);
    assert_eq!(wrong["outcome"], "invalid_arguments");
    let long = "x".repeat(2_000);
    let wrong = call(&fleet, "demo", "kelly", "search_atlasux_knowledge", &json!({"query": long}), &[]);
    assert_eq!(wrong["outcome"], "invalid_arguments");
    let blank = call(&fleet, "demo", "kelly", "remember", &json!({"text": " \u{1}"}), &[]);
    assert_eq!(blank["outcome"], "invalid_arguments");
}
