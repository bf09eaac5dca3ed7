//! Tests knowledge bases and memories in an in-memory shard.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use tickfleet_core::knowledge::{documents_key, memories_key, passages_key};
use tickfleet_core::view::Undecided;
use tickfleet_core::{Context, Decision, RecordKey, Step, Transaction, View, Write};
use tickfleet_model::knowledge::Memory;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::seam::memory::MemoryStore;
use tickfleet_store::{Store, StoreOptions};
use tickfleet_tools::Environment;
use tickfleet_tools_knowledge::Knowledge;
use tickfleet_tools_knowledge::documents::{FileFormat, read};
use tickfleet_tools_knowledge::import::{Import, Imported};
use tickfleet_tools_knowledge::recall::Source;
use tickfleet_tools_knowledge::search::Ranking;

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

fn store() -> Store {
    Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()))
}

struct Foreign(RecordKey, String, &'static [u8]);

impl Decision for Foreign {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        transaction.write(Write::PutPart(self.0.clone(), self.1.as_str().into(), self.2.into()));
        Ok(Step::Commit(transaction, ()))
    }
}

fn wordy() -> Knowledge {
    Knowledge::new(&Environment::of([]))
}

async fn import(store: &Store, of: &str, knowledge: &Knowledge, file: &str, text: &str, category: &str) -> Imported {
    let tenant = tenant(of);
    let mut import = Import::begin(store, &tenant, knowledge.embedder().unwrap()).await.unwrap();
    let draft = read(file, FileFormat::Markdown, text.as_bytes(), category).remove(0).unwrap();
    import.keep(draft).await.unwrap()
}

async fn found(knowledge: &Knowledge, store: &Store, of: &str, query: &str) -> Vec<String> {
    let found = knowledge.search(store, &tenant(of), query, None, 5).await.unwrap();
    found.passages.into_iter().map(|passage| passage.text).collect()
}

fn memory(id: &str, text: &str, at_ms: i64) -> Memory {
    Memory { id: id.into(), text: text.into(), tags: Vec::new(), at_ms }
}

#[tokio::test]
async fn documents_are_private_to_a_tenant_and_memories_to_an_agent() {
    let store = store();
    let knowledge = wordy();
    import(&store, "acme", &knowledge, "a.md", "The secret recipe has saffron.", "").await;
    import(&store, "acme2", &knowledge, "a.md", "Nothing of it.", "").await;
    assert_eq!(found(&knowledge, &store, "acme", "saffron recipe").await.len(), 1);
    assert!(found(&knowledge, &store, "acme2", "saffron recipe").await.is_empty());
    assert!(found(&knowledge, &store, "unknown", "saffron recipe").await.is_empty());
    store.remember(&tenant("acme"), &agent("kelly"), &memory("m", "Ben likes saffron.", 1)).await.unwrap();
    let recall = async |of: &str, who: &str, sources: &[Source]| {
        knowledge.recall(&store, &tenant(of), &agent(who), "saffron", sources, 9).await.results.len()
    };
    assert_eq!(recall("acme", "kelly", &[Source::Memory]).await, 1);
    assert_eq!(recall("acme", "atlas", &[Source::Memory]).await, 0);
    assert_eq!(recall("acme2", "kelly", &[]).await, 0);
    assert_eq!(recall("acme", "kelly", &[]).await, 2, "the note and the passage");
    store.remember(&tenant("acme"), &agent("kelly"), &memory("n", "Saffron is dear.", 2)).await.unwrap();
    assert_eq!(recall("acme", "kelly", &[Source::Memory]).await, 2);
    assert_eq!(store.forget(&tenant("acme"), &agent("kelly"), &["n".into()]).await.unwrap(), 1);
    assert_eq!(recall("acme", "kelly", &[Source::Memory]).await, 1);
    assert_eq!(store.forget(&tenant("acme"), &agent("atlas"), &["m".into()]).await.unwrap(), 0);
    let id = store.documents(&tenant("acme")).await.unwrap()[0].id.clone();
    assert_eq!(store.drop_documents(&tenant("other"), &[id]).await.unwrap(), 0);
}

#[tokio::test]
async fn an_unchanged_import_writes_nothing_and_workers_see_changes_at_once() {
    let store = store();
    let one = wordy();
    let other = wordy();
    assert_eq!(import(&store, "acme", &one, "a.md", "# A\n\nBlue whales.", "sea").await, Imported::New);
    assert_eq!(found(&other, &store, "acme", "whales").await, ["Blue whales."]);
    let before = store.knowledge_state(&tenant("acme"), None).await.unwrap();
    assert_eq!(import(&store, "acme", &one, "a.md", "# A\n\nBlue whales.", "sea").await, Imported::Unchanged);
    assert_eq!(store.knowledge_state(&tenant("acme"), None).await.unwrap(), before);
    assert_eq!(import(&store, "acme", &one, "a.md", "# A\n\nGrey whales.", "sea").await, Imported::Replaced);
    for knowledge in [&one, &other] {
        assert_eq!(found(knowledge, &store, "acme", "whales").await, ["Grey whales."]);
        assert!(found(knowledge, &store, "acme", "blue").await.is_empty());
    }
    // The category filter ignores case.
    let sea = one.search(&store, &tenant("acme"), "whales", Some(" SEA "), 5).await.unwrap();
    assert_eq!((sea.passages.len(), sea.passages[0].title.as_str(), sea.passages[0].source.as_str()), (1, "A", "a.md"));
    assert!(one.search(&store, &tenant("acme"), "whales", Some("sky"), 5).await.unwrap().passages.is_empty());
    let id = store.documents(&tenant("acme")).await.unwrap()[0].id.clone();
    assert_eq!(store.drop_documents(&tenant("acme"), &[id]).await.unwrap(), 1);
    assert!(found(&other, &store, "acme", "whales").await.is_empty());
    assert_eq!(store.knowledge_state(&tenant("acme"), None).await.unwrap().bytes, 0);
}

/// The vectors show only whether a text mentions whales, bread or neither.
struct Endpoint {
    url: String,
    asked: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Endpoint {
    async fn start() -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let broken = Arc::new(AtomicBool::new(false));
        let count = Arc::clone(&asked);
        let is_broken = Arc::clone(&broken);
        let answer = move |Json(question): Json<Value>| {
            count.fetch_add(1, Ordering::SeqCst);
            let is_broken = is_broken.load(Ordering::SeqCst);
            async move {
                if is_broken {
                    return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": "gone"})));
                }
                let about = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
                let vector = |text: &str| match text {
                    text if about(text, &["whale", "cetacean"]) => json!([1.0, 0.1]),
                    text if about(text, &["bread", "loaf"]) => json!([0.1, 1.0]),
                    _ => json!([-1.0, -1.0]),
                };
                let texts = question["input"].as_array().unwrap().iter().enumerate();
                let data: Vec<Value> = texts
                    .map(|(index, text)| json!({"index": index, "embedding": vector(&text.as_str().unwrap().to_lowercase())}))
                    .collect();
                (StatusCode::OK, Json(json!({"data": data})))
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = axum::Router::new().route("/v1/embeddings", post(answer));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, asked, broken }
    }

    fn knowledge(&self) -> Knowledge {
        tickfleet_outbound::install_crypto_provider();
        let variables =
            [("EMBEDDINGS_MODEL", "m"), ("EMBEDDINGS_BASE_URL", &*self.url), ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1")];
        Knowledge::new(&Environment::of(variables))
    }
}

#[tokio::test]
async fn search_uses_meaning_and_falls_back_to_words() {
    let endpoint = Endpoint::start().await;
    let store = store();
    let knowledge = endpoint.knowledge();
    // The next import adds missing embeddings, even to unchanged texts.
    assert_eq!(import(&store, "acme", &wordy(), "w.md", "The whale is a mammal.", "").await, Imported::New);
    assert_eq!(import(&store, "acme", &knowledge, "w.md", "The whale is a mammal.", "").await, Imported::Replaced);
    import(&store, "acme", &knowledge, "b.md", "Bread needs time.", "").await;
    let asked = endpoint.asked.load(Ordering::SeqCst);
    assert_eq!(import(&store, "acme", &knowledge, "b.md", "Bread needs time.", "").await, Imported::Unchanged);
    assert_eq!(endpoint.asked.load(Ordering::SeqCst), asked);
    let search = async |query: &str| knowledge.search(&store, &tenant("acme"), query, None, 1).await.unwrap();
    let cetaceans = search("cetaceans").await;
    assert_eq!((cetaceans.ranking, cetaceans.passages[0].source.as_str()), (Ranking::Meaning, "w.md"));
    assert_eq!(search("how long must a loaf rise?").await.passages[0].source, "b.md");
    // During the failure and the following pause, searches use words.
    endpoint.broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let bread = search("bread").await;
        assert_eq!((bread.ranking, bread.passages[0].source.as_str()), (Ranking::Words, "b.md"));
        assert!(bread.note.is_some());
    }
    assert_eq!(endpoint.asked.load(Ordering::SeqCst), asked + 3, "one that failed is not asked at once again");
    // An import without the endpoint keeps the embeddings of unchanged documents.
    assert_eq!(
        import(&store, "acme", &endpoint.knowledge(), "w.md", "The whale is a mammal.", "").await,
        Imported::Unchanged
    );
}

#[tokio::test]
async fn hostile_queries_never_break_a_search() {
    let store = store();
    let knowledge = wordy();
    import(&store, "acme", &knowledge, "a.md", "Whales.", "").await;
    let huge = "whales ä".repeat(500_000);
    for (query, hits) in
        [(huge.as_str(), 1), ("\0\0\0", 0), ("whales\0", 1), ("", 0), ("{{}} ${x} \u{202e}", 0), ("%n%s", 0)]
    {
        assert_eq!(found(&knowledge, &store, "acme", query).await.len(), hits, "{:?}", query.get(..20));
        let recalled = knowledge.recall(&store, &tenant("acme"), &agent("kelly"), query, &[], 5).await;
        assert_eq!((recalled.results.len(), recalled.incomplete.len()), (hits, 0));
    }
}

#[tokio::test]
async fn corrupt_data_affects_only_its_own_entry() {
    let store = store();
    let knowledge = wordy();
    import(&store, "acme", &knowledge, "a.md", "Whales.", "").await;
    import(&store, "acme", &knowledge, "b.md", "Whales too.", "").await;
    let id = store.documents(&tenant("acme")).await.unwrap()[0].id.clone();
    let acme = tenant("acme");
    let kelly = agent("kelly");
    store.remember(&acme, &kelly, &memory("m", "Bread.", 1)).await.unwrap();
    for foreign in [
        Foreign(passages_key(&acme), id, b"\xff\xfe"),
        Foreign(documents_key(&acme), "odd".to_owned(), b"no json"),
        Foreign(memories_key(&acme, &kelly), "odd".to_owned(), b"\0"),
    ] {
        store.decide(foreign).await.unwrap();
    }
    assert_eq!(found(&knowledge, &store, "acme", "whales").await.len(), 1);
    let recalled = knowledge.recall(&store, &tenant("acme"), &agent("kelly"), "whales", &[], 5).await;
    assert_eq!((recalled.results.len(), recalled.incomplete.len()), (1, 0));
}
