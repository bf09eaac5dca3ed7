//! Writes lines to standard output, for log collectors of containers.

use std::io::Write as _;

use tickfleet_client::audit::LogBatch;
use tickfleet_proof::lines::Header;

use super::batch_text::{SendError, text};

#[derive(Default)]
pub(super) struct StdoutSink {
    begun: bool,
}

impl StdoutSink {
    pub(super) const fn is_new(&self) -> bool {
        !self.begun
    }

    /// Returns when the operating system has accepted the batch.
    pub(super) async fn print(&mut self, header: &Header, batch: &LogBatch) -> Result<(), SendError> {
        let text = text((!self.begun && !batch.items.is_empty()).then_some(header), batch);
        self.begun |= !text.is_empty();
        // A slow reader can block the write. On a separate thread, the write does not delay the responses to probes.
        let printed = tokio::task::spawn_blocking(move || {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        });
        let over = |why: String| SendError::Over(format!("cannot write to standard output: {why}"));
        printed.await.map_err(|error| over(error.to_string()))?.map_err(|error| over(error.to_string()))
    }
}
