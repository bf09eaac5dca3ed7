//! The HTTP client of a connection. It adds one thing to that of the protocol library: an error that names no request
//! is the answer to the request that it came back for.
//!
//! A server that has been restarted answers so to a session that it does not know. Without a name, nobody would be told,
//! and every call on the connection would wait until its time is over.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::BoxStream;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::Sse;

type Headers = HashMap<HeaderName, HeaderValue>;
type Outcome<T> = Result<T, StreamableHttpError<reqwest::Error>>;

/// A client that answers every request that it was given.
#[derive(Clone)]
pub(super) struct Answering(pub(super) reqwest::Client);

/// The answer, with the name of the request where it has none of its own.
fn named(answer: StreamableHttpPostResponse, asked: &ClientJsonRpcMessage) -> StreamableHttpPostResponse {
    match (answer, asked) {
        (
            StreamableHttpPostResponse::Json(JsonRpcMessage::Error(mut error), session),
            JsonRpcMessage::Request(request),
        ) if error.id.is_none() => {
            error.id = Some(request.id.clone());
            StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), session)
        }
        (answer, _) => answer,
    }
}

impl StreamableHttpClient for Answering {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<StreamableHttpPostResponse> {
        let asked = message.clone();
        let answer = self.0.post_message(uri, message, session_id, auth_header, custom_headers).await?;
        Ok(named(answer, &asked))
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Outcome<StreamableHttpPostResponse> {
        let asked = message.clone();
        let answer = self
            .0
            .post_message_with_max_sse_event_size(
                uri,
                message,
                session_id,
                auth_header,
                custom_headers,
                max_sse_event_size,
            )
            .await?;
        Ok(named(answer, &asked))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<()> {
        self.0.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Outcome<BoxStream<'static, Result<Sse, SseError>>> {
        self.0.get_stream(uri, session_id, last_event_id, auth_header, custom_headers).await
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
        self.0
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                custom_headers,
                max_sse_event_size,
            )
            .await
    }
}
