//! A fleet and those who watch it: a real Prometheus finds every panel's data, and when a tool hangs, workers are
//! killed and Redis is away, the alerts that should fire do, and the others do not.

mod alerts;
mod fleet;
mod history;
mod panels;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for anything; on a quiet machine the longest takes half a minute.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two looks at what nobody tells.
const PAUSE: Duration = Duration::from_millis(50);
/// The value of the label `namespace` of everything that is scraped.
const NAMESPACE: &str = "watched";

/// A folder of the chart.
fn chart(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/tickfleet").join(folder)
}
