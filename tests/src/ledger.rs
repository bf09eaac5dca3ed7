//! A service with effects that must not happen twice. It records its effects in a ledger.
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

/// The time between effect and response. If the worker is killed in this time, the outcome is unknown.
const ANSWER_MS: u64 = 30;

#[derive(Clone, Default)]
pub struct Ledger {
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    pub done: u32,
    pub turned_away: u32,
}

impl Ledger {
    /// Also returns `127.0.0.1:port`.
    pub async fn start() -> (Self, String) {
        let ledger = Self::default();
        let router = Router::new().fallback(Self::enter).with_state(ledger.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (ledger, address)
    }

    /// For one key in eight, the first request is refused.
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
        // A worker that is killed now has not recorded the effect.
        tokio::time::sleep(Duration::from_millis(ANSWER_MS)).await;
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }

    pub fn entry(&self, key: &str) -> Entry {
        self.entries.lock().unwrap().get(key).copied().unwrap_or_default()
    }

    /// Returns the number of keys with an effect, and the number of all effects.
    pub fn totals(&self) -> (usize, u32) {
        let entries = self.entries.lock().unwrap();
        (entries.values().filter(|e| e.done > 0).count(), entries.values().map(|e| e.done).sum())
    }
}
