//! Fakes of Telegram, X, the team's calendar and a model on this machine. They fail as the script of the day specifies.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::calendar::{self, CalendarCall, ParsedMessage};
use super::day::{Planned, ServiceResponse};

const REQUEST_BYTES_MAX: usize = 64 * 1024;
pub(super) const BOT_TOKEN: &str = "100200300:stand-in-for-a-bot-token";
pub(super) const X_USER_TOKEN: &str = "stand-in-for-a-user-token";
pub(super) const X_BEARER_TOKEN: &str = "stand-in-for-a-bearer-token";

/// Dropping this value stops the services.
pub(super) struct StandIn {
    pub(super) base_url: String,
    services: Arc<Services>,
    serving: tokio::task::JoinHandle<()>,
}

struct Services {
    /// Maps the text, query or title of a request to the index of the turn.
    turns: HashMap<String, usize>,
    /// Responses to the requests of each turn, in order.
    scripted_responses: Mutex<Vec<VecDeque<ServiceResponse>>>,
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    /// Requests for an action. Handshakes of MCP clients do not count.
    requests: usize,
    pub(super) messages: BTreeMap<String, usize>,
    pub(super) posts: BTreeMap<String, usize>,
    pub(super) meetings: BTreeMap<String, Vec<Value>>,
}

impl Ledger {
    pub(super) fn times(&self, text: &str) -> usize {
        let [sent, posted] = [&self.messages, &self.posts].map(|texts| texts.get(text).copied().unwrap_or(0));
        sent + posted + self.meetings.get(text).map_or(0, Vec::len)
    }

    /// Texts and titles that were sent, posted or booked more than once.
    pub(super) fn twice(&self) -> impl Iterator<Item = &str> {
        let texts = self.messages.iter().chain(&self.posts).map(|(text, times)| (text, *times));
        let effects = texts.chain(self.meetings.iter().map(|(title, meetings)| (title, meetings.len())));
        effects.filter(|(_, times)| *times > 1).map(|(text, _)| text.as_str())
    }

    fn note(&mut self, service_request: &ServiceRequest, answer: ServiceResponse) {
        self.requests += 1;
        if !matches!(answer, ServiceResponse::Ok | ServiceResponse::Cut) {
            return;
        }
        let text = || service_request.text.clone();
        match &service_request.action {
            ServiceAction::Message(_) => *self.messages.entry(text()).or_default() += 1,
            ServiceAction::Post => *self.posts.entry(text()).or_default() += 1,
            ServiceAction::Search | ServiceAction::Tool(_, CalendarCall::List) => {}
            ServiceAction::Tool(_, CalendarCall::Book(meeting)) => {
                self.meetings.entry(text()).or_default().push(meeting.clone())
            }
        }
    }
}

struct ServiceRequest {
    action: ServiceAction,
    /// The text, query or title, which identifies the turn.
    text: String,
}

enum ServiceAction {
    /// The value is the chat.
    Message(Value),
    Post,
    Search,
    /// The values are the request ID for the response, and the call.
    Tool(Value, CalendarCall),
}

#[derive(Debug, Clone, Copy)]
enum Service {
    Telegram,
    XPosts,
    XSearch,
    Calendar,
    Model,
}

impl StandIn {
    pub(super) async fn start(day: &[Planned]) -> Result<Self> {
        let asks = day.iter().enumerate().flat_map(|(turn, p)| p.asks.iter().flatten().map(move |ask| (ask, turn)));
        let services = Arc::new(Services {
            turns: asks.map(|(ask, turn)| (ask.clone(), turn)).collect(),
            scripted_responses: Mutex::new(
                day.iter().map(|planned| planned.stand_in.iter().copied().collect()).collect(),
            ),
            ledger: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("cannot open a port for the stand-in")?;
        let base_url = format!("http://{}", listener.local_addr()?);
        let app = axum::Router::new().fallback(serve).with_state(Arc::clone(&services));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "stand-in stopped unexpectedly");
            }
        });
        Ok(Self { base_url, services, serving })
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.services.ledger.lock().clone()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Services {
    fn next_answer(&self, text: &str) -> ServiceResponse {
        let turn = self.turns.get(text);
        turn.and_then(|turn| self.scripted_responses.lock().get_mut(*turn)?.pop_front()).unwrap_or_default()
    }
}

async fn serve(State(services): State<Arc<Services>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(service) = recognise(parts.uri.path(), &parts.headers) else {
        return (StatusCode::UNAUTHORIZED, axum::Json(json!({"title": "Unauthorized"}))).into_response();
    };
    let body = axum::body::to_bytes(body, REQUEST_BYTES_MAX).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let service_request = match service_request(service, &parts, &body) {
        ControlFlow::Continue(service_request) => service_request,
        ControlFlow::Break(answer) => return answer,
    };
    let answer = services.next_answer(&service_request.text);
    let mut ledger = services.ledger.lock();
    ledger.note(&service_request, answer);
    respond(&service_request, answer, &ledger)
}

/// `Break` if the request contains no action.
fn service_request(service: Service, request: &Parts, body: &Value) -> ControlFlow<Response, ServiceRequest> {
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let (action, text) = match service {
        Service::Telegram => (ServiceAction::Message(body["chat_id"].clone()), text(&body["text"])),
        Service::XPosts => (ServiceAction::Post, text(&body["text"])),
        Service::XSearch => (ServiceAction::Search, search_query(&request.uri).unwrap_or_default()),
        Service::Model => return ControlFlow::Break(axum::Json(completion()).into_response()),
        // The fake supports neither streaming (GET) nor ending a session (DELETE).
        Service::Calendar if request.method != Method::POST => {
            return ControlFlow::Break(StatusCode::METHOD_NOT_ALLOWED.into_response());
        }
        Service::Calendar => match calendar::parse_message(body) {
            ParsedMessage::Notification => return ControlFlow::Break(StatusCode::ACCEPTED.into_response()),
            ParsedMessage::Respond(answer) => return ControlFlow::Break(axum::Json(answer).into_response()),
            ParsedMessage::Call { id, call } => {
                let title =
                    if let CalendarCall::Book(meeting) = &call { text(&meeting["title"]) } else { String::new() };
                (ServiceAction::Tool(id, call), title)
            }
        },
    };
    ControlFlow::Continue(ServiceRequest { action, text })
}

fn completion() -> Value {
    json!({
        "choices": [{"message": {"role": "assistant", "content": "It is drafted."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 3},
    })
}

fn recognise(path: &str, headers: &HeaderMap) -> Option<Service> {
    let bearer = |token: &str| {
        headers.get(header::AUTHORIZATION).is_some_and(|sent| sent.as_bytes() == format!("Bearer {token}").as_bytes())
    };
    match path {
        "/2/tweets" if bearer(X_USER_TOKEN) => Some(Service::XPosts),
        "/2/tweets/search/recent" if bearer(X_BEARER_TOKEN) => Some(Service::XSearch),
        calendar::PATH if bearer(calendar::TOKEN) => Some(Service::Calendar),
        "/v1/chat/completions" => Some(Service::Model),
        _ if path == format!("/bot{BOT_TOKEN}/sendMessage") => Some(Service::Telegram),
        _ => None,
    }
}

fn respond(service_request: &ServiceRequest, answer: ServiceResponse, ledger: &Ledger) -> Response {
    let text = &service_request.text;
    let number = ledger.requests;
    let done = match &service_request.action {
        ServiceAction::Message(chat) => {
            json!({"ok": true, "result": {"message_id": number, "chat": {"id": chat}, "text": text}})
        }
        ServiceAction::Post => json!({"data": {"id": format!("14458805484723{number:05}"), "text": text}}),
        ServiceAction::Search => {
            json!({"data": [{"id": "1445880548472300001", "text": "A post that fits."}], "meta": {"result_count": 1}})
        }
        ServiceAction::Tool(id, CalendarCall::List) => {
            let meetings: Vec<&Value> = ledger.meetings.values().flatten().collect();
            calendar::called(id, &json!({"meetings": meetings}))
        }
        ServiceAction::Tool(id, CalendarCall::Book(meeting)) => calendar::called(id, &json!({"booked": meeting})),
    };
    let refused = |status: StatusCode, code: u16, message: &str| {
        let body = match service_request.action {
            ServiceAction::Message(_) => json!({"ok": false, "error_code": code, "description": message}),
            _ => json!({"status": code, "title": message}),
        };
        (status, axum::Json(body)).into_response()
    };
    match answer {
        ServiceResponse::Ok => axum::Json(done).into_response(),
        ServiceResponse::Cut => cut(&done),
        ServiceResponse::Forbidden => {
            refused(StatusCode::FORBIDDEN, 403, "Forbidden: bot was kicked from the group chat")
        }
        ServiceResponse::Unavailable => refused(StatusCode::SERVICE_UNAVAILABLE, 503, "Service Unavailable"),
        ServiceResponse::SlowDown => {
            let mut response = refused(StatusCode::TOO_MANY_REQUESTS, 429, "Too Many Requests: retry after 1");
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
            response
        }
    }
}

fn cut(done: &Value) -> Response {
    let whole = done.to_string();
    let half = Bytes::copy_from_slice(&whole.as_bytes()[..whole.len() / 2]);
    let lost = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the line went dead");
    let body = Body::from_stream(futures::stream::iter([Ok(half), Err(lost)]));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn search_query(uri: &Uri) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://stand-in{uri}")).ok()?;
    url.query_pairs().find(|(name, _)| name == "query").map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_connection_counts_as_an_effect_and_a_rejection_does_not() {
        let mut ledger = Ledger::default();
        let mut note =
            |action, text: &str, answer| ledger.note(&ServiceRequest { action, text: text.to_owned() }, answer);
        note(ServiceAction::Post, "a", ServiceResponse::Cut);
        note(ServiceAction::Post, "b", ServiceResponse::Unavailable);
        note(ServiceAction::Message(json!(1)), "c", ServiceResponse::Ok);
        note(ServiceAction::Tool(json!(1), CalendarCall::Book(json!({"title": "d"}))), "d", ServiceResponse::Cut);
        assert_eq!(["a", "b", "c", "d"].map(|text| ledger.times(text)), [1, 0, 1, 1]);
    }
}
