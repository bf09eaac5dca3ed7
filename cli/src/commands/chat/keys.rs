//! User input. The terminal provides line editing.

use std::io::{BufRead, Read};

use tickfleet_model::limits;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::Failure;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key {
    Line(String),
    Interrupt,
    /// Ctrl-D, or the end of piped input.
    End,
}

pub(super) struct Keys {
    lines: mpsc::Receiver<String>,
    interrupts: Signal,
}

impl Keys {
    /// If `wanted` is true, also reads lines, on a separate thread: a blocking read from a terminal cannot be canceled.
    pub(super) fn listen(wanted: bool) -> Result<Self, Failure> {
        let (send, lines) = mpsc::channel(1);
        if wanted {
            drop(std::thread::spawn(move || read(&send)));
        }
        Ok(Self { lines, interrupts: signal(SignalKind::interrupt()).map_err(Failure::failed)? })
    }

    pub(super) async fn next(&mut self) -> Key {
        tokio::select! {
            line = self.lines.recv() => line.map_or(Key::End, Key::Line),
            _ = self.interrupts.recv() => Key::Interrupt,
        }
    }

    /// Waits for Ctrl-C. Returns at once if an earlier Ctrl-C was not received yet.
    pub(super) async fn interrupted(&mut self) {
        self.interrupts.recv().await;
    }
}

fn read(send: &mpsc::Sender<String>) {
    let stdin = std::io::stdin();
    let mut stdin = stdin.lock();
    loop {
        let mut line = Vec::new();
        // A longer line exceeds the maximum length of a message. Its beginning is enough to reject the message.
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
