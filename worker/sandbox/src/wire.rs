//! Messages over a socket. The worker sends a request and the standard input. The launcher replies with its report.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::StopCause;
use crate::spec::{Level, Spec};

pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) level: Level,
    pub(crate) spec: Spec,
    /// If true, the launcher confines the process, but executes no command.
    pub(crate) probe: bool,
    pub(crate) cgroup: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// A step of the confinement failed. Nothing ran.
    Refused(String),
    /// The program cannot be executed, so nothing ran.
    NotStarted(String),
    Ended {
        exit_code: Option<i32>,
        signal: Option<i32>,
        stopped: Option<StopCause>,
        /// True if the command had a `/proc` at the level `strict`.
        proc: bool,
    },
}

/// The length of `content` as four little-endian bytes, followed by `content`.
pub(crate) fn frame(content: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(content.len()).ok().filter(|_| content.len() <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("the frame is too long"))?;
    Ok([&length.to_le_bytes(), content].concat())
}

pub(crate) fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("the frame is too long"));
    }
    let mut content = vec![0; length];
    from.read_exact(&mut content)?;
    Ok(content)
}

pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(&serde_json::to_vec(message)?)?)
}

pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_frame(from)?)?)
}
