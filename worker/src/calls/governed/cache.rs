//! Cached results: a read call gets the result of an equal recent read. Permission, rules and limits are still checked.

use std::sync::Arc;

use serde_json::value::RawValue;
use tickfleet_core::View;
use tickfleet_core::call::cache::{CacheName, CachedResult, Fill};
use tickfleet_model::tool::CacheInputs;
use tickfleet_model::{CacheHit, CallError, CallResult, Effect, Outcome, limits};
use tickfleet_ops::metrics::{CachedRead, Metrics};
use tickfleet_protocol::bounded_content;
use tickfleet_store::Store;

use crate::Common;
use crate::calls::call_attempt::{AttemptOutcome, CallAttempt};
use crate::tools::RegisteredTool;

pub(in crate::calls) struct CacheLookup {
    pub(in crate::calls) name: CacheName,
    ttl_ms: i64,
    /// In ms of shard time. The age of a cached result counts from this time.
    requested_ms: i64,
}

pub(in crate::calls) struct ResultCache {
    store: Store,
    metrics: Arc<Metrics>,
}

impl ResultCache {
    pub(in crate::calls) fn new(common: &Common) -> Self {
        Self { store: common.store.clone(), metrics: common.metrics.clone() }
    }

    /// `None` if the call's result must not be cached.
    pub(in crate::calls) fn lookup_of(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
    ) -> Option<CacheLookup> {
        let cache = tool.spec.cache.filter(|_| tool.spec.effect == Effect::Read && !attempt.is_task())?;
        let tenant = &attempt.slice.name.tenant;
        let head = attempt.head();
        let task = head.task.as_ref().filter(|_| tool.answers_by_agent);
        let hash = cache.hash(&CacheInputs {
            tenant,
            agent: &head.agent,
            tool: &tool.spec.name,
            version: &tool.spec.version,
            configuration: &attempt.config.active.digest,
            arguments,
            task: task.map(|(task, _)| task.as_str()),
            context: &attempt.context,
        })?;
        let name = CacheName { tenant: tenant.clone(), hash };
        Some(CacheLookup { name, ttl_ms: cache.ttl_ms, requested_ms: self.store.state().now_ms })
    }

    /// `None` also for a call that has begun work elsewhere, because the call continues with that work.
    pub(in crate::calls) fn cached_outcome(
        &self,
        attempt: &CallAttempt<'_>,
        cached: Option<CachedResult>,
    ) -> Option<AttemptOutcome> {
        if attempt.waited {
            return None;
        }
        self.metrics.read_cached(if cached.is_some() { CachedRead::Hit } else { CachedRead::Miss });
        let result = result_of(attempt, cached?, self.store.state().now_ms);
        Some(AttemptOutcome::Ended(Box::new(result), Vec::new()))
    }

    pub(in crate::calls) async fn has(&self, lookup: &CacheLookup) -> bool {
        let mut view = View::default();
        let found =
            self.store.evaluate(&mut view, |view, context| Ok(lookup.name.look_up(view, context.now_ms)?.is_some()));
        found.await.unwrap_or_else(|error| {
            tracing::debug!(%error, "failed to look for a cached result");
            false
        })
    }

    /// `None` if the call failed or its output is too large.
    pub(in crate::calls) fn fill(
        &self,
        attempt: &CallAttempt<'_>,
        lookup: CacheLookup,
        outcome: &AttemptOutcome,
    ) -> Option<Fill> {
        let AttemptOutcome::Ended(result, _) = outcome else { return None };
        let output = result.output.as_deref().filter(|_| result.outcome == Outcome::Ok)?;
        if output.get().len() > limits::CACHED_OUTPUT_BYTES_MAX {
            return None;
        }
        let CacheLookup { name, ttl_ms, requested_ms } = lookup;
        let media = result.content_type.split_whitespace().collect();
        Some(Fill { name, ttl_ms, requested_ms, by: attempt.name(), media, output: output.to_owned() })
    }
}

fn result_of(attempt: &CallAttempt<'_>, cached: CachedResult, now_ms: i64) -> CallResult {
    let none = CallError { code: String::new(), message: String::new(), details: None };
    let age_ms = cached.age_ms(now_ms).unsigned_abs();
    CallResult {
        success: true,
        output: Some(bounded_content(cached.output, &cached.media, attempt.output_bytes_max)),
        error: None,
        content_type: cached.media,
        cached: Some(CacheHit { age_ms, call: cached.by.to_string() }),
        ..attempt.result(Outcome::Ok, none)
    }
}
