//! Cached results of reads, bounded for each tenant in number and bytes.
//!
//! A *question* is the set of all inputs on which a call's result can depend. Its hash selects one of the tenant's
//! buckets. A bucket is a record: it lists its results and enforces their bounds. Each result is a part of the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::{TenantId, limits};

use super::{CallName, is_contended};
use crate::decision::Context;
use crate::mutant;
use crate::record::Record;
use crate::section::Section;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

/// Each bucket has room for two results of the largest size.
const BUCKETS: usize = 64;
const RESULTS_MAX: usize = limits::CACHED_ANSWERS_MAX / BUCKETS;
const BYTES_MAX: usize = limits::CACHED_TENANT_BYTES_MAX / BUCKETS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheName {
    pub tenant: TenantId,
    /// Hexadecimal.
    pub hash: String,
}

impl CacheName {
    #[must_use]
    pub fn key(&self) -> RecordKey {
        let number = self.hash.get(..4).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
        RecordKey::new(format!("cache:{}:{}", self.tenant, number % BUCKETS))
    }

    #[must_use]
    pub fn query(&self) -> Query {
        Query::Parts(self.key(), vec![self.hash.as_str().into()])
    }

    pub fn look_up(&self, view: &View, now_ms: i64) -> Result<Option<CachedResult>, Undecided> {
        let parts = view.parts(&self.key(), vec![self.hash.as_str().into()])?;
        let part = parts.first().and_then(Option::as_ref);
        let result = part.and_then(|part| serde_json::from_slice::<CachedResult>(part).ok());
        Ok(result.filter(|result| result.until_ms > now_ms))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CachedResult {
    #[serde(rename = "by")]
    pub by: CallName,
    #[serde(rename = "m")]
    pub media: String,
    /// The result's age counts from this time.
    #[serde(rename = "t")]
    pub requested_ms: i64,
    #[serde(rename = "u")]
    pub until_ms: i64,
    #[serde(rename = "o")]
    pub output: Box<RawValue>,
}

impl CachedResult {
    #[must_use]
    pub fn age_ms(&self, now_ms: i64) -> i64 {
        (now_ms - self.requested_ms).max(0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bucket {
    #[serde(rename = "r")]
    pub results: BTreeMap<String, Size>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    #[serde(rename = "u")]
    pub until_ms: i64,
    #[serde(rename = "b")]
    pub bytes: usize,
}

impl Record for Bucket {
    const SCHEMA: u32 = 1;
}

impl Bucket {
    /// Evicts expired results first, then the results that expire next.
    pub fn insert(&mut self, hash: &str, size: Size, now_ms: i64) -> Vec<String> {
        self.results.remove(hash);
        let mut gone: Vec<String> = self.expired(now_ms);
        self.results.retain(|_, size| size.until_ms > now_ms);
        while self.results.len() >= RESULTS_MAX || self.bytes() + size.bytes > BYTES_MAX {
            let first = self.results.iter().min_by_key(|(_, size)| size.until_ms).map(|(hash, _)| hash.clone());
            let Some(first) = first else { break };
            self.results.remove(&first);
            gone.push(first);
        }
        self.results.insert(hash.to_owned(), size);
        gone
    }

    fn expired(&self, now_ms: i64) -> Vec<String> {
        self.results.iter().filter(|(_, size)| size.until_ms <= now_ms).map(|(hash, _)| hash.clone()).collect()
    }

    fn bytes(&self) -> usize {
        self.results.values().map(|size| size.bytes).sum()
    }

    fn until_ms(&self) -> i64 {
        self.results.values().map(|size| size.until_ms).max().unwrap_or(0)
    }
}

#[derive(Debug, Clone)]
pub struct Fill {
    pub name: CacheName,
    /// Counted from `requested_ms`.
    pub ttl_ms: i64,
    pub requested_ms: i64,
    pub by: CallName,
    pub media: String,
    pub output: Box<RawValue>,
}

impl Fill {
    /// Returns `None` if the result has expired or is too large.
    fn part(&self, now_ms: i64) -> Option<(Bytes, Size)> {
        // The worker's clock can be ahead of shard time.
        let requested_ms = self.requested_ms.min(now_ms);
        let until_ms = requested_ms + self.ttl_ms;
        if until_ms <= now_ms || self.output.get().len() > limits::CACHED_OUTPUT_BYTES_MAX {
            return None;
        }
        let by = self.by.clone();
        let media = self.media.clone();
        let output = self.output.clone();
        let text = serde_json::to_vec(&CachedResult { by, media, requested_ms, until_ms, output }).ok()?;
        let size = Size { until_ms, bytes: text.len() };
        (size.bytes <= BYTES_MAX).then(|| (text.into(), size))
    }
}

/// Does nothing while memory is short.
#[derive(Debug, Clone, Default)]
pub struct FillCache {
    pub results: Vec<Fill>,
}

impl Section for FillCache {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        if self.results.is_empty() || context.failed(|conflict| matches!(conflict, Conflict::Pressure)) {
            return Ok(());
        }
        let mut buckets: BTreeMap<RecordKey, Vec<&Fill>> = BTreeMap::new();
        for fill in &self.results {
            buckets.entry(fill.name.key()).or_default().push(fill);
        }
        for (key, fills) in buckets {
            if !is_contended(&key, context) {
                fill_bucket(transaction, view, &key, &fills, context.now_ms)?;
            }
        }
        transaction.guard(Guard::MemoryAvailable);
        Ok(())
    }
}

fn fill_bucket(
    transaction: &mut Transaction,
    view: &View,
    key: &RecordKey,
    fills: &[&Fill],
    now_ms: i64,
) -> Result<(), Undecided> {
    let stored = view.record::<Bucket>(key)?;
    if !mutant!("cache_guards_the_bucket") {
        transaction.guard_read(key, stored.as_ref());
    }
    let mut bucket = stored.map(|stored| stored.value).unwrap_or_default();
    let mut parts: BTreeMap<&str, Bytes> = BTreeMap::new();
    let mut gone: Vec<Arc<str>> = Vec::new();
    for fill in fills {
        let Some((text, size)) = fill.part(now_ms) else { continue };
        for hash in bucket.insert(&fill.name.hash, size, now_ms) {
            parts.remove(hash.as_str());
            gone.push(hash.into());
        }
        parts.insert(&fill.name.hash, text);
    }
    if parts.is_empty() {
        return Ok(());
    }
    transaction.put_for(key, &bucket, bucket.until_ms() - now_ms);
    if !gone.is_empty() {
        transaction.write(Write::DeleteParts(key.clone(), gone));
    }
    for (hash, text) in parts {
        transaction.write(Write::PutPart(key.clone(), hash.into(), text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{MiniStore, call, detects, tenant};
    use super::*;

    fn fill(hash: &str, ttl_ms: i64, output: &str) -> Fill {
        Fill {
            name: CacheName { tenant: tenant(), hash: hash.into() },
            ttl_ms,
            requested_ms: 100,
            by: call("t", 0),
            media: "application/json".into(),
            output: RawValue::from_string(output.into()).unwrap(),
        }
    }

    fn settle(store: &mut MiniStore, results: Vec<Fill>) {
        let section = FillCache { results };
        store.section(|transaction, view, context| section.add_to(transaction, view, context)).unwrap();
    }

    fn look_up(store: &mut MiniStore, hash: &str) -> Option<CachedResult> {
        let name = CacheName { tenant: tenant(), hash: hash.into() };
        let now_ms = store.now_ms;
        let view = store.view_for(|view, _| name.look_up(view, now_ms));
        name.look_up(&view, now_ms).unwrap()
    }

    #[test]
    fn a_result_is_found_until_it_expires() {
        let mut store = MiniStore { now_ms: 150, ..MiniStore::default() };
        settle(&mut store, vec![fill("0a", 100, "[1]")]);
        assert!(look_up(&mut store, "0b").is_none());
        let found = look_up(&mut store, "0a").unwrap();
        assert_eq!((found.output.get(), found.age_ms(150)), ("[1]", 50));
        store.now_ms = 200;
        assert!(look_up(&mut store, "0a").is_none());
        settle(&mut store, vec![fill("0a", 100, "[2]")]);
        assert!(look_up(&mut store, "0a").is_none(), "it is as old as its question");
    }

    #[test]
    fn memory_pressure_skips_the_cache_but_not_the_settle() {
        let mut store = MiniStore { pressure: true, ..MiniStore::default() };
        let section = FillCache { results: vec![fill("0a", 100, "[1]")] };
        let add = |context: &Context| {
            let view = store.clone().view_for(|view, context| {
                section.add_to(&mut Transaction::new(context.version.clone()), view, context)
            });
            let mut transaction = Transaction::new(context.version.clone());
            section.add_to(&mut transaction, &view, context).unwrap();
            transaction
        };
        let mut context = store.clone().context();
        let first = add(&context);
        context.conflicts.push(Conflict::Pressure);
        let second = add(&context);
        assert_eq!(store.commit(&first), Err(Conflict::Pressure));
        assert_eq!(store.commit(&second), Ok(()));
        assert!(second.writes.is_empty());
    }

    #[test]
    fn concurrent_fills_of_a_bucket_lose_no_result() {
        let one = FillCache { results: vec![fill("0001a", 100, "1")] };
        detects("cache_guards_the_bucket", || {
            let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
            let other = vec![fill("0001b", 100, "2")];
            store.refuses_stale(
                |transaction, view, context| one.add_to(transaction, view, context),
                |store| settle(store, other),
            )
        });
    }

    proptest! {
        #[test]
        fn a_bucket_keeps_its_bounds_and_lists_all_its_parts(
            fills in prop::collection::vec((0..400_u32, 1..400_i64, 1..60_000_usize), 1..80),
        ) {
            let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
            for (question, ttl_ms, bytes) in fills {
                store.now_ms += 1;
                // This prefix puts all results into one bucket.
                let hash = format!("0000{question}");
                let output = format!("\"{}\"", "x".repeat(bytes));
                settle(&mut store, vec![fill(&hash, ttl_ms, &output)]);
                let key = CacheName { tenant: tenant(), hash }.key();
                let Some(bucket) = store.record::<Bucket>(&key) else { continue };
                prop_assert!(bucket.bytes() <= BYTES_MAX);
                prop_assert!(bucket.results.len() <= RESULTS_MAX);
                let parts: Vec<&str> = store.parts.keys().map(|(_, part)| &**part).collect();
                let listed: Vec<&str> = bucket.results.keys().map(String::as_str).collect();
                prop_assert_eq!(parts, listed);
                let bytes: usize = store.parts.values().map(Bytes::len).sum();
                prop_assert_eq!(bytes, bucket.bytes());
            }
        }
    }
}
