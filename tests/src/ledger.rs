//! A service with an effect that must not happen twice, and with a ledger of what it did.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;

/// How long the service takes after its effect and before its answer, ms: a worker that is killed then cannot know.
const ANSWER_MS: u64 = 30;

/// What was done and what was turned away, by idempotency key.
#[derive(Clone, Default)]
pub struct Ledger {
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

/// What the service did for one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// How often the effect happened.
    pub done: u32,
    /// How often the request was turned away with 429, without effect.
    pub turned_away: u32,
}

impl Ledger {
    /// Starts the service on a free port; answers `127.0.0.1:port` too.
    pub async fn start() -> (Self, String) {
        let ledger = Self::default();
        let router = Router::new().fallback(Self::enter).with_state(ledger.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (ledger, address)
    }

    /// Does it, and gives the body back. One key in eight is turned away the first time.
    async fn enter(State(ledger): State<Self>, headers: HeaderMap, body: Bytes) -> Response {
        let key = headers.get("idempotency-key").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let busy = key.starts_with(['0', '1']);
        {
            let mut entries = ledger.entries.lock().unwrap();
            let entry = entries.entry(key).or_default();
            if busy && entry.turned_away == 0 {
                entry.turned_away = 1;
                return StatusCode::TOO_MANY_REQUESTS.into_response();
            }
            entry.done += 1;
        }
        // The effect has happened; a kill now leaves the worker's successor without knowledge.
        tokio::time::sleep(Duration::from_millis(ANSWER_MS)).await;
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }

    /// What it did for this key.
    pub fn entry(&self, key: &str) -> Entry {
        self.entries.lock().unwrap().get(key).copied().unwrap_or_default()
    }

    /// How many keys it has done something for, and how often the effect happened in all.
    pub fn totals(&self) -> (usize, u32) {
        let entries = self.entries.lock().unwrap();
        (entries.values().filter(|e| e.done > 0).count(), entries.values().map(|e| e.done).sum())
    }
}
