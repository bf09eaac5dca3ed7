//! Messages of a child process that are too large. The protocol library drops them, and whoever waits for one would
//! wait until its time is over. Behind such a message stands an error here, which answers the same request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Value, json};
use tickfleet_model::limits;
use tokio::io::{AsyncRead, ReadBuf};

/// Tells our own errors from those of a server.
const MARK: &str = "tickfleet/tooLarge";
/// Bytes of a member's name that are told apart.
const NAME_BYTES_MAX: usize = 8;

/// The error that stands in for an answer.
fn in_its_place(id: u64) -> Vec<u8> {
    let message = format!("its answer has more than {} bytes and was not read", limits::MCP_MESSAGE_BYTES_MAX);
    let error = ErrorData::new(ErrorCode(-32000), message, Some(json!({ MARK: true })));
    let mut line = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Returns true if an error stands in for an answer that was too large.
pub(super) fn is_too_large(error: &ErrorData) -> bool {
    error.data.as_ref().and_then(|data| data.get(MARK)).is_some_and(Value::is_boolean)
}

/// The output of a child process, in lines, with an error behind each answer that is too large.
pub(super) struct Bounded<R> {
    output: R,
    server: String,
    line: Line,
    /// What was read and not handed on yet.
    waiting: Bytes,
}

impl<R> Bounded<R> {
    pub(super) fn new(output: R, server: &str) -> Self {
        Self { output, server: server.to_owned(), line: Line::default(), waiting: Bytes::new() }
    }

    /// Looks through what was read. Answers what has to be handed on in its place, if anything has.
    fn changed(&mut self, read: &[u8]) -> Option<Vec<u8>> {
        let mut changed: Option<Vec<u8>> = None;
        let mut from = 0;
        for (at, byte) in read.iter().enumerate() {
            self.line.take(*byte);
            if self.line.bytes == limits::MCP_MESSAGE_BYTES_MAX + 1 {
                let (server, bytes_max) = (self.server.as_str(), limits::MCP_MESSAGE_BYTES_MAX);
                tracing::warn!(server, bytes_max, "a message of an MCP server is too large and was dropped");
            }
            if *byte == b'\n' {
                let ended = std::mem::take(&mut self.line);
                if let Some(id) = ended.answers().filter(|_| ended.bytes > limits::MCP_MESSAGE_BYTES_MAX) {
                    let changed = changed.get_or_insert_default();
                    changed.extend_from_slice(&read[from..=at]);
                    changed.extend(in_its_place(id));
                    from = at + 1;
                }
            }
        }
        if let Some(changed) = &mut changed {
            changed.extend_from_slice(&read[from..]);
        }
        changed
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.waiting.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.output).poll_read(context, buffer))?;
            match this.changed(&buffer.filled()[before..]) {
                None => return Poll::Ready(Ok(())),
                Some(changed) => this.waiting = changed.into(),
            }
            buffer.set_filled(before);
        }
        let now = this.waiting.len().min(buffer.remaining());
        buffer.put_slice(&this.waiting[..now]);
        this.waiting.advance(now);
        Poll::Ready(Ok(()))
    }
}

/// What is known of a line: whether it is an answer, and to which request. Only members of the message itself count, for
/// an answer to one call may have anything in it.
#[derive(Default)]
struct Line {
    bytes: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// The beginning of the last text that stood in the message itself.
    text: Vec<u8>,
    /// The member whose value comes.
    member: Member,
    id: Option<u64>,
    is_odd: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Member {
    Id,
    #[default]
    Other,
}

impl Line {
    fn take(&mut self, byte: u8) {
        self.bytes = self.bytes.saturating_add(1);
        let of_message = self.depth == 1;
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_text => self.escaped = true,
            b'"' => {
                self.in_text = !self.in_text;
                if self.in_text && of_message {
                    self.text.clear();
                    // Ours are numbers.
                    self.is_odd |= self.member == Member::Id;
                }
            }
            _ if self.in_text => self.letter(byte),
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if of_message => self.named(),
            b',' if of_message => self.member = Member::Other,
            _ if of_message && self.member == Member::Id => self.digit(byte),
            _ => {}
        }
    }

    /// A letter of a text, which may be a member's name.
    fn letter(&mut self, byte: u8) {
        if self.depth == 1 && self.text.len() < NAME_BYTES_MAX {
            self.text.push(byte);
        }
    }

    /// A member's name was read.
    fn named(&mut self) {
        self.member = if self.text == b"id" { Member::Id } else { Member::Other };
        // A request of the server's own has ids of its own.
        self.is_odd |= self.text == b"method" || (self.member == Member::Id && self.id.is_some());
    }

    fn digit(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' => {
                let id = self.id.unwrap_or(0).checked_mul(10).and_then(|id| id.checked_add(u64::from(byte - b'0')));
                self.is_odd |= id.is_none();
                self.id = id;
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.is_odd = true,
        }
    }

    /// The request that the line answers; none where it answers none, or nobody can tell which.
    fn answers(&self) -> Option<u64> {
        self.id.filter(|_| !self.is_odd)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::AsyncReadExt;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event() && *metadata.level() == Level::WARN
        }

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn the_request_that_a_line_answers_is_found_in_the_message_itself_alone() {
        let answers = |line: &str| {
            let mut read = Line::default();
            line.bytes().for_each(|byte| read.take(byte));
            read.answers()
        };
        assert_eq!(answers(r#"{"jsonrpc":"2.0","id":12,"result":{"id":7,"method":"x"}}"#), Some(12));
        assert_eq!(answers(r#"{"result":{"a":[{"id":7}],"b":"\"}],\"id\":8"}, "id" : 12 }"#), Some(12));
        assert_eq!(answers(r#"{"result":"id","id":3}"#), Some(3), "a value is no name");
        for none in [
            r#"{"id":12,"method":"sampling/createMessage","params":{}}"#,
            r#"{"result":{"id":7}}"#,
            r#"{"id":"12","result":1}"#,
            r#"{"id":-1,"result":1}"#,
            r#"{"id":1.5,"result":1}"#,
            r#"{"id":null,"error":{}}"#,
            r#"{"id":1,"id":2,"result":1}"#,
            r#"{"id":99999999999999999999,"result":1}"#,
            r#"[{"id":1,"result":1}]"#,
            "id:1",
        ] {
            assert_eq!(answers(none), None, "{none}");
        }
    }

    #[tokio::test]
    async fn an_error_stands_behind_what_is_too_large_and_nothing_else_is_changed() {
        let of = |id: u64, bytes: usize| {
            let around = format!("{{\"id\":{id},\"result\":\"\"}}\n").len();
            format!("{{\"result\":\"{}\",\"id\":{id}}}\n", "x".repeat(bytes - around))
        };
        let most = limits::MCP_MESSAGE_BYTES_MAX;
        let lines = [of(1, most), of(2, most + 1), of(3, 100), "\n".to_owned(), of(4, 2 * most), of(5, 100)];
        let mut read = String::new();
        let warnings = Warnings::default();
        let _here = tracing::subscriber::set_default(warnings.clone());
        Bounded::new(lines.concat().as_bytes(), "s").read_to_string(&mut read).await.unwrap();
        let stand_in = |id| String::from_utf8(in_its_place(id)).unwrap();
        let [a, b, c, d, e, f] = lines;
        assert!(read == [a, b, stand_in(2), c, d, e, stand_in(4), f].concat());
        assert_eq!(warnings.0.load(Ordering::Relaxed), 2, "one for each");
    }
}
