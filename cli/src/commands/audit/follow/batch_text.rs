//! The text of a batch, and the reasons why a batch was not accepted.

use std::fmt;
use std::time::Duration;

use tickfleet_client::audit::LogBatch;
use tickfleet_proof::lines::{self, Header};
use tickfleet_store::StoreError;

#[derive(Debug)]
pub(super) enum SendError {
    Again {
        why: String,
        /// `None` if the destination specifies no time.
        wait: Option<Duration>,
    },
    /// The destination accepts no more batches. The text is the reason.
    Over(String),
}

impl SendError {
    pub(super) fn again(why: impl fmt::Display) -> Self {
        Self::Again { why: why.to_string(), wait: None }
    }
}

impl From<StoreError> for SendError {
    fn from(error: StoreError) -> Self {
        Self::again(error)
    }
}

pub(super) fn text(header: Option<&Header>, batch: &LogBatch) -> String {
    let mut text = header.map_or_else(String::new, |header| format!("{}\n", lines::header(header)));
    for item in &batch.items {
        text.push_str(&item.line(batch.shard));
        text.push('\n');
    }
    text
}
