//! Tests the monitoring of a fleet. Every panel must find data, and only the expected alerts may fire.

mod alerts;
mod fleet;
mod history;
mod panels;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// On an idle machine, the longest wait takes half a minute.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(50);
const NAMESPACE: &str = "watched";

fn chart(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/tickfleet").join(folder)
}
