//! A stand-in for Telegram and X on this machine. It keeps a ledger of what it did, and has its bad moments where the
//! day says so.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::day::{Answer, Planned};

/// Bytes of a request that are read.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Tokens that open nothing.
pub(super) const BOT_TOKEN: &str = "100200300:stand-in-for-a-bot-token";
pub(super) const X_USER_TOKEN: &str = "stand-in-for-a-user-token";
pub(super) const X_BEARER_TOKEN: &str = "stand-in-for-a-bearer-token";

/// The running stand-in. Dropping it ends it.
pub(super) struct StandIn {
    pub(super) base_url: String,
    services: Arc<Services>,
    serving: tokio::task::JoinHandle<()>,
}

/// What the services did and will do.
struct Services {
    /// Text or query of a request → the turn that it belongs to.
    turns: HashMap<String, usize>,
    /// What the next requests of each turn are answered.
    moods: Mutex<Vec<VecDeque<Answer>>>,
    ledger: Mutex<Ledger>,
}

/// What the services saw and did.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    pub(super) requests: usize,
    pub(super) searches: usize,
    /// Requests by how they were answered, the good ones left out.
    pub(super) troubles: BTreeMap<Answer, usize>,
    /// Text of a message that was sent → how often.
    pub(super) messages: BTreeMap<String, usize>,
    /// Text of a post that was published → how often.
    pub(super) posts: BTreeMap<String, usize>,
}

impl Ledger {
    /// How often the effect with this text happened, on either service.
    pub(super) fn times(&self, text: &str) -> usize {
        self.messages.get(text).copied().unwrap_or(0) + self.posts.get(text).copied().unwrap_or(0)
    }

    fn note(&mut self, what: What, text: &str, answer: Answer) {
        self.requests += 1;
        if answer != Answer::Ok {
            *self.troubles.entry(answer).or_default() += 1;
        }
        if !matches!(answer, Answer::Ok | Answer::Cut) {
            return;
        }
        match what {
            What::Message => *self.messages.entry(text.to_owned()).or_default() += 1,
            What::Post => *self.posts.entry(text.to_owned()).or_default() += 1,
            What::Search => self.searches += 1,
        }
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Message,
    Post,
    Search,
}

impl StandIn {
    /// Starts it on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port is to be had.
    pub(super) async fn start(day: &[Planned]) -> Result<Self> {
        let asks = day.iter().enumerate().flat_map(|(turn, p)| p.asks.iter().flatten().map(move |ask| (ask, turn)));
        let services = Arc::new(Services {
            turns: asks.map(|(ask, turn)| (ask.clone(), turn)).collect(),
            moods: Mutex::new(day.iter().map(|planned| planned.stand_in.iter().copied().collect()).collect()),
            ledger: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("no port for the stand-in of Telegram and X")?;
        let base_url = format!("http://{}", listener.local_addr()?);
        let app = axum::Router::new().fallback(serve).with_state(Arc::clone(&services));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the stand-in ended");
            }
        });
        Ok(Self { base_url, services, serving })
    }

    /// What it did up to now.
    pub(super) fn ledger(&self) -> Ledger {
        lock(&self.services.ledger).clone()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Nothing that holds these locks can leave them half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services {
    /// What the next request with this text is answered.
    fn next_answer(&self, text: &str) -> Answer {
        let turn = self.turns.get(text);
        turn.and_then(|turn| lock(&self.moods).get_mut(*turn)?.pop_front()).unwrap_or_default()
    }
}

async fn serve(State(services): State<Arc<Services>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(what) = recognise(parts.uri.path(), &parts.headers) else {
        return (StatusCode::UNAUTHORIZED, axum::Json(json!({"title": "Unauthorized"}))).into_response();
    };
    let body = axum::body::to_bytes(body, REQUEST_BYTES_MAX).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = match what {
        What::Message | What::Post => body["text"].as_str().unwrap_or_default().to_owned(),
        What::Search => parameter(parts.uri.query().unwrap_or_default(), "query"),
    };
    let answer = services.next_answer(&text);
    let number = {
        let mut ledger = lock(&services.ledger);
        ledger.note(what, &text, answer);
        ledger.requests
    };
    respond(what, answer, number, &body)
}

/// What a path stands for, if the right token came with it.
fn recognise(path: &str, headers: &HeaderMap) -> Option<What> {
    let bearer = |token: &str| {
        headers.get(header::AUTHORIZATION).is_some_and(|sent| sent.as_bytes() == format!("Bearer {token}").as_bytes())
    };
    match path {
        "/2/tweets" if bearer(X_USER_TOKEN) => Some(What::Post),
        "/2/tweets/search/recent" if bearer(X_BEARER_TOKEN) => Some(What::Search),
        _ if path == format!("/bot{BOT_TOKEN}/sendMessage") => Some(What::Message),
        _ => None,
    }
}

fn respond(what: What, answer: Answer, number: usize, asked: &Value) -> Response {
    let text = &asked["text"];
    let done = match what {
        What::Message => {
            json!({"ok": true, "result": {"message_id": number, "chat": {"id": asked["chat_id"]}, "text": text}})
        }
        What::Post => json!({"data": {"id": format!("14458805484723{number:05}"), "text": text}}),
        What::Search => {
            json!({"data": [{"id": "1445880548472300001", "text": "A post that fits."}], "meta": {"result_count": 1}})
        }
    };
    let refused = |status: StatusCode, code: u16, said: &str| {
        let body = match what {
            What::Message => json!({"ok": false, "error_code": code, "description": said}),
            What::Post | What::Search => json!({"status": code, "title": said}),
        };
        (status, axum::Json(body)).into_response()
    };
    match answer {
        Answer::Ok => axum::Json(done).into_response(),
        Answer::Cut => cut(&done),
        Answer::Forbidden => refused(StatusCode::FORBIDDEN, 403, "Forbidden: bot was kicked from the group chat"),
        Answer::Unavailable => refused(StatusCode::SERVICE_UNAVAILABLE, 503, "Service Unavailable"),
        Answer::SlowDown => {
            let mut response = refused(StatusCode::TOO_MANY_REQUESTS, 429, "Too Many Requests: retry after 1");
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
            response
        }
    }
}

/// An answer whose connection is lost after its first half.
fn cut(done: &Value) -> Response {
    let whole = done.to_string();
    let half = Bytes::copy_from_slice(&whole.as_bytes()[..whole.len() / 2]);
    let lost = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the line went dead");
    Body::from_stream(futures::stream::iter([Ok(half), Err(lost)])).into_response()
}

/// A query parameter's value, decoded; empty where it is absent.
fn parameter(query: &str, name: &str) -> String {
    let value = query.split('&').find_map(|pair| pair.split_once('=').filter(|(n, _)| *n == name));
    decoded(value.map_or("", |(_, value)| value))
}

/// A percent-encoded text as it was.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |digit: Option<u8>| char::from(digit?).to_digit(16);
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => match (hex(rest.next()), hex(rest.next())) {
                (Some(high), Some(low)) => u8::try_from(high * 16 + low).unwrap_or(b'?'),
                _ => b'?',
            },
            other => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_as_they_were_written() {
        assert_eq!(parameter("a=1&query=%22caf%C3%A9%22+x%26y", "query"), "\"café\" x&y");
        assert_eq!(parameter("a=1", "query"), "");
        assert_eq!(decoded("%4"), "?");
    }

    #[test]
    fn a_cut_connection_hides_an_effect_and_a_refusal_hides_none() {
        let mut ledger = Ledger::default();
        ledger.note(What::Post, "a", Answer::Cut);
        ledger.note(What::Post, "b", Answer::Unavailable);
        ledger.note(What::Message, "c", Answer::Ok);
        assert_eq!(["a", "b", "c"].map(|text| ledger.times(text)), [1, 0, 1]);
        assert_eq!((ledger.requests, ledger.troubles.values().sum::<usize>()), (3, 2));
    }
}
