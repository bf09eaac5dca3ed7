//! Answers of reads, kept for those who ask the same soon.

use std::time::Duration;

use tickfleet_model::limits;

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::cache::ReadName;
use crate::{Store, StoreError};

/// An answer to be kept.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What was asked.
    pub read: ReadName,
    /// For how long it is kept, from then on.
    pub ttl: Duration,
    /// When it was asked, ms of shard time.
    pub asked_ms: i64,
    /// The call that was carried out, `<turn>/<position>`.
    pub call: String,
    /// The media type of the output, without blanks.
    pub content_type: String,
    /// The output, JSON.
    pub output: String,
}

impl Store {
    /// Keeps answers of reads; false for one that is not kept, for memory is short or its time has come already.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be kept again.
    pub async fn fill(&self, answers: &[Answer]) -> Result<Vec<bool>, StoreError> {
        let mut args = self.args();
        args.show(limits::CACHED_ANSWERS_MAX).show(limits::CACHED_TENANT_BYTES_MAX).show(answers.len());
        for answer in answers {
            args.text(answer.read.tenant.as_str()).text(answer.read.hash.as_str()).show(answer.ttl.as_millis());
            args.show(answer.asked_ms)
                .text(answer.call.as_str())
                .text(answer.content_type.as_str())
                .text(answer.output.as_str());
        }
        let mut reply = self.ask(Verb::Fill, args).await?;
        let kept = |value: &redis::Value| match text_of(value).as_deref() {
            Some("OK") => Ok(true),
            Some("PRESSURE" | "OLD") => Ok(false),
            _ => Err(unexpected(Verb::Fill.as_str(), value)),
        };
        reply.rest().iter().map(kept).collect()
    }
}
