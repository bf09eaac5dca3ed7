//! Observability for operators: metrics, alerts, dashboards.

mod cost;
mod exports;
mod metrics;
mod observability;
