//! Stores the progress that a tool reports while its call runs. All clients that follow the turn receive it.

use std::convert::Infallible;
use std::time::Duration;

use tickfleet_core::call::progress::CallProgress;
use tickfleet_model::Redactor;
use tickfleet_store::Store;
use tokio::sync::watch;

use crate::calls::call_attempt::CallAttempt;
use crate::tools::ProgressReport;

const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Skips a report that cannot be stored, because no decision depends on progress.
pub(super) async fn store_progress(
    store: &Store,
    redactor: &Redactor,
    attempt: &CallAttempt<'_>,
    mut reports: watch::Receiver<Option<ProgressReport>>,
) -> Infallible {
    loop {
        if reports.changed().await.is_err() {
            return std::future::pending().await;
        }
        let Some(ProgressReport { fraction, message }) = reports.borrow_and_update().clone() else { continue };
        let message = redactor.text(&message).into_owned();
        let progress = CallProgress { position: attempt.id.position, fraction, message };
        if let Err(error) = store.report_progress(&attempt.slice.name, &progress).await {
            tracing::debug!(%error, call = %attempt.id, "failed to store the progress of a call");
        }
        tokio::time::sleep(REPORT_INTERVAL).await;
    }
}
