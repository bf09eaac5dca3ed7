//! A process that runs local tools: it claims the call of a turn and reports the end of the call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fleet::{Fleet, PATIENCE};
use crate::inspect::StreamEntry;

#[derive(Debug, Clone)]
pub struct ClaimedCall {
    pub call: Value,
    pub lease: String,
}

impl ClaimedCall {
    #[must_use]
    pub fn message(&self, op: &str, more: Value) -> Value {
        let mut message = json!({"op": op, "tenant": "acme", "turn_id": self.call["turn_id"], "lease": self.lease});
        let Value::Object(more) = more else { panic!("members, not {more}") };
        message.as_object_mut().unwrap().extend(more);
        message
    }
}

impl Fleet {
    /// `name` is the process that claims. `None` if the turn offers no call.
    pub async fn try_claim(&self, turn: &str, name: &str) -> Option<ClaimedCall> {
        let stream = self.store.keys().key(format!("local:acme:{turn}"));
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg("workers").arg(name).arg("COUNT").arg(1).arg("STREAMS").arg(stream).arg(">");
        // An error means that the stream does not exist.
        let found: Option<Vec<(String, Vec<StreamEntry>)>> =
            command.query_async(&mut self.server.connection().await).await.ok()?;
        let (lease, fields): (String, BTreeMap<String, String>) = found?.remove(0).1.remove(0);
        Some(ClaimedCall { call: serde_json::from_str(&fields["call"]).unwrap(), lease })
    }

    pub async fn claim(&self, turn: &str, name: &str) -> ClaimedCall {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(claimed) = self.try_claim(turn, name).await {
                return claimed;
            }
            // The stream does not exist before the offer, so this polls.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{turn} offers no call within {PATIENCE:?}");
    }
}
