//! A gate before the API: a gateway that starts while Redis is away listens, and answers 503 until it knows its fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// Opens the API of a gateway. Copies are the same gate.
#[derive(Debug, Clone)]
pub struct Gate(Arc<AtomicBool>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Gate {
    /// Answers every request but those for the document and the console's files with 503.
    pub fn close(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Answers requests.
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Lets a request through where the gate is open.
pub(crate) async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let asks_fleet = path.starts_with("/v1/") && path != "/v1/openapi.json";
    if asks_fleet && !gate.0.load(Ordering::Acquire) {
        return Problem::not_yet().into_response();
    }
    next.run(request).await
}
