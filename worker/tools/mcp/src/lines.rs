//! Messages over the standard input and output of a child process, one per line. An unreadable response ends its
//! request.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::io;
use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, ClientNotification, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tickfleet_model::limits;
use tickfleet_tools::Secrets;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::printable::{REASON_BYTES_MAX, printable};
use super::scan::MessageScan;
use super::wire::{self, DecodeError, Decoded, Decoder};

const NOISE_BYTES_MAX: usize = 200;
/// Some editors and runtimes put this mark at the start of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(super) struct StdioTransport<R, W> {
    server: String,
    secrets: Arc<Secrets>,
    decoder: Decoder,
    output: BufReader<R>,
    input: Arc<tokio::sync::Mutex<Option<W>>>,
    line: Vec<u8>,
    /// Set if the line exceeds the size limit: its bytes are then only scanned, not stored.
    excess: Option<MessageScan>,
    /// A message that began in an earlier line and is still incomplete.
    spread: Option<SplitMessage>,
    waiting: BTreeSet<u64>,
    ready: VecDeque<ServerJsonRpcMessage>,
    noise: u64,
}

#[derive(Default)]
struct SplitMessage {
    scan: MessageScan,
    is_reported: bool,
}

impl<R: AsyncRead, W> StdioTransport<R, W> {
    pub(super) fn new(server: &str, secrets: Arc<Secrets>, output: R, input: W) -> Self {
        Self {
            server: server.to_owned(),
            secrets,
            decoder: Decoder::default(),
            output: BufReader::new(output),
            input: Arc::new(tokio::sync::Mutex::new(Some(input))),
            line: Vec::new(),
            excess: None,
            spread: None,
            waiting: BTreeSet::new(),
            ready: VecDeque::new(),
            noise: 0,
        }
    }
}

impl<R: AsyncRead + Unpin, W> StdioTransport<R, W> {
    /// False at the end of the stream, or if reading fails. If the future is dropped, the next call continues.
    async fn read_line(&mut self) -> bool {
        loop {
            let available = match self.output.fill_buf().await {
                Ok(available) => available,
                Err(error) => {
                    tracing::debug!(server = self.server, %error, "cannot read the output of an MCP server");
                    return false;
                }
            };
            if available.is_empty() {
                // The last line may have no line break.
                return !self.line.is_empty() || self.excess.is_some();
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.map_or(available.len(), |end| end + 1)];
            match &mut self.excess {
                Some(scan) => scan.take_all(part),
                None if self.line.len() + part.len() > limits::MCP_MESSAGE_BYTES_MAX => {
                    let server = self.server.as_str();
                    let bytes_max = limits::MCP_MESSAGE_BYTES_MAX;
                    tracing::warn!(server, bytes_max, "dropped an oversized message of an MCP server");
                    let scan = self.excess.insert(MessageScan::default());
                    scan.take_all(&self.line);
                    scan.take_all(part);
                    self.line = Vec::new();
                }
                None => self.line.extend_from_slice(part),
            }
            let taken = part.len();
            self.output.consume(taken);
            if end.is_some() {
                return true;
            }
        }
    }

    fn take_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if let Some(scan) = self.excess.take() {
            if let Some(id) = scan.response_id().filter(|id| self.waiting.remove(id)) {
                self.ready.push_back(wire::too_large(id));
            }
            return;
        }
        let text = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line).trim_ascii();
        if text.is_empty() {
            return;
        }
        match self.decoder.decode(text) {
            Decoded::Message(message) => {
                self.spread = None;
                self.deliver_message(message);
            }
            Decoded::Ignored => self.spread = None,
            Decoded::Unreadable(flaw) => self.unreadable(text, flaw),
        }
    }

    fn deliver_message(&mut self, mut message: ServerJsonRpcMessage) {
        let answered = match &mut message {
            JsonRpcMessage::Response(response) => Some(wire::number(&response.id)),
            JsonRpcMessage::Error(error) => {
                // An error without a request id belongs to the only pending request.
                if error.id.is_none()
                    && let Some(id) = self.only_one()
                {
                    error.id = Some(wire::id_of(id));
                }
                Some(error.id.as_ref().and_then(wire::number))
            }
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        match answered {
            Some(Some(id)) if self.waiting.remove(&id) => self.ready.push_back(message),
            Some(_) => tracing::debug!(server = self.server, "MCP server answered a request that is no longer pending"),
            None => self.ready.push_back(message),
        }
    }

    fn only_one(&self) -> Option<u64> {
        self.waiting.first().copied().filter(|_| self.waiting.len() == 1)
    }

    fn unreadable(&mut self, text: &[u8], flaw: DecodeError) {
        let DecodeError { id, why, is_cut } = flaw;
        if let Some(id) = id {
            self.spread = None;
            return self.end_request(id, &why);
        }
        let is_spread = self.spread.is_some();
        let mut spread = self.spread.take().unwrap_or_default();
        // A line may contain noise before a message, so start at the first brace.
        let from = if is_spread { Some(0) } else { text.iter().position(|byte| *byte == b'{') };
        let Some(from) = from else { return self.noise(text) };
        spread.scan.take_all(&text[from..]);
        spread.scan.take_all(b"\n");
        let why = if is_spread || is_cut { "it is cut off, or spread over several lines".to_owned() } else { why };
        let is_open = (is_spread || is_cut) && spread.scan.is_open();
        // The request id may be at the end of the response, so the whole message is scanned.
        let id = spread.scan.response_id().or_else(|| self.only_one().filter(|_| !is_open && spread.scan.is_answer()));
        match id.filter(|_| !spread.is_reported) {
            Some(id) => {
                spread.is_reported = true;
                self.end_request(id, &why);
            }
            None if !is_open && !spread.is_reported => self.noise(text),
            None => {}
        }
        self.spread = is_open.then_some(spread);
    }

    fn end_request(&mut self, id: u64, why: &str) {
        let server = self.server.as_str();
        let reason = printable(why, &self.secrets, REASON_BYTES_MAX);
        tracing::warn!(server, request = id, reason, "cannot read an MCP server's response");
        if self.waiting.remove(&id) {
            self.ready.push_back(wire::unreadable(id, &reason));
        }
    }

    /// Logs only the first noise line, the tenth, the hundredth, and so on.
    fn noise(&mut self, text: &[u8]) {
        self.noise += 1;
        if self.noise == 10_u64.pow(self.noise.ilog10()) {
            let line = printable(&String::from_utf8_lossy(text), &self.secrets, NOISE_BYTES_MAX);
            let server = self.server.as_str();
            let lines = self.noise;
            tracing::warn!(
                server,
                line,
                lines,
                "MCP server writes non-protocol output to standard output; it belongs on standard error"
            );
        }
    }
}

impl<R, W> Transport<RoleClient> for StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.decoder.note(&message);
        self.waiting.extend(wire::request_id(&message));
        if let JsonRpcMessage::Notification(notification) = &message
            && let ClientNotification::CancelledNotification(cancelled) = &notification.notification
            && let Some(id) = cancelled.params.request_id.as_ref().and_then(wire::number)
        {
            self.waiting.remove(&id);
        }
        let input = Arc::clone(&self.input);
        let bytes = wire::encoded(&message);
        async move {
            let mut bytes = bytes.map_err(io::Error::other)?;
            bytes.push(b'\n');
            let mut input = input.lock().await;
            let input = input.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            input.write_all(&bytes).await?;
            input.flush().await
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if !self.read_line().await {
                return None;
            }
            self.take_line();
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        drop(self.input.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use rmcp::model::{ClientRequest, PingRequest};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

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

    /// Returns each message as its request id with `ok` or the reason (`4 ok`), and the number of warnings.
    async fn messages(waiting: &[u64], output: &[u8]) -> (Vec<String>, usize) {
        let warnings = Warnings::default();
        let _here = tracing::subscriber::set_default(warnings.clone());
        let output = std::io::Cursor::new(output.to_vec());
        let mut lines = StdioTransport::new("s", Arc::new(Secrets::default()), output, tokio::io::sink());
        for id in waiting {
            let ping =
                ClientJsonRpcMessage::request(ClientRequest::PingRequest(PingRequest::default()), wire::id_of(*id));
            lines.send(ping).await.unwrap();
        }
        let mut got = Vec::new();
        while let Some(message) = lines.receive().await {
            got.push(match message {
                JsonRpcMessage::Response(response) => format!("{} ok", response.id),
                JsonRpcMessage::Error(error) => format!("{} {}", error.id.unwrap(), error.error.message),
                other => format!("{other:?}"),
            });
        }
        (got, warnings.0.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn an_oversized_response_fails_only_its_own_request() {
        let of = |id: u64, bytes: usize| {
            let around = format!("{{\"id\":{id},\"result\":\"\"}}\n").len();
            format!("{{\"result\":\"{}\",\"id\":{id}}}\n", "x".repeat(bytes - around))
        };
        let most = limits::MCP_MESSAGE_BYTES_MAX;
        let lines = [of(1, most), of(2, most + 1), of(3, 100), "\n".to_owned(), of(4, 2 * most), of(5, 100)].concat();
        let (got, warnings) = messages(&[1, 2, 3, 4, 5], lines.as_bytes()).await;
        let large = "its answer has more than 4194304 bytes and was not read";
        assert_eq!(got, ["1 ok", &format!("2 {large}"), "3 ok", &format!("4 {large}"), "5 ok"]);
        assert_eq!(warnings, 2, "one for each");
    }

    #[tokio::test]
    async fn an_unreadable_response_fails_only_its_own_request() {
        let deep = format!("{{\"id\":1,\"result\":{}{}}}", "[".repeat(200), "]".repeat(200));
        let spread = "{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 1,\n  \"result\": {\n    \"content\": []\n  }\n}";
        let late = "{\n  \"result\": {\n    \"id\": 2\n  },\n  \"id\": 1\n}";
        for (unreadable, why) in [
            (br#"{"id":1,"result":{"n":NaN}}"#.as_slice(), "not a JSON message"),
            (b"{\"id\":1,\"result\":{\"n\":\"caf\xe9\"}}", "not UTF-8"),
            (br#"{"id":1,"result":{"n":"\ud83d"}}"#, "a lone surrogate"),
            (deep.as_bytes(), "deeper than 128 levels"),
            (spread.as_bytes(), "over several lines"),
            (late.as_bytes(), "over several lines"),
            (br#"{"jsonrpc":"2.0","id":1,"result":{"content":["#, "cut off"),
            (br#"loading... {"jsonrpc":"2.0","id":1,"result":{}}"#, "not a JSON message"),
        ] {
            let output = [unreadable, b"\n{\"id\":2,\"result\":{}}\n"].concat();
            let (got, warnings) = messages(&[1, 2], &output).await;
            assert!(got.len() == 2 && got[0].starts_with("1 ") && got[0].contains(why), "{why}: {got:?}");
            assert_eq!((got[1].as_str(), warnings), ("2 ok", 1), "{why}");
        }
        let (got, _) = messages(&[7], b"{\"result\":NaN}\n").await;
        assert_eq!(got.len(), 1, "an answer without a name is for the only request there is: {got:?}");
    }

    #[tokio::test]
    async fn noise_is_logged_and_fails_no_request() {
        let noise = "ready\n{\"level\":\"info\"}\n[1]\n{ starting\n12\n\"x\"\n\u{feff}\n".repeat(3);
        let output = [noise.as_bytes(), b"\xef\xbb\xbf{\"id\":1,\"result\":{}}\n"].concat();
        let (got, warnings) = messages(&[1, 2], &output).await;
        assert_eq!(got, ["1 ok"]);
        assert!((1..=2).contains(&warnings), "the first line, and the tenth: {warnings}");
    }
}
