use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::knowledge::Document;
use tickfleet_model::{TenantId, limits};

use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::settings::next_generation;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Documents {
    /// Increases with every change.
    #[serde(rename = "g")]
    pub generation: u64,
    #[serde(rename = "n")]
    pub count: usize,
    #[serde(rename = "b")]
    pub bytes: u64,
}

impl Record for Documents {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn documents_key(tenant: &TenantId) -> RecordKey {
    RecordKey::new(format!("documents:{tenant}"))
}

#[must_use]
pub fn passages_key(tenant: &TenantId) -> RecordKey {
    RecordKey::new(format!("passages:{tenant}"))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentHeader {
    #[serde(rename = "b")]
    pub bytes: u64,
    #[serde(rename = "d")]
    pub document: Document,
}

impl DocumentHeader {
    #[must_use]
    pub fn read(part: &[u8]) -> Option<Self> {
        serde_json::from_slice(part).ok()
    }
}

fn bytes_of(part: &Bytes) -> u64 {
    DocumentHeader::read(part).map_or(part.len() as u64, |header| header.bytes)
}

#[derive(Debug, Clone)]
pub struct KeepDocument {
    pub tenant: TenantId,
    pub document: Document,
    pub passages: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepResult {
    Done { generation: u64 },
    Pressure,
    TooManyDocuments,
    TooManyBytes,
}

impl Decision for KeepDocument {
    type Output = KeepResult;

    fn reads(&self) -> Vec<Query> {
        let key = documents_key(&self.tenant);
        vec![Query::Record(key.clone()), Query::Parts(key, vec![self.document.id.as_str().into()])]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<KeepResult>, Undecided> {
        if context.failed(|conflict| *conflict == Conflict::Pressure) {
            return Ok(Step::Return(KeepResult::Pressure));
        }
        let key = documents_key(&self.tenant);
        let id: Arc<str> = self.document.id.as_str().into();
        let before = view.parts(&key, vec![id.clone()])?.first().cloned().flatten();
        let (mut transaction, stored) = context.update::<Documents>(view, &key)?;
        transaction.guard(Guard::MemoryAvailable);
        transaction.dedupe_record = Some(key.clone());
        let mut documents = stored.unwrap_or_default();
        let description = serde_json::to_vec(&self.document).unwrap_or_default();
        let bytes = (description.len() + self.passages.len()) as u64;
        let freed = before.as_ref().map_or(0, bytes_of);
        if before.is_none() && documents.count >= limits::DOCUMENTS_MAX {
            return Ok(Step::Return(KeepResult::TooManyDocuments));
        }
        let total = documents.bytes.saturating_sub(freed) + bytes;
        // A document that makes the knowledge base smaller is always stored.
        if bytes > freed && total > limits::KNOWLEDGE_BYTES_MAX {
            return Ok(Step::Return(KeepResult::TooManyBytes));
        }
        documents.count += usize::from(before.is_none());
        documents.bytes = total;
        documents.generation = next_generation(documents.generation, context);
        let header = DocumentHeader { bytes, document: self.document.clone() };
        let header = serde_json::to_vec(&header).unwrap_or_default().into();
        transaction
            .write(Write::PutPart(key.clone(), id.clone(), header))
            .write(Write::PutPart(passages_key(&self.tenant), id, self.passages.clone()))
            .put(&key, &documents)
            .put(&passages_key(&self.tenant), &documents);
        Ok(Step::Commit(transaction, KeepResult::Done { generation: documents.generation }))
    }
}

#[derive(Debug, Clone)]
pub struct DropDocuments {
    pub tenant: TenantId,
    /// At most [`limits::BATCH_ENTRIES_MAX`].
    pub ids: Vec<Arc<str>>,
}

impl Decision for DropDocuments {
    type Output = usize;

    fn reads(&self) -> Vec<Query> {
        let key = documents_key(&self.tenant);
        vec![Query::Record(key.clone()), Query::Parts(key, self.ids.clone())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<usize>, Undecided> {
        let key = documents_key(&self.tenant);
        let Some(stored) = view.record::<Documents>(&key)? else { return Ok(Step::Return(0)) };
        let parts = view.parts(&key, self.ids.clone())?;
        let mut found: Vec<(&Arc<str>, u64)> =
            self.ids.iter().zip(parts).filter_map(|(id, part)| Some((id, bytes_of(part.as_ref()?)))).collect();
        found.sort();
        found.dedup();
        if found.is_empty() {
            return Ok(Step::Return(0));
        }
        let mut documents = stored.value;
        documents.count = documents.count.saturating_sub(found.len());
        documents.bytes = documents.bytes.saturating_sub(found.iter().map(|(_, bytes)| bytes).sum());
        documents.generation = next_generation(documents.generation, context);
        let ids: Vec<Arc<str>> = found.into_iter().map(|(id, _)| id.clone()).collect();
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Version(key.clone(), stored.version));
        transaction.dedupe_record = Some(key.clone());
        let count = ids.len();
        transaction
            .write(Write::DeleteParts(key.clone(), ids.clone()))
            .write(Write::DeleteParts(passages_key(&self.tenant), ids))
            .put(&key, &documents)
            .put(&passages_key(&self.tenant), &documents);
        Ok(Step::Commit(transaction, count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::trial::Trial;

    fn tenant() -> TenantId {
        TenantId::new("acme").unwrap()
    }

    fn keep(id: &str, passages: usize) -> KeepDocument {
        let document = Document {
            id: id.into(),
            source: "s".into(),
            title: "t".into(),
            category: String::new(),
            file: String::new(),
            digest: "d".into(),
            model: String::new(),
            passages: 1,
            at_ms: 5,
        };
        KeepDocument { tenant: tenant(), document, passages: vec![b'x'; passages].into() }
    }

    fn drop_them(ids: &[&str]) -> DropDocuments {
        DropDocuments { tenant: tenant(), ids: ids.iter().map(|id| Arc::from(*id)).collect() }
    }

    fn stored(shard: &Trial) -> Documents {
        shard.record(&documents_key(&tenant())).unwrap_or_default()
    }

    #[test]
    fn a_document_is_replaced_as_a_whole() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&keep("a", 10)), KeepResult::Done { generation: 1_000 });
        let before = stored(&shard);
        assert_eq!(shard.run(&keep("a", 12)), KeepResult::Done { generation: 1_001 });
        assert_eq!(stored(&shard), Documents { generation: 1_001, count: 1, bytes: before.bytes + 2 });
        assert_eq!(shard.parts[&passages_key(&tenant())]["a"].len(), 12);
        assert_eq!(shard.run(&drop_them(&["a", "a", "b"])), 1);
        assert_eq!(shard.run(&drop_them(&["a"])), 0);
        assert_eq!(stored(&shard), Documents { generation: 1_002, count: 0, bytes: 0 });
    }

    #[test]
    fn a_concurrently_added_document_is_counted() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&keep("a", 10));
        let decided = shard.step(&drop_them(&["a"]));
        shard.receipt(&keep("b", 10));
        assert_eq!(shard.finish(&drop_them(&["a"]), decided).result, 1);
        assert_eq!(stored(&shard).count, 1);
    }

    #[test]
    fn memory_pressure_blocks_new_documents_but_not_deletes() {
        let mut shard = Trial::at(1_000);
        shard.pressure = true;
        assert_eq!(shard.run(&keep("a", 10)), KeepResult::Pressure);
        shard.pressure = false;
        shard.receipt(&keep("a", 10));
        shard.pressure = true;
        assert_eq!(shard.run(&drop_them(&["a"])), 1, "what frees memory is never refused");
    }

    #[test]
    fn a_knowledge_base_is_bounded() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&keep("a", 1_000));
        let full = |shard: &mut Trial, documents: &Documents| {
            let mut transaction = Transaction::new(shard.context().version);
            shard.commit(transaction.put(&documents_key(&tenant()), documents)).unwrap();
        };
        let present = stored(&shard);
        full(&mut shard, &Documents { count: limits::DOCUMENTS_MAX, ..present });
        assert_eq!(shard.run(&keep("b", 1)), KeepResult::TooManyDocuments);
        assert!(matches!(shard.run(&keep("a", 1_000)), KeepResult::Done { .. }));
        full(&mut shard, &Documents { bytes: limits::KNOWLEDGE_BYTES_MAX + 10, ..present });
        assert_eq!(shard.run(&keep("b", 1)), KeepResult::TooManyBytes);
        assert_eq!(shard.run(&keep("a", 1_001)), KeepResult::TooManyBytes);
        assert!(matches!(shard.run(&keep("a", 999)), KeepResult::Done { .. }), "it becomes smaller");
    }

    proptest! {
        #[test]
        fn counts_and_bytes_match_the_stored_documents(
            steps in prop::collection::vec((0..3usize, 0..100usize, any::<bool>(), any::<bool>()), 1..30),
        ) {
            let mut shard = Trial::at(1_000);
            let mut decided = None;
            let mut generations = vec![];
            for (which, size, drops, keep_it) in steps {
                let id = ["a", "b", "c"][which];
                if drops {
                    shard.receipt(&drop_them(&[id]));
                } else if keep_it {
                    decided = Some((shard.step(&keep(id, size)), keep(id, size)));
                } else {
                    shard.receipt(&keep(id, size));
                    if let Some((old, step)) = decided.take() {
                        shard.finish(&step, old);
                    }
                }
                generations.push((stored(&shard).generation, shard.parts.get(&passages_key(&tenant())).cloned()));
            }
            let parts = shard.parts.get(&documents_key(&tenant())).cloned().unwrap_or_default();
            let bytes: u64 = parts.values().map(bytes_of).sum();
            let documents = stored(&shard);
            prop_assert_eq!((documents.count, documents.bytes), (parts.len(), bytes));
            let passages = shard.parts.get(&passages_key(&tenant())).cloned().unwrap_or_default();
            prop_assert!(passages.keys().eq(parts.keys()));
            let mut contents = BTreeMap::new();
            for (generation, content) in generations.into_iter().filter(|(generation, _)| *generation > 0) {
                prop_assert_eq!(contents.entry(generation).or_insert_with(|| content.clone()), &content);
            }
        }
    }
}
