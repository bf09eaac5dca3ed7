//! What operators see: metrics, alerts, dashboards.

mod metrics;
mod observability;
