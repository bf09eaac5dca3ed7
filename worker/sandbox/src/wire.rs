//! What worker and launcher tell each other over a socket: a frame of JSON each way.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::Stop;
use crate::spec::{Level, Spec};

/// Longest frame, bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;

/// What the launcher is asked to do. Standard input follows in a frame of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) level: Level,
    pub(crate) spec: Spec,
    /// True to confine as for a command, and then to end instead of executing one.
    pub(crate) probe: bool,
    /// The cgroup that the command is put into.
    pub(crate) cgroup: Option<PathBuf>,
}

/// The launcher's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// A step of the confinement failed: nothing ran.
    Refused(String),
    /// The program cannot be executed: nothing ran.
    NotStarted(String),
    /// The command has ended, and nothing of it is alive.
    Ended {
        exit_code: Option<i32>,
        signal: Option<i32>,
        stopped: Option<Stop>,
        /// At the level `strict`: whether the command had a `/proc`.
        proc: bool,
    },
}

/// A frame as bytes: its length, four bytes with the low one first, and its content.
pub(crate) fn frame(content: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(content.len()).ok().filter(|_| content.len() <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("the frame is too long"))?;
    Ok([&length.to_le_bytes(), content].concat())
}

/// Reads one frame.
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

/// Writes a message as a frame of JSON.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(&serde_json::to_vec(message)?)?)
}

/// Reads a message from a frame of JSON.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_frame(from)?)?)
}
