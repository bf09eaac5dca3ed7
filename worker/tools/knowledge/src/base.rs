//! A tenant's knowledge base in memory, refreshed when its stored generation has changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use tickfleet_model::TenantId;
use tickfleet_model::knowledge::{Document, Passages};
use tickfleet_store::{Store, StoreError};

use crate::embeddings::cosine_similarity;
use crate::lexicon::{Lexicon, best_first};
use crate::words::words;

/// Passages are read from Redis in steps of this size, which take one or two megabytes.
const STEP_PASSAGES: usize = 512;
/// The number of comparisons after which a search lets the worker's other tasks run.
const STEP_VECTORS: usize = 2_048;
/// A passage with a lower similarity counts as unrelated.
const SIMILARITY_MIN: f32 = 0.1;

#[derive(Debug)]
pub(crate) struct CachedDocument {
    pub(crate) document: Document,
    pub(crate) passages: Passages,
}

/// The number is the index of a passage in the document.
pub(crate) type PassageRef = (Arc<CachedDocument>, usize);

#[derive(Debug, Default)]
pub(crate) struct KnowledgeBase {
    index: RwLock<Index>,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Index {
    generation: u64,
    documents: HashMap<String, Vec<usize>>,
    lexicon: Lexicon,
    /// Indexed by the number of each passage's text in the lexicon. `None` for a removed passage.
    places: Vec<Option<PassageRef>>,
    bytes: usize,
}

impl KnowledgeBase {
    /// Takes one request if nothing has changed. After an error, the documents that were read are kept.
    pub(crate) async fn refresh(&self, store: &Store, tenant: &TenantId) -> Result<(), StoreError> {
        let _refreshing = self.refreshing.lock().await;
        // Read the generation first. If documents change afterwards, the next refresh sees a new generation.
        let generation = store.knowledge_state(tenant, None).await?.documents;
        if generation == self.index.read().generation {
            return Ok(());
        }
        let listed = store.documents(tenant).await?;
        let missing = self.index.write().retain_listed(&listed);
        for step in steps(missing) {
            let ids: Vec<&str> = step.iter().map(|document| document.id.as_str()).collect();
            let passages = store.passages(tenant, &ids).await?;
            let mut index = self.index.write();
            for (document, passages) in step.into_iter().zip(passages) {
                if let Some(passages) = passages {
                    index.add(document, passages);
                }
            }
        }
        let mut index = self.index.write();
        index.generation = generation;
        if index.lexicon.needs_rebuild() {
            index.rebuild();
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let index = self.index.read();
        index.bytes + index.lexicon.bytes()
    }

    pub(crate) fn has_vectors_of(&self, model: &str) -> bool {
        let index = self.index.read();
        index.places.iter().flatten().any(|(held, _)| held.document.model == model && !held.passages.vectors.is_empty())
    }

    /// Best first. A passage must contain at least one word of the question.
    pub(crate) fn by_words(&self, words: &[String], category: Option<&str>, most: usize) -> Vec<(PassageRef, f32)> {
        let index = self.index.read();
        let wanted = |text: usize| index.places[text].as_ref().is_some_and(|(held, _)| is_of(held, category));
        let found = index.lexicon.find(words, most, wanted);
        found.into_iter().filter_map(|(text, score)| Some((index.places[text].clone()?, score))).collect()
    }

    /// Best first. `vector` is an embedding of `model`. Other tasks run after every `STEP_VECTORS` comparisons.
    pub(crate) async fn by_meaning(
        &self,
        vector: &[i8],
        model: &str,
        category: Option<&str>,
        most: usize,
    ) -> Vec<(PassageRef, f32)> {
        let places: Vec<PassageRef> = {
            let index = self.index.read();
            let fits = |(held, _): &&PassageRef| held.document.model == model && is_of(held, category);
            index.places.iter().flatten().filter(fits).cloned().collect()
        };
        let mut found: Vec<(usize, f32)> = Vec::new();
        for (step, some) in places.chunks(STEP_VECTORS).enumerate() {
            for (at, (held, number)) in some.iter().enumerate() {
                let likeness = held.passages.vectors.get(*number).map_or(0.0, |other| cosine_similarity(vector, other));
                if likeness >= SIMILARITY_MIN {
                    found.push((step * STEP_VECTORS + at, likeness));
                }
            }
            best_first(&mut found, most);
            tokio::task::yield_now().await;
        }
        found.into_iter().map(|(at, score)| (places[at].clone(), score)).collect()
    }
}

fn is_of(held: &CachedDocument, category: Option<&str>) -> bool {
    category.is_none_or(|category| held.document.category.to_lowercase() == category)
}

fn steps(documents: Vec<Document>) -> Vec<Vec<Document>> {
    let mut steps = Vec::<Vec<Document>>::new();
    let mut passages = usize::MAX;
    for document in documents {
        let more = document.passages.max(1);
        if passages.saturating_add(more) > STEP_PASSAGES {
            steps.push(Vec::new());
            passages = 0;
        }
        passages += more;
        if let Some(step) = steps.last_mut() {
            step.push(document);
        }
    }
    steps
}

impl Index {
    /// Keeps only documents that are listed in the same version. Returns the listed documents that are not in memory.
    fn retain_listed(&mut self, listed: &[Document]) -> Vec<Document> {
        let held = |places: &Vec<Option<PassageRef>>, texts: &[usize]| {
            texts.first().and_then(|text| places[*text].as_ref().map(|(held, _)| held.document.clone()))
        };
        let known: HashMap<String, Document> =
            self.documents.iter().filter_map(|(id, texts)| Some((id.clone(), held(&self.places, texts)?))).collect();
        let same: HashSet<&str> = listed
            .iter()
            .filter(|document| known.get(&document.id) == Some(document))
            .map(|document| document.id.as_str())
            .collect();
        let gone: Vec<String> = self.documents.keys().filter(|id| !same.contains(id.as_str())).cloned().collect();
        gone.iter().for_each(|id| self.remove(id));
        listed.iter().filter(|document| !same.contains(document.id.as_str())).cloned().collect()
    }

    fn add(&mut self, document: Document, passages: Passages) {
        self.remove(&document.id);
        self.insert(Arc::new(CachedDocument { document, passages }));
    }

    fn insert(&mut self, held: Arc<CachedDocument>) {
        let title = words(&held.document.title);
        let mut texts = Vec::new();
        for (number, passage) in held.passages.passages.iter().enumerate() {
            let mut terms = words(&passage.text);
            // The headings and the title describe the passage's subject, so their words count too.
            terms.extend(passage.headings.iter().flat_map(|heading| words(heading)));
            terms.extend(title.iter().cloned());
            let text = self.lexicon.add(&terms);
            self.places.resize(text, None);
            self.places.push(Some((Arc::clone(&held), number)));
            texts.push(text);
        }
        self.bytes += weight(&held);
        self.documents.insert(held.document.id.clone(), texts);
    }

    fn remove(&mut self, id: &str) {
        for (nth, text) in self.documents.remove(id).unwrap_or_default().into_iter().enumerate() {
            self.lexicon.remove(text);
            let place = self.places.get_mut(text).and_then(Option::take);
            if let Some((held, _)) = place.filter(|_| nth == 0) {
                self.bytes = self.bytes.saturating_sub(weight(&held));
            }
        }
    }

    fn rebuild(&mut self) {
        let held: Vec<Arc<CachedDocument>> =
            self.places.iter().flatten().filter(|(_, number)| *number == 0).map(|(held, _)| Arc::clone(held)).collect();
        *self = Self { generation: self.generation, ..Self::default() };
        held.into_iter().for_each(|held| self.insert(held));
    }
}

fn weight(held: &CachedDocument) -> usize {
    let texts = held.passages.passages.iter().map(|passage| passage.text.len() + 128);
    texts.sum::<usize>() + held.passages.vectors.iter().map(Vec::len).sum::<usize>() + 512
}

#[cfg(test)]
mod tests {
    use tickfleet_model::knowledge::Passage;
    use tickfleet_model::limits;
    use tokio::time::Instant;

    use super::*;

    const DIMENSIONS: usize = 384;

    fn vector(number: usize) -> Vec<i8> {
        let mut state = number as u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..DIMENSIONS).map(|_| next().cast_signed()).collect()
    }

    /// Measures a search in a base of the maximum size. The figures are in docs/adr/0013.
    #[tokio::test]
    #[ignore = "it measures: run it by hand, with --release"]
    async fn search_time_is_measured_in_the_largest_base() {
        let base = KnowledgeBase::default();
        let of_document = limits::DOCUMENT_PASSAGES_MAX;
        let bytes_max = usize::try_from(limits::KNOWLEDGE_BYTES_MAX).unwrap_or(usize::MAX);
        let passages = bytes_max / (limits::PASSAGE_CHARS + DIMENSIONS);
        for first in (0..passages).step_by(of_document) {
            let numbers = first..passages.min(first + of_document);
            let text = |number: usize| format!("passage {number} {}", "word ".repeat(limits::PASSAGE_CHARS / 5 - 4));
            let document = Document {
                id: first.to_string(),
                source: "here".into(),
                title: "a title".into(),
                category: String::new(),
                file: String::new(),
                digest: String::new(),
                model: "m".into(),
                passages: numbers.len(),
                at_ms: 0,
            };
            let passages = Passages {
                passages: numbers.clone().map(|n| Passage { headings: Vec::new(), text: text(n) }).collect(),
                vectors: numbers.map(vector).collect(),
            };
            base.index.write().add(document, passages);
        }
        let mut took = Vec::new();
        for question in 0..21 {
            let began = Instant::now();
            let found = base.by_meaning(&vector(question * 97), "m", None, 50).await;
            took.push(began.elapsed());
            assert!(found[0].1 > 0.99, "the passage itself is found first");
        }
        took.sort();
        println!("{passages} passages of {DIMENSIONS} values: median {:?}, slowest {:?}", took[10], took[20]);
    }
}
