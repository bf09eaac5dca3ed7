//! A gateway that starts while Redis is unavailable responds with 503 until the fleet is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

#[derive(Debug, Clone)]
pub struct Gate(Arc<AtomicBool>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Gate {
    /// The OpenAPI document stays available.
    pub fn close(&self) {
        self.0.store(false, Ordering::Release);
    }

    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(crate) async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let asks_fleet = path.starts_with("/v1/") && path != "/v1/openapi.json";
    if asks_fleet && !gate.0.load(Ordering::Acquire) {
        return Problem::redis_not_reached().into_response();
    }
    next.run(request).await
}
