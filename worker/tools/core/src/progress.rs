//! The progress that a handler reports while its call runs.

use tickfleet_model::limits;
use tokio::sync::watch;

use crate::{CallContext, wording};

/// A report of a call's progress. Only the latest report of a call is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressReport {
    /// The completed part of the work, from 0 to 1. `None` if unknown.
    pub fraction: Option<f64>,
    /// Text for people. May be empty.
    pub message: String,
}

/// Receives the progress reports of one call. The default sink discards them.
#[derive(Debug, Clone, Default)]
pub struct ProgressSink(Option<watch::Sender<Option<ProgressReport>>>);

impl ProgressSink {
    /// Makes a sink, and a receiver of the latest report.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<Option<ProgressReport>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(Some(sender)), receiver)
    }
}

impl CallContext {
    /// Reports progress: `fraction` from 0 to 1, if known, and a text for people. Never fails, and does not wait.
    pub fn progress(&self, fraction: Option<f64>, message: &str) {
        let Some(sender) = &self.progress.0 else { return };
        let message = wording::cut(&self.secrets.scrub(message), limits::PROGRESS_BYTES_MAX);
        let fraction = fraction.filter(|fraction| fraction.is_finite()).map(|fraction| fraction.clamp(0.0, 1.0));
        sender.send_replace(Some(ProgressReport { fraction, message }));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::tests::context;

    #[test]
    fn a_report_is_bounded_and_replaces_the_previous_one() {
        let (sink, reports) = ProgressSink::new();
        let context = CallContext { progress: sink, ..context(1) };
        context.progress(Some(0.1), "first");
        context.progress(Some(7.0), &"x".repeat(10_000));
        let latest = reports.borrow().clone().unwrap();
        assert_eq!((latest.fraction, latest.message.len()), (Some(1.0), limits::PROGRESS_BYTES_MAX));
        context.progress(Some(f64::NAN), "");
        assert_eq!(reports.borrow().clone().unwrap(), ProgressReport { fraction: None, message: String::new() });
    }
}
