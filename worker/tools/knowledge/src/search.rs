//! Searches a tenant's knowledge base by words, and by meaning if an embeddings endpoint is configured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tickfleet_model::{TenantId, limits};
use tickfleet_store::{Store, StoreError};
use tickfleet_tools::{Environment, wording};

use crate::audit::AuditLogs;
use crate::base::{KnowledgeBase, PassageRef};
use crate::embeddings::Embedder;
use crate::memories::MemoryCaches;
use crate::words::query_words;

/// An approximate limit per process. The most recently searched bases are kept.
const BASES_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Without an embedding after this time, the search ranks by words only.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(1_500);
const CONSIDERED: usize = 50;
/// How slowly a rank's weight decreases: the usual constant of reciprocal rank fusion.
const RANK_DAMPING: f32 = 60.0;

/// All shards of a process share this state. A reload keeps the state, so that not all data is read again.
#[derive(Debug)]
pub struct Knowledge {
    embedder: Result<Option<Embedder>, String>,
    bases: Mutex<BaseCache>,
    pub(crate) logs: AuditLogs,
    pub(crate) notes: MemoryCaches,
}

#[derive(Debug, Default)]
struct BaseCache {
    by_tenant: HashMap<TenantId, (Arc<KnowledgeBase>, u64)>,
    asked: u64,
}

/// How passages were ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ranking {
    /// By the words of the question only.
    Words,
    /// By the meaning of the question (its embedding), and by its words.
    Meaning,
}

/// A passage that matches the question.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FoundPassage {
    /// The document's title, and the headings above the passage.
    pub title: String,
    /// The document's origin.
    pub source: String,
    /// The document's category; empty if it has none.
    pub category: String,
    /// The passage.
    pub text: String,
    /// How well the passage fits the question, 0 to 1.
    pub score: f32,
    /// How well the passage fits, comparable between sources. `score` may instead come from joined rankings.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) fit: f32,
}

type RankedPassage = (PassageRef, f32, f32);

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Findings {
    /// The passages that fit best, best first.
    pub passages: Vec<FoundPassage>,
    /// How they were ranked: by words or by meaning.
    pub ranking: Ranking,
    /// Why only words were used although embeddings should have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Knowledge {
    /// Sends no request. [`Self::embedder`] reports an unusable endpoint.
    #[must_use]
    pub fn new(environment: &Environment) -> Self {
        let embedder = Embedder::from_environment(environment);
        Self { embedder, bases: Mutex::default(), logs: AuditLogs::default(), notes: MemoryCaches::default() }
    }

    /// The error is a problem with the variables that name the endpoint.
    pub fn embedder(&self) -> Result<Option<&Embedder>, String> {
        self.embedder.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    pub async fn search(
        &self,
        store: &Store,
        tenant: &TenantId,
        query: &str,
        category: Option<&str>,
        most: usize,
    ) -> Result<Findings, StoreError> {
        let query = &*wording::cut(query, limits::QUERY_BYTES_MAX);
        let category = category.map(|category| category.trim().to_lowercase()).filter(|category| !category.is_empty());
        let base = self.base(tenant);
        base.refresh(store, tenant).await?;
        let by_words = base.by_words(&query_words(query), category.as_deref(), CONSIDERED);
        let embedder = self.embedder.as_ref().ok().and_then(Option::as_ref);
        let embedder = embedder.filter(|embedder| base.has_vectors_of(embedder.model()));
        let alone =
            |found: Vec<(PassageRef, f32)>| found.into_iter().map(|(place, score)| (place, score, score)).collect();
        let Some(embedder) = embedder else {
            return Ok(Findings { passages: shown(alone(by_words), most), ranking: Ranking::Words, note: None });
        };
        match embedder.embed_query(query, QUESTION_TIMEOUT).await {
            Ok(vector) => {
                let by_meaning = base.by_meaning(&vector, embedder.model(), category.as_deref(), CONSIDERED).await;
                let joined = joined(by_meaning, by_words);
                Ok(Findings { passages: shown(joined, most), ranking: Ranking::Meaning, note: None })
            }
            Err(why) => {
                tracing::warn!(why, "no embedding for the question; searching by words only");
                let note = Some(format!("Ranked by words alone: {why}."));
                Ok(Findings { passages: shown(alone(by_words), most), ranking: Ranking::Words, note })
            }
        }
    }

    /// Drops the least recently searched bases if all bases exceed the memory limit.
    fn base(&self, tenant: &TenantId) -> Arc<KnowledgeBase> {
        let mut bases = self.bases.lock();
        bases.asked += 1;
        let now = bases.asked;
        let (base, asked) = bases.by_tenant.entry(tenant.clone()).or_default();
        *asked = now;
        let base = Arc::clone(base);
        let mut bytes: usize = bases.by_tenant.values().map(|(base, _)| base.bytes()).sum();
        while bytes > BASES_BYTES_MAX && bases.by_tenant.len() > 1 {
            let oldest = bases.by_tenant.iter().min_by_key(|(_, (_, asked))| *asked);
            let Some((tenant, weight)) = oldest.map(|(tenant, (base, _))| (tenant.clone(), base.bytes())) else {
                break;
            };
            bases.by_tenant.remove(&tenant);
            bytes = bytes.saturating_sub(weight);
        }
        base
    }
}

/// Joins two rankings. A passage that is first in both rankings has the score 1.
fn joined(one: Vec<(PassageRef, f32)>, other: Vec<(PassageRef, f32)>) -> Vec<RankedPassage> {
    let mut found: Vec<RankedPassage> = Vec::new();
    for (rank, (place, own)) in one.into_iter().enumerate().chain(other.into_iter().enumerate()) {
        let score = (RANK_DAMPING + 1.0) / (RANK_DAMPING + 1.0 + rank as f32) / 2.0;
        let same = |(held, number): &PassageRef| Arc::ptr_eq(held, &place.0) && *number == place.1;
        match found.iter_mut().find(|(place, ..)| same(place)) {
            Some((_, sum, fit)) => (*sum, *fit) = (*sum + score, fit.max(own)),
            None => found.push((place, score, own)),
        }
    }
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

fn shown(found: Vec<RankedPassage>, most: usize) -> Vec<FoundPassage> {
    let passage = |((held, number), score, fit): RankedPassage| {
        let document = &held.document;
        let passage = held.passages.passages.get(number)?;
        let headings = std::iter::once(&document.title).chain(&passage.headings);
        let title: Vec<&str> = headings.map(String::as_str).filter(|part| !part.is_empty()).collect();
        Some(FoundPassage {
            title: wording::cut(&title.join(" > "), 2 * limits::DOCUMENT_NAME_BYTES_MAX),
            source: document.source.clone(),
            category: document.category.clone(),
            text: passage.text.clone(),
            score: rounded(score),
            fit: rounded(fit),
        })
    };
    found.into_iter().take(most).filter_map(passage).collect()
}

/// More than three decimal places would not be meaningful.
pub(crate) fn rounded(score: f32) -> f32 {
    (score * 1_000.0).round() / 1_000.0
}
