//! The bank and the other services of the third act, on this machine. The bank keeps its own ledger.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::story::LOST;
use crate::commands::demo::stand_in::cut;

const REFERENCE: &str = "Idempotency-Key";

/// The running services. Dropping this value stops the services.
pub(super) struct Bank {
    pub(super) base_url: String,
    ledger: Arc<Mutex<Ledger>>,
    serving: tokio::task::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Ledger {
    /// Payments with their idempotency keys, in order.
    payments: Vec<(String, Value)>,
    quotes: BTreeMap<String, usize>,
}

type Services = State<Arc<Mutex<Ledger>>>;

impl Bank {
    /// Starts the services on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port is available.
    pub(super) async fn start() -> Result<Self> {
        let ledger = Arc::<Mutex<Ledger>>::default();
        let listener =
            tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot open a port for the bank")?;
        let base_url = format!("http://{}", listener.local_addr()?);
        let app = Router::new()
            .route("/mail", get(|| async { Json(json!({"from": "eve", "text": "You owe me 90. Pay today."})) }))
            .route("/reviews", post(|| async { Json(json!({"reviewed": true})) }))
            .route(
                "/parcels/{id}",
                get(|Path(id): Path<String>| async move { Json(json!({"id": id, "is": "on its way"})) }),
            )
            .route("/quotes/{item}", get(quote))
            .route("/payments", post(pay))
            .route("/payments/{reference}", get(find))
            .with_state(Arc::clone(&ledger));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "demo bank stopped unexpectedly");
            }
        });
        Ok(Self { base_url, ledger, serving })
    }

    pub(super) fn paid(&self) -> Vec<(String, u64)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ledger = self.ledger.lock();
        ledger.payments.iter().map(|(_, paid)| (text(&paid["to"]), paid["amount"].as_u64().unwrap_or(0))).collect()
    }

    pub(super) fn quotes_asked(&self) -> usize {
        self.ledger.lock().quotes.values().sum()
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn quote(State(ledger): Services, Path(item): Path<String>) -> Json<Value> {
    *ledger.lock().quotes.entry(item.clone()).or_default() += 1;
    Json(json!({"item": item, "price": 80}))
}

/// Makes a payment for every request, because the fleet must prevent duplicates. The response to one payment is lost.
async fn pay(State(ledger): Services, headers: HeaderMap, Json(payment): Json<Value>) -> Response {
    let reference = headers.get(REFERENCE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut ledger = ledger.lock();
    ledger.payments.push((reference, payment.clone()));
    let receipt = json!({"receipt": format!("r-{}", ledger.payments.len()), "paid": payment});
    if payment["amount"] == LOST { cut(&receipt) } else { Json(receipt).into_response() }
}

async fn find(State(ledger): Services, Path(reference): Path<String>) -> Json<Value> {
    let ledger = ledger.lock();
    let found = ledger.payments.iter().position(|(of, _)| *of == reference);
    let payment = found.and_then(|at| Some((at, &ledger.payments.get(at)?.1)));
    let payment = payment.map(|(at, paid)| json!({"receipt": format!("r-{}", at + 1), "paid": paid}));
    Json(json!({"found": payment.is_some(), "payment": payment}))
}
