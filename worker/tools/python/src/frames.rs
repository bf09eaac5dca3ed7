//! Frames: a length of four bytes in big-endian order, followed by JSON of that length.

use std::io;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The host has the same limit.
pub(crate) const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes, which is more than {FRAME_BYTES_MAX}")]
    TooLarge(usize),
    #[error("a frame that cannot be understood ({0})")]
    Json(#[from] serde_json::Error),
    #[error("its socket failed ({0})")]
    Socket(#[from] io::Error),
}

pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    let written = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX);
    frame[..4].copy_from_slice(&written.ok_or(FrameError::TooLarge(length))?.to_be_bytes());
    Ok(frame)
}

/// `None` if the other side closed the socket between two frames. Allocates only for bytes that have arrived.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Vec<u8>>, FrameError> {
    let mut length = [0; 4];
    if from.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..]).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLarge(length));
    }
    let mut body = Vec::new();
    let read = from.take(length as u64).read_to_end(&mut body).await?;
    if read < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(Some(body))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test]
    async fn frames_round_trip_until_the_end() {
        let wire = [encode(&"one").unwrap(), encode(&2).unwrap()].concat();
        let mut from = wire.as_slice();
        assert_eq!(read(&mut from).await.unwrap().unwrap(), b"\"one\"");
        assert_eq!(read(&mut from).await.unwrap().unwrap(), b"2");
        assert!(read(&mut from).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_oversized_frame_is_neither_written_nor_read() {
        let text = "x".repeat(FRAME_BYTES_MAX);
        assert!(matches!(encode(&text), Err(FrameError::TooLarge(_))));
        let mut from: &[u8] = &[0xff; 8];
        assert!(matches!(read(&mut from).await, Err(FrameError::TooLarge(_))));
    }

    #[tokio::test]
    async fn a_truncated_frame_is_an_error() {
        let wire = encode(&"one").unwrap();
        for cut in 1..wire.len() {
            assert!(matches!(read(&mut &wire[..cut]).await, Err(FrameError::Socket(_))), "{cut}");
        }
    }
}
