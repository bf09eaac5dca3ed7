//! Standard error of child processes: logged without secrets, and the last lines are kept for error messages.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_model::Redactor;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::process::ChildStderr;

use super::{Secrets, wording};

const LINE_BYTES_MAX: usize = 1_024;
/// The maximum number of logged lines. Further lines are dropped, because no one would read them.
const LINES_MAX: usize = 1_000;

/// The number of last lines in the report on a failed process.
const TAIL_LINES: usize = 5;
const TAIL_LINE_BYTES: usize = 200;

/// The last lines of a process's standard error, without secrets.
#[derive(Debug, Default)]
pub struct StderrTail(Mutex<VecDeque<String>>);

impl StderrTail {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        // Control characters could move the cursor of a terminal, so they are replaced.
        let line = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        lines.push_back(wording::cut(&line, TAIL_LINE_BYTES));
    }

    /// Returns `; on standard error it said: …`. Empty if the process wrote nothing.
    #[must_use]
    pub fn failure_suffix(&self) -> String {
        let lines = self.0.lock();
        if lines.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("; on standard error it said: {}", lines.join(" | "))
    }
}

/// Logs lines until the process closes the stream. The log message begins with `what` (such as `an MCP server`).
pub async fn log(what: &'static str, name: String, from: ChildStderr, secrets: Arc<Secrets>, tail: Arc<StderrTail>) {
    let mut from = BufReader::new(from);
    let redactor = Redactor::default();
    let mut lines = 0_usize;
    while let Some(line) = next_line(&mut from).await {
        lines += 1;
        if lines > LINES_MAX {
            continue; // Keep reading: the process would block if its pipe were full.
        }
        let clean = secrets.scrub(&String::from_utf8_lossy(&line));
        let clean = redactor.text(clean.trim_end());
        tail.push(&clean);
        let line = wording::cut(&clean, LINE_BYTES_MAX);
        tracing::info!(name, line, "{what}'s standard error");
        if lines == LINES_MAX {
            tracing::warn!(name, lines, "{what}: too much standard error output; the rest is not logged");
        }
    }
}

/// Cuts the line to twice the logged length, so that no part of a split secret is logged. `None` at the end.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin)) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let available = from.fill_buf().await.ok()?;
        if available.is_empty() {
            return (!line.is_empty()).then_some(line);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(available.len(), |end| end + 1);
        let room = (2 * LINE_BYTES_MAX).saturating_sub(line.len());
        line.extend_from_slice(&available[..used.min(room)]);
        from.consume(used);
        if end.is_some() {
            return Some(line);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test]
    async fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let text = format!("{}\nshort\nlast", "x".repeat(10 * LINE_BYTES_MAX));
        let mut from = BufReader::with_capacity(100, text.as_bytes());
        assert_eq!(next_line(&mut from).await.unwrap().len(), 2 * LINE_BYTES_MAX);
        assert_eq!(next_line(&mut from).await.unwrap(), b"short\n");
        assert_eq!(next_line(&mut from).await.unwrap(), b"last");
        assert!(next_line(&mut from).await.is_none());
    }
}
