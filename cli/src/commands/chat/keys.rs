//! What the user types: lines, Ctrl-C and Ctrl-D. The terminal itself edits lines.

use std::io::{BufRead, Read};

use tickfleet_model::limits;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::Failure;

/// Something that the user did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A line.
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the end of what was piped in.
    End,
}

/// Listens to them.
pub(super) struct Keys {
    lines: mpsc::Receiver<String>,
    interrupts: Signal,
}

impl Keys {
    /// Listens to Ctrl-C, and to lines where they are `wanted`. Lines are read on a thread of their own, which goes with
    /// the process: a read of a terminal cannot be given up.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub(super) fn listen(wanted: bool) -> Result<Self, Failure> {
        let (send, lines) = mpsc::channel(1);
        if wanted {
            drop(std::thread::spawn(move || read(&send)));
        }
        Ok(Self { lines, interrupts: signal(SignalKind::interrupt()).map_err(Failure::failed)? })
    }

    /// The next thing that the user does.
    pub(super) async fn next(&mut self) -> Key {
        tokio::select! {
            line = self.lines.recv() => line.map_or(Key::End, Key::Line),
            _ = self.interrupts.recv() => Key::Interrupt,
        }
    }

    /// Ctrl-C is typed. One that came while nobody listened is not forgotten.
    pub(super) async fn interrupted(&mut self) {
        self.interrupts.recv().await;
    }
}

fn read(send: &mpsc::Sender<String>) {
    let stdin = std::io::stdin();
    let mut stdin = stdin.lock();
    loop {
        let mut line = Vec::new();
        // A longer line is more than one message may have: its beginning says enough for the refusal.
        let max = limits::TASK_DESCRIPTION_BYTES_MAX as u64 + 2;
        match (&mut stdin).take(max).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                if send.blocking_send(text).is_err() {
                    return;
                }
            }
        }
    }
}
