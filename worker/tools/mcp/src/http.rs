//! The HTTP client of a connection. It preserves every digit, and ends each request with its HTTP response.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::Sse;
use tickfleet_model::limits;
use tickfleet_outbound::{BodyError, read_body};
use tickfleet_tools::Secrets;

use super::events::{Data, Events};
use super::printable::{REASON_BYTES_MAX, printable};
use super::wire::{self, Decoded, Decoder};

type Headers = HashMap<HeaderName, HeaderValue>;
type Outcome<T> = Result<T, StreamableHttpError<reqwest::Error>>;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// The session id is sent with every request, so it must be short.
const SESSION_BYTES_MAX: usize = 1_024;
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone)]
pub(super) struct StreamableClient {
    client: reqwest::Client,
    reader: Arc<ResponseReader>,
}

struct ResponseReader {
    server: String,
    secrets: Arc<Secrets>,
    decoder: Decoder,
}

impl StreamableClient {
    pub(super) fn new(client: reqwest::Client, server: &str, secrets: Arc<Secrets>) -> Self {
        let reader = ResponseReader { server: server.to_owned(), secrets, decoder: Decoder::default() };
        Self { client, reader: Arc::new(reader) }
    }

    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session_id: Option<&str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<Response> {
        let mut request = self.client.post(uri).header(ACCEPT, format!("{EVENTS}, {JSON}"));
        if let Some(token) = auth_header {
            request = request.bearer_auth(token);
        }
        for (name, value) in custom_headers {
            if [ACCEPT, SESSION, LAST_EVENT].contains(&name) {
                return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
            }
            request = request.header(name, value);
        }
        if let Some(session) = session_id {
            request = request.header(SESSION, session);
        }
        let body = wire::encoded(message)?;
        request.header(CONTENT_TYPE, JSON).body(body).send().await.map_err(StreamableHttpError::Client)
    }

    async fn answer(
        &self,
        response: Response,
        message: &ClientJsonRpcMessage,
        has_session: bool,
    ) -> Outcome<StreamableHttpPostResponse> {
        let status = response.status();
        let request_id = wire::request_id(message);
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !status.is_success() {
            return self.refusal(response, request_id).await;
        }
        let session = session(response.headers())?;
        let kind = kind(response.headers());
        let Some(request_id) = request_id else {
            // Only requests expect a response, so any body is ignored.
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        match kind.as_deref() {
            Some(kind) if kind.starts_with(EVENTS) => {
                Ok(StreamableHttpPostResponse::Sse(events(response, Arc::clone(&self.reader), request_id), session))
            }
            Some(kind) if kind.starts_with(JSON) => {
                let answer = match body(response, limits::MCP_MESSAGE_BYTES_MAX).await? {
                    Some(body) => self.reader.answer(&body, request_id),
                    None => self.reader.too_large(request_id),
                };
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            kind => Err(StreamableHttpError::UnexpectedContentType(kind.map(str::to_owned))),
        }
    }

    /// The body of an unsuccessful response may contain a protocol error.
    async fn refusal(&self, response: Response, request_id: Option<u64>) -> Outcome<StreamableHttpPostResponse> {
        let status = response.status();
        let challenge =
            response.headers().get(WWW_AUTHENTICATE).map(|header| String::from_utf8_lossy(header.as_bytes()));
        match (status, challenge.map(Cow::into_owned)) {
            (StatusCode::UNAUTHORIZED, Some(challenge)) => {
                return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
            }
            (StatusCode::FORBIDDEN, Some(challenge)) => {
                return Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge, None)));
            }
            _ => {}
        }
        let passes = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        let after = response.headers().get(RETRY_AFTER).and_then(|header| header.to_str().ok()).map(str::to_owned);
        let failed = || HttpStatusError::new(status.as_u16(), after.clone()).into();
        let is_json = kind(response.headers()).is_some_and(|kind| kind.starts_with(JSON));
        if passes && (!is_json || status == StatusCode::TOO_MANY_REQUESTS) {
            return Err(failed());
        }
        let body = body(response, REFUSAL_BYTES_MAX).await.ok().flatten().unwrap_or_default();
        // A response about credentials does not answer the request, so it counts as a failure.
        let is_about_credentials = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_json
            && !is_about_credentials
            && let Decoded::Message(JsonRpcMessage::Error(mut error)) = self.reader.decoder.decode(body.trim_ascii())
        {
            error.id = error.id.or(request_id.map(wire::id_of));
            return Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), None));
        }
        if passes {
            return Err(failed());
        }
        let message = format!("HTTP {}: {}", status.as_u16(), String::from_utf8_lossy(&body));
        Err(StreamableHttpError::UnexpectedServerResponse(message.into()))
    }
}

impl ResponseReader {
    /// The id in the body is ignored, because an HTTP response belongs to its request.
    fn answer(&self, body: &[u8], request_id: u64) -> ServerJsonRpcMessage {
        match self.decoder.decode(body.trim_ascii()) {
            Decoded::Message(JsonRpcMessage::Response(mut response)) => {
                response.id = wire::id_of(request_id);
                ServerJsonRpcMessage::Response(response)
            }
            Decoded::Message(JsonRpcMessage::Error(mut error)) => {
                error.id = Some(wire::id_of(request_id));
                ServerJsonRpcMessage::Error(error)
            }
            Decoded::Unreadable(flaw) => self.unreadable(request_id, &flaw.why),
            Decoded::Message(_) | Decoded::Ignored => self.unreadable(request_id, "it is not an answer"),
        }
    }

    /// `None` for an empty event, an unused message, or an invalid message without a known request.
    fn message(&self, data: Data, request_id: Option<u64>) -> Option<ServerJsonRpcMessage> {
        let bytes = match data {
            Data::Bytes(bytes) => bytes,
            Data::TooLarge => return request_id.map(|request_id| self.too_large(request_id)),
        };
        // Some servers keep a stream alive with empty events, which are ignored.
        if bytes.trim_ascii().is_empty() {
            return None;
        }
        match self.decoder.decode(bytes.trim_ascii()) {
            Decoded::Message(JsonRpcMessage::Error(mut error)) => {
                error.id = error.id.or(request_id.map(wire::id_of));
                Some(ServerJsonRpcMessage::Error(error))
            }
            Decoded::Message(message) => Some(message),
            Decoded::Ignored => None,
            Decoded::Unreadable(flaw) => flaw.id.or(request_id).map(|id| self.unreadable(id, &flaw.why)),
        }
    }

    fn unreadable(&self, id: u64, why: &str) -> ServerJsonRpcMessage {
        let server = self.server.as_str();
        let reason = printable(why, &self.secrets, REASON_BYTES_MAX);
        tracing::warn!(server, request = id, reason, "cannot read an MCP server's response");
        wire::unreadable(id, &reason)
    }

    fn too_large(&self, id: u64) -> ServerJsonRpcMessage {
        let server = self.server.as_str();
        let bytes_max = limits::MCP_MESSAGE_BYTES_MAX;
        tracing::warn!(server, bytes_max, "dropped an oversized message of an MCP server");
        wire::too_large(id)
    }

    fn event(&self, sse: Sse, data: Option<Data>, request_id: Option<u64>) -> Sse {
        let is_message = matches!(sse.event.as_deref(), None | Some("" | "message"));
        let message = data.filter(|_| is_message).and_then(|data| self.message(data, request_id));
        // Messages made by this module can always be serialized.
        Sse { data: message.and_then(|message| serde_json::to_string(&message).ok()), ..sse }
    }
}

fn session(headers: &HeaderMap) -> Outcome<Option<String>> {
    let Some(session) = headers.get(SESSION) else { return Ok(None) };
    if session.len() > SESSION_BYTES_MAX {
        let message = format!("the id of its session has more than {SESSION_BYTES_MAX} bytes");
        return Err(StreamableHttpError::UnexpectedServerResponse(message.into()));
    }
    Ok(session.to_str().ok().map(str::to_owned))
}

fn kind(headers: &HeaderMap) -> Option<String> {
    headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase())
}

async fn body(mut response: Response, bytes_max: usize) -> Outcome<Option<Vec<u8>>> {
    match read_body(&mut response, bytes_max).await {
        Ok(body) => Ok(Some(body)),
        Err(BodyError::TooLarge) => Ok(None),
        Err(BodyError::Lost(error)) => Err(StreamableHttpError::Client(error)),
    }
}

fn events(
    response: Response,
    reader: Arc<ResponseReader>,
    request_id: u64,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let state = (response, Events::default(), VecDeque::<(Sse, Option<Data>)>::new());
    let events = stream::unfold(Some(state), move |state| {
        let reader = Arc::clone(&reader);
        async move {
            let (mut response, mut events, mut complete) = state?;
            loop {
                if let Some((sse, data)) = complete.pop_front() {
                    let event = reader.event(sse, data, Some(request_id));
                    return Some((Ok(event), Some((response, events, complete))));
                }
                match response.chunk().await {
                    Ok(Some(chunk)) => complete.extend(events.take(&chunk)),
                    Ok(None) => return None,
                    Err(error) => return Some((Err(SseError::Body(Box::new(error))), None)),
                }
            }
        }
    });
    events.boxed()
}

impl StreamableHttpClient for StreamableClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<StreamableHttpPostResponse> {
        self.reader.decoder.note(&message);
        let response = self.post(&uri, &message, session_id.as_deref(), auth_header, custom_headers).await?;
        self.answer(response, &message, session_id.is_some()).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        _: usize,
    ) -> Outcome<StreamableHttpPostResponse> {
        self.post_message(uri, message, session_id, auth_header, custom_headers).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<()> {
        self.client.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<BoxStream<'static, Result<Sse, SseError>>> {
        let most = limits::MCP_MESSAGE_BYTES_MAX;
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_header, custom_headers, most).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Outcome<BoxStream<'static, Result<Sse, SseError>>> {
        let stream = self
            .client
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                custom_headers,
                max_sse_event_size,
            )
            .await?;
        let reader = Arc::clone(&self.reader);
        let read = move |event: Result<Sse, SseError>| {
            event.map(|mut sse| {
                let data = sse.data.take().map(|data| Data::Bytes(data.into_bytes()));
                reader.event(sse, data, None)
            })
        };
        Ok(stream.map(read).boxed())
    }
}
