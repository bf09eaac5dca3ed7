//! Monitoring of a fleet: a real Prometheus finds data for every panel. When a tool hangs, workers are killed and Redis
//! is away, the right alerts fire, and no others.

mod alerts;
mod fleet;
mod history;
mod panels;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum wait. On a quiet machine, the longest wait takes half a minute.
const PATIENCE: Duration = Duration::from_secs(300);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(50);
/// The label `namespace` of all scraped series.
const NAMESPACE: &str = "watched";

/// A folder of the chart.
fn chart(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/tickfleet").join(folder)
}
