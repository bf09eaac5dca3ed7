//! Reads what a command writes: up to a bound it is kept, the rest is dropped, so that no command waits for a reader.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes read at once.
const CHUNK: usize = 16 << 10;

/// Reads to the end; gives what was kept, and whether anything was dropped.
pub(crate) async fn drain(from: Option<impl AsyncRead + Unpin>, keep: usize) -> (Vec<u8>, bool) {
    let Some(mut from) = from else { return (Vec::new(), false) };
    let (mut kept, mut chunk, mut cut) = (Vec::new(), vec![0; CHUNK], false);
    loop {
        // A pipe that cannot be read has no more to say.
        let read = from.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            return (kept, cut);
        }
        let room = keep.saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&chunk[..room]);
        cut |= room < read;
    }
}
