//! Reads the output of a command up to a bound and drops the rest, so that the command never blocks on a full pipe.

use tokio::io::{AsyncRead, AsyncReadExt};

const CHUNK: usize = 16 << 10;

/// Returns true if output was dropped.
pub(crate) async fn drain(from: Option<impl AsyncRead + Unpin>, keep: usize) -> (Vec<u8>, bool) {
    let Some(mut from) = from else { return (Vec::new(), false) };
    let mut kept = Vec::new();
    let mut chunk = vec![0; CHUNK];
    let mut cut = false;
    loop {
        // A read error counts as the end of the output.
        let read = from.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            return (kept, cut);
        }
        let room = keep.saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&chunk[..room]);
        cut |= room < read;
    }
}
