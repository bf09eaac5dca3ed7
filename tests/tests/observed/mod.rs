//! Observability for operators: metrics, alerts, dashboards.

mod cost;
mod exports;
mod large_results;
mod metrics;
mod observability;
