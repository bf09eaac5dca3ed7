//! What operators see: metrics, alerts, dashboards.

mod cost;
mod metrics;
mod observability;
