//! A strict stub of X, of Telegram, and of a media host, according to docs.x.com and core.telegram.org/bots/api.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Prefixes of tokens. Each sign-in appends the next number.
pub const ACCESS: &str = "access-token-1f0e3dad-";
pub const REFRESH: &str = "refresh-token-98f13708-";
pub const CLIENT: (&str, &str) = ("client-id", "client-secret-3c59dc04");
pub const BEARER: &str = "bearer-token-c9f0f895";
pub const BOT_TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

pub enum FaultyResponse {
    Status(u16, Vec<(&'static str, String)>, String),
    Stream(Vec<u8>),
    Cut,
    /// The request takes effect, but gets no response. The channel then receives a message.
    Silence(mpsc::UnboundedSender<()>),
}

impl FaultyResponse {
    pub fn status(status: u16, body: Value) -> Self {
        Self::Status(status, Vec::new(), body.to_string())
    }
}

#[derive(Default)]
pub struct Upload {
    pub mime: String,
    pub category: String,
    pub total: usize,
    pub data: Vec<u8>,
    segments: usize,
    finished: bool,
    looks_left: u32,
}

#[derive(Default)]
pub struct ReceivedRequests {
    /// `METHOD /path?query`.
    pub asked: Vec<String>,
    pub posts: Vec<Value>,
    pub messages: Vec<Value>,
    pub uploads: BTreeMap<String, Upload>,
    pub granted: u64,
    /// Uses of an outdated refresh token. X then revokes the whole sign-in.
    pub reused: u64,
    pub revoked: Option<String>,
    pub troubles: HashMap<&'static str, VecDeque<FaultyResponse>>,
    /// Path → content type and bytes.
    pub media: HashMap<&'static str, (&'static str, Vec<u8>)>,
}

#[derive(Clone, Default)]
pub struct StandIn {
    pub seen: Arc<Mutex<ReceivedRequests>>,
    pub base: String,
}

impl StandIn {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let this = Self { base, ..Self::default() };
        let app = axum::Router::new().fallback(serve).with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        this
    }

    /// Only the next request to this path fails.
    pub fn trouble(&self, path: &'static str, trouble: FaultyResponse) {
        self.seen.lock().unwrap().troubles.entry(path).or_default().push_back(trouble);
    }

    pub fn media(&self, path: &'static str, kind: &'static str, data: Vec<u8>) -> String {
        self.seen.lock().unwrap().media.insert(path, (kind, data));
        format!("{}{path}", self.base)
    }

    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap().asked)
    }

    pub fn posts(&self) -> usize {
        self.seen.lock().unwrap().posts.len()
    }

    fn answer(&self, asked: &ReceivedRequest) -> Response {
        match asked.uri.path() {
            "/2/oauth2/token" => self.sign_in(asked),
            path if path.starts_with("/bot") => self.telegram(asked),
            path if path.starts_with("/2/") && !self.may(asked, path == "/2/tweets/search/recent") => {
                problem(401, "Unauthorized")
            }
            "/2/tweets" => self.post(asked),
            "/2/tweets/search/recent" => search(asked),
            path if path.starts_with("/2/media/upload") => self.upload(asked),
            path => match self.seen.lock().unwrap().media.get(path) {
                Some((kind, data)) => ([("content-type", *kind)], data.clone()).into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            },
        }
    }

    fn may(&self, asked: &ReceivedRequest, reads: bool) -> bool {
        let seen = self.seen.lock().unwrap();
        let user = format!("Bearer {ACCESS}{}", seen.granted);
        let is_revoked = seen.revoked.as_deref() == user.strip_prefix("Bearer ");
        (asked.header("authorization") == user && !is_revoked)
            || (reads && asked.header("authorization") == format!("Bearer {BEARER}"))
    }

    fn sign_in(&self, asked: &ReceivedRequest) -> Response {
        use base64::Engine as _;
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{}:{}", CLIENT.0, CLIENT.1));
        let is_form = asked.header("content-type") == "application/x-www-form-urlencoded";
        if asked.method != "POST" || !is_form || asked.header("authorization") != format!("Basic {pair}") {
            return (StatusCode::UNAUTHORIZED, axum::Json(json!({"error": "invalid_client"}))).into_response();
        }
        let mut seen = self.seen.lock().unwrap();
        let form = String::from_utf8(asked.body.to_vec()).unwrap();
        let wanted = format!("grant_type=refresh_token&refresh_token={REFRESH}{}", seen.granted);
        if form != wanted {
            seen.reused += 1;
            return (StatusCode::BAD_REQUEST, axum::Json(json!({"error": "invalid_request"}))).into_response();
        }
        seen.granted += 1;
        let access = format!("{ACCESS}{}", seen.granted);
        let refresh = format!("{REFRESH}{}", seen.granted);
        let granted = json!({"token_type": "bearer", "expires_in": 7200, "access_token": access,
            "refresh_token": refresh, "scope": "tweet.read tweet.write users.read media.write offline.access"});
        axum::Json(granted).into_response()
    }

    fn post(&self, asked: &ReceivedRequest) -> Response {
        let mut seen = self.seen.lock().unwrap();
        let Some(post) = asked.json(&["text", "media"]) else { return problem(400, "Invalid request") };
        let ids: Vec<&str> =
            post["media"]["media_ids"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let text = post["text"].as_str().unwrap_or_default();
        let is_whole =
            |id: &&str| seen.uploads.get(*id).is_some_and(|upload| upload.finished && upload.looks_left == 0);
        if text.is_empty() || text.chars().count() > 280 || ids.len() > 4 || !ids.iter().all(is_whole) {
            return problem(400, "One or more parameters to your request was invalid.");
        }
        if seen.posts.iter().any(|other| other["text"] == text) {
            return problem(403, "You are not allowed to create a Tweet with duplicate content.");
        }
        seen.posts.push(post.clone());
        let id = format!("14458805484723280{:02}", seen.posts.len());
        (StatusCode::CREATED, axum::Json(json!({"data": {"id": id, "text": text, "edit_history_tweet_ids": [id]}})))
            .into_response()
    }

    fn upload(&self, asked: &ReceivedRequest) -> Response {
        let mut seen = self.seen.lock().unwrap();
        let id = format!("188002810602051{:04}", seen.uploads.len() + 1);
        let parts: Vec<&str> = asked.uri.path().split('/').skip(4).collect();
        match (asked.method.as_str(), parts.as_slice()) {
            ("POST", []) => {
                let Some(form) = asked.form() else { return problem(400, "no form") };
                let text = |name: &str| form.get(name).map(|part| String::from_utf8_lossy(part).into_owned());
                let (Some(data), Some(category)) = (form.get("media"), text("media_category")) else {
                    return problem(400, "media and media_category are required");
                };
                if category != "tweet_image" || data.len() > 5 << 20 {
                    return problem(400, "not an image");
                }
                let mime = text("media_type").unwrap_or_default();
                let total = data.len();
                let data = data.clone();
                seen.uploads
                    .insert(id.clone(), Upload { mime, category, total, data, finished: true, ..Upload::default() });
                axum::Json(json!({"data": {"id": id, "media_key": format!("3_{id}"), "expires_after_secs": 86400}}))
                    .into_response()
            }
            ("POST", ["initialize"]) => {
                let Some(begin) = asked.json(&["media_type", "media_category", "total_bytes"]) else {
                    return problem(400, "Invalid request");
                };
                let (mime, category) =
                    (begin["media_type"].as_str().unwrap(), begin["media_category"].as_str().unwrap());
                let total = usize::try_from(begin["total_bytes"].as_u64().unwrap()).unwrap();
                let upload =
                    Upload { mime: mime.into(), category: category.into(), total, looks_left: 2, ..Upload::default() };
                seen.uploads.insert(id.clone(), upload);
                axum::Json(json!({"data": {"id": id, "expires_after_secs": 86400}})).into_response()
            }
            ("POST", [id, "append"]) => {
                let form = asked.form();
                let upload = seen.uploads.get_mut(*id);
                let (Some(form), Some(upload)) = (form, upload) else { return problem(404, "no such upload") };
                let piece = &form["media"];
                let is_next = form["segment_index"] == upload.segments.to_string().as_bytes();
                if !is_next || piece.is_empty() || piece.len() > 5_000_000 || upload.finished {
                    return problem(400, "Invalid segment");
                }
                upload.segments += 1;
                upload.data.extend_from_slice(piece);
                axum::Json(json!({"data": {"expires_at": 1}})).into_response()
            }
            ("POST", [id, "finalize"]) => match seen.uploads.get_mut(*id) {
                Some(upload) if upload.data.len() == upload.total => {
                    upload.finished = true;
                    axum::Json(processing(id, "pending")).into_response()
                }
                _ => problem(400, "Invalid or incomplete upload"),
            },
            ("GET", []) => looked(asked, &mut seen),
            _ => problem(404, "no such endpoint"),
        }
    }

    fn telegram(&self, asked: &ReceivedRequest) -> Response {
        let refuse = |status: u16, why: &str| {
            let body = json!({"ok": false, "error_code": status, "description": why});
            (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
        };
        if asked.uri.path() != format!("/bot{BOT_TOKEN}/sendMessage") {
            return refuse(401, "Unauthorized");
        }
        let Some(message) = asked.json(&["chat_id", "text"]) else { return refuse(400, "Bad Request: can't parse") };
        let chat = &message["chat_id"];
        let text = message["text"].as_str().unwrap_or_default();
        let is_chat =
            chat.as_i64().is_some() || chat.as_str().is_some_and(|c| c.starts_with('@') || c.parse::<i64>().is_ok());
        match () {
            () if !is_chat || chat == "@nobody" => refuse(400, "Bad Request: chat not found"),
            () if text.is_empty() => refuse(400, "Bad Request: message text is empty"),
            () if text.chars().count() > 4096 => refuse(400, "Bad Request: message is too long"),
            () if chat == "@kicked" => refuse(403, "Forbidden: bot was kicked from the group chat"),
            () => {
                self.seen.lock().unwrap().messages.push(message.clone());
                let sent = json!({"message_id": 77, "date": 1, "chat": {"id": chat, "type": "group"}, "text": text});
                axum::Json(json!({"ok": true, "result": sent})).into_response()
            }
        }
    }
}

fn looked(asked: &ReceivedRequest, seen: &mut ReceivedRequests) -> Response {
    let id = asked.uri.query().and_then(|q| q.strip_prefix("command=STATUS&media_id=")).unwrap_or_default();
    let Some(upload) = seen.uploads.get_mut(id) else { return problem(404, "no such upload") };
    upload.looks_left = upload.looks_left.saturating_sub(1);
    let state = if upload.looks_left == 0 { "succeeded" } else { "in_progress" };
    axum::Json(processing(id, state)).into_response()
}

fn processing(id: &str, state: &str) -> Value {
    json!({"data": {"id": id, "processing_info": {"state": state, "check_after_secs": 0}}})
}

fn search(asked: &ReceivedRequest) -> Response {
    let url = format!("http://x{}", asked.uri);
    let pairs: HashMap<String, String> = url
        .split_once('?')
        .map_or("", |(_, query)| query)
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let known = ["query", "max_results", "tweet.fields", "expansions", "user.fields"];
    let count = pairs.get("max_results").map_or(Ok(10), |text| text.parse::<u32>());
    if !pairs.keys().all(|name| known.contains(&name.as_str())) || !matches!(count, Ok(10..=100)) {
        return problem(400, "One or more parameters to your request was invalid.");
    }
    if pairs["query"].contains("nothing") {
        return axum::Json(json!({"meta": {"result_count": 0}})).into_response();
    }
    let users = match pairs.get("expansions").map(String::as_str) {
        Some("author_id") => json!([{"id": "7", "name": "Ada", "username": "ada"}]),
        _ => json!([]),
    };
    let metrics = json!({"like_count": 3, "retweet_count": 1, "reply_count": 0, "quote_count": 0});
    let post = |id: &str, author: &str| {
        json!({"id": id, "text": "found", "author_id": author, "lang": "en",
            "created_at": "2026-11-24T12:00:00.000Z", "public_metrics": metrics})
    };
    let meta = json!({"result_count": 2, "newest_id": "2", "oldest_id": "1", "next_token": "b26v89c19zqg8o3f"});
    axum::Json(json!({"data": [post("2", "7"), post("1", "9")], "includes": {"users": users}, "meta": meta}))
        .into_response()
}

fn problem(status: u16, detail: &str) -> Response {
    let body = json!({"title": "Refused", "detail": detail, "type": "about:blank", "status": status});
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

struct ReceivedRequest {
    method: String,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl ReceivedRequest {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// `None` if the request is not a POST of JSON, or if the JSON has other fields than `fields`.
    fn json(&self, fields: &[&str]) -> Option<Value> {
        let is_json = self.method == "POST" && self.header("content-type") == "application/json";
        let body: Value = serde_json::from_slice(&self.body).ok().filter(|_| is_json)?;
        body.as_object()?.keys().all(|name| fields.contains(&name.as_str())).then_some(body)
    }

    fn form(&self) -> Option<HashMap<String, Vec<u8>>> {
        let boundary = self.header("content-type").strip_prefix("multipart/form-data; boundary=")?;
        let line = format!("--{boundary}\r\n").into_bytes();
        let find = |data: &[u8], what: &[u8]| data.windows(what.len()).position(|window| window == what);
        let mut rest = self.body.strip_prefix(line.as_slice())?;
        let separator = format!("\r\n--{boundary}").into_bytes();
        let mut parts = HashMap::new();
        loop {
            let head = find(rest, b"\r\n\r\n")?;
            let name = String::from_utf8_lossy(&rest[..head]).split_once("name=\"")?.1.split_once('"')?.0.to_owned();
            rest = &rest[head + 4..];
            let end = find(rest, &separator)?;
            parts.insert(name, rest[..end].to_vec());
            rest = &rest[end + separator.len()..];
            if rest == b"--\r\n" {
                return Some(parts);
            }
            rest = rest.strip_prefix(b"\r\n")?;
        }
    }
}

async fn serve(State(this): State<StandIn>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 8 << 20).await.unwrap();
    let asked = ReceivedRequest { method: parts.method.to_string(), uri: parts.uri, headers: parts.headers, body };
    let trouble = {
        let mut seen = this.seen.lock().unwrap();
        seen.asked.push(format!("{} {}", asked.method, asked.uri));
        seen.troubles.get_mut(asked.uri.path()).and_then(VecDeque::pop_front)
    };
    match trouble {
        None => this.answer(&asked),
        Some(FaultyResponse::Status(status, headers, body)) => {
            let mut answer = Response::builder().status(status);
            for (name, value) in headers {
                answer = answer.header(name, value);
            }
            answer.body(Body::from(body)).unwrap()
        }
        Some(FaultyResponse::Stream(data)) => {
            let pieces: Vec<_> =
                data.chunks(100_000).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece))).collect();
            Response::builder().body(Body::from_stream(futures::stream::iter(pieces))).unwrap()
        }
        Some(FaultyResponse::Cut) => {
            let done = this.answer(&asked).status();
            let pieces =
                futures::stream::iter([Ok(Bytes::from_static(b"{\"data\"")), Err(std::io::Error::other("cut"))]);
            Response::builder().status(done).body(Body::from_stream(pieces)).unwrap()
        }
        Some(FaultyResponse::Silence(reported)) => {
            drop(this.answer(&asked));
            reported.send(()).unwrap();
            std::future::pending().await
        }
    }
}
