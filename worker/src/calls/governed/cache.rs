//! Kept answers: a read that asks what was asked a while ago gets the answer of then, where its tool says so.
//!
//! Permission, arguments and rules are decided before, limits at admission: a kept answer spares the tool, nothing else.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tickfleet_model::tool::Question;
use tickfleet_model::{Cached, CallError, CallResult, Effect, Outcome, limits};
use tickfleet_ops::metrics::{CachedRead, Metrics};
use tickfleet_protocol::bounded_output;
use tickfleet_store::{Answer, KeptAnswer, ReadName, ShardClock};

use crate::Common;
use crate::calls::trying::{Disposition, Trying};
use crate::outbox::Outbox;
use crate::tools::RegisteredTool;

/// What a call asks whose answer may be kept.
pub(in crate::calls) struct Asked {
    read: ReadName,
    ttl: Duration,
    /// An answer is as old as its question, ms of shard time.
    asked_ms: i64,
}

/// Looks for kept answers, and keeps new ones.
pub(in crate::calls) struct Cache {
    outbox: Arc<Outbox>,
    clock: Arc<ShardClock>,
    metrics: Arc<Metrics>,
}

impl Cache {
    /// The cache of the worker's shard.
    pub(in crate::calls) fn new(outbox: &Arc<Outbox>, common: &Common) -> Self {
        Self { outbox: Arc::clone(outbox), clock: common.clock.clone(), metrics: common.metrics.clone() }
    }

    /// What the call asks, if its tool's answers are kept.
    pub(in crate::calls) fn asked(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
    ) -> Option<Asked> {
        let cache = tool.spec.cache.filter(|_| tool.spec.effect == Effect::Read && !trying.slice.meta.is_task)?;
        let tenant = &trying.slice.name.tenant;
        let task = trying.slice.meta.task.as_ref().filter(|_| tool.answers_by_agent);
        let hash = cache.hash(&Question {
            tenant,
            agent: &trying.slice.meta.agent,
            tool: &tool.spec.name,
            version: &tool.spec.version,
            configuration: &trying.config.active.digest,
            arguments,
            task: task.map(|(task, _)| task.as_str()),
            context: &trying.context,
        })?;
        let ttl = Duration::from_millis(cache.ttl_ms.unsigned_abs());
        Some(Asked { read: ReadName { tenant: tenant.clone(), hash }, ttl, asked_ms: self.clock.now_ms() })
    }

    /// The end of a call whose answer is kept. One that has begun work elsewhere goes on with that.
    pub(in crate::calls) async fn answer(&self, asked: &Asked, trying: &Trying<'_>) -> Option<Disposition> {
        if trying.waited {
            return None;
        }
        let found = self.outbox.lookup(asked.read.clone()).await.flatten();
        let output = found.as_ref().and_then(|kept| RawValue::from_string(kept.output.clone()).ok());
        let kept = found.zip(output);
        self.metrics.read_cached(if kept.is_some() { CachedRead::Hit } else { CachedRead::Miss });
        let (kept, output) = kept?;
        Some(Disposition::Ended(Box::new(told(trying, kept, output)), Vec::new()))
    }

    /// Whether an answer is kept.
    pub(in crate::calls) async fn has(&self, asked: &Asked) -> bool {
        self.outbox.lookup(asked.read.clone()).await.flatten().is_some()
    }

    /// Keeps what a call was answered. Nobody waits for that.
    pub(in crate::calls) fn keep(&self, asked: Asked, carried: &Disposition) {
        let Disposition::Ended(result, _) = carried else { return };
        let output = result.output.as_deref().map(RawValue::get).filter(|_| result.outcome == Outcome::Ok);
        let Some(output) = output.filter(|output| output.len() <= limits::CACHED_OUTPUT_BYTES_MAX) else { return };
        let content_type = result.content_type.split_whitespace().collect();
        let Asked { read, ttl, asked_ms } = asked;
        let (call, output) = (result.call.clone(), output.to_owned());
        self.outbox.fill(Answer { read, ttl, asked_ms, call, content_type, output });
    }
}

fn told(trying: &Trying<'_>, kept: KeptAnswer, output: Box<RawValue>) -> CallResult {
    let none = CallError { code: String::new(), message: String::new(), details: None };
    let age_ms = u64::try_from(kept.age.as_millis()).unwrap_or(u64::MAX);
    CallResult {
        success: true,
        output: Some(bounded_output(output, limits::output_bytes_max(trying.slice.meta.calls))),
        error: None,
        content_type: kept.content_type,
        cached: Some(Cached { age_ms, call: kept.call }),
        ..trying.result(Outcome::Ok, none)
    }
}
