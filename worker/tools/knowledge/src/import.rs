//! Imports documents into a knowledge base. Unchanged documents are skipped. Changed documents are replaced as a whole.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tickfleet_model::TenantId;
use tickfleet_model::knowledge::{Document, Passages};
use tickfleet_store::{KeepResult, Store, StoreError};

use crate::documents::Draft;
use crate::embeddings::{Embedder, TEXTS_MAX, clean};

const EMBED_TIMEOUT: Duration = Duration::from_secs(60);
/// The waits before the retries. A busy endpoint often responds a moment later.
const EMBED_WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    New,
    Replaced,
    Unchanged,
    /// An earlier document of this import has the same source and title.
    Twice,
    /// The base is full or memory is short. An older version remains stored.
    Refused(KeepResult),
}

pub struct Import<'a> {
    store: &'a Store,
    tenant: &'a TenantId,
    embedder: Option<&'a Embedder>,
    known: HashMap<String, Document>,
    seen: HashSet<String>,
    at_ms: i64,
    /// Set when the endpoint fails. Later passages get no embeddings.
    without_meaning: Option<String>,
}

impl<'a> Import<'a> {
    pub async fn begin(
        store: &'a Store,
        tenant: &'a TenantId,
        embedder: Option<&'a Embedder>,
    ) -> Result<Self, StoreError> {
        let known =
            store.documents(tenant).await?.into_iter().map(|document| (document.id.clone(), document)).collect();
        let at_ms = store.now_ms().await?;
        Ok(Self { store, tenant, embedder, known, seen: HashSet::new(), at_ms, without_meaning: None })
    }

    /// Why passages have no embeddings, although there is an endpoint. The next import embeds these passages.
    #[must_use]
    pub fn without_meaning(&self) -> Option<&str> {
        self.without_meaning.as_deref()
    }

    pub async fn keep(&mut self, draft: Draft) -> Result<Imported, StoreError> {
        if !self.seen.insert(draft.document.id.clone()) {
            return Ok(Imported::Twice);
        }
        let model = self.embedder.filter(|_| self.without_meaning.is_none()).map(Embedder::model).unwrap_or_default();
        let before = self.known.get(&draft.document.id);
        if before
            .is_some_and(|before| before.digest == draft.document.digest && (model.is_empty() || before.model == model))
        {
            return Ok(Imported::Unchanged);
        }
        let is_new = before.is_none();
        let vectors = self.vectors(&draft).await;
        let model = if vectors.is_empty() { String::new() } else { model.to_owned() };
        // After a failure of the endpoint, a document with unchanged text keeps its embeddings.
        let same_text = |before: &&Document| before.digest == draft.document.digest && model.is_empty();
        if self.known.get(&draft.document.id).as_ref().is_some_and(same_text) {
            return Ok(Imported::Unchanged);
        }
        let document = Document { model, at_ms: self.at_ms, ..draft.document };
        let passages = Passages { passages: draft.passages, vectors };
        Ok(match self.store.keep_document(self.tenant, &document, &passages).await? {
            KeepResult::Done { .. } if is_new => Imported::New,
            KeepResult::Done { .. } => Imported::Replaced,
            refused => Imported::Refused(refused),
        })
    }

    /// Returns the stored documents below `roots` (files or folders) that are no longer in their files.
    #[must_use]
    pub fn gone(&self, roots: &[String]) -> Vec<Document> {
        let below = |file: &str| {
            roots.iter().any(|root| {
                let folder = format!("{}/", root.trim_end_matches('/'));
                file == root || file.starts_with(&folder) || matches!(root.as_str(), "." | "")
            })
        };
        let gone = self.known.values().filter(|known| !self.seen.contains(&known.id) && below(&known.file));
        let mut gone: Vec<Document> = gone.cloned().collect();
        gone.sort_by(|a, b| (&a.source, &a.title).cmp(&(&b.source, &b.title)));
        gone
    }

    /// Empty if embeddings are not available. After a failure, the rest of the import gets no embeddings: each request
    /// would take the full time and fail.
    async fn vectors(&mut self, draft: &Draft) -> Vec<Vec<i8>> {
        let Some(embedder) = self.embedder.filter(|_| self.without_meaning.is_none()) else { return Vec::new() };
        let texts: Vec<String> = draft
            .passages
            .iter()
            .map(|passage| {
                let headings = passage.headings.join(" > ");
                clean(&format!("{}\n{headings}\n{}", draft.document.title, passage.text))
            })
            .collect();
        let mut vectors: Vec<Vec<i8>> = Vec::new();
        for some in texts.chunks(TEXTS_MAX) {
            match embed(embedder, some).await {
                Ok(more) if vectors.first().is_none_or(|first| first.len() == more[0].len()) => vectors.extend(more),
                Ok(_) => self.without_meaning = Some("the embeddings have different lengths".to_owned()),
                Err(why) => self.without_meaning = Some(why),
            }
            if self.without_meaning.is_some() {
                return Vec::new();
            }
        }
        vectors
    }
}

async fn embed(embedder: &Embedder, texts: &[String]) -> Result<Vec<Vec<i8>>, String> {
    let mut waits = EMBED_WAITS.into_iter();
    loop {
        match (embedder.embed_texts(texts, EMBED_TIMEOUT).await, waits.next()) {
            (Err(_), Some(wait)) => tokio::time::sleep(wait).await,
            (answer, _) => return answer,
        }
    }
}
