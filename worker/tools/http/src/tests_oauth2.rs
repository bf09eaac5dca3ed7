//! Tests of the sign-in, with a real token service and a real service that accepts its tokens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{HeaderMap as Headers, StatusCode};
use axum::routing::{get as on_get, post as on_post};
use tickfleet_model::TenantId;
use tokio::sync::Semaphore;

use super::*;

#[derive(Clone)]
struct TokenService {
    requests: Arc<Mutex<Vec<BTreeMap<String, String>>>>,
    basic: Arc<Mutex<Vec<String>>>,
    /// The responses that are sent instead of a grant, in order.
    refusals: Arc<Mutex<VecDeque<Answer>>>,
    /// A test that withholds these permits delays the sign-in.
    gate: Arc<Semaphore>,
    asked: Arc<Semaphore>,
    revoked: Arc<Mutex<Vec<String>>>,
    challenge: &'static str,
    calls: Arc<Mutex<Vec<String>>>,
    granted: Arc<AtomicUsize>,
}

const INVALID: &str = r#"Bearer realm="x", error="invalid_token""#;

impl TokenService {
    async fn start(challenge: &'static str) -> (Self, String) {
        let identity = Self {
            requests: Arc::default(),
            basic: Arc::default(),
            refusals: Arc::default(),
            gate: Arc::new(Semaphore::new(1_000)),
            asked: Arc::new(Semaphore::new(0)),
            revoked: Arc::default(),
            challenge,
            calls: Arc::default(),
            granted: Arc::default(),
        };
        let granting = identity.clone();
        let serving = identity.clone();
        let grant = on_post(move |headers: Headers, body: String| async move {
            // A form is encoded like a query, so the URL parser can parse it.
            let form = Url::parse(&format!("http://form/?{body}")).unwrap();
            granting.grant(&headers, form.query_pairs().into_owned().collect()).await
        });
        let serve = move |headers: Headers| async move { serving.serve(&headers) };
        let router = Router::new().route("/token", grant).route("/api", on_get(serve.clone()).post(serve));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (identity, address)
    }

    async fn grant(&self, headers: &Headers, form: BTreeMap<String, String>) -> Answer {
        let authorization = headers.get("authorization").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        self.basic.lock().unwrap().push(authorization);
        self.requests.lock().unwrap().push(form);
        self.asked.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        if let Some(refusal) = self.refusals.lock().unwrap().pop_front() {
            return refusal;
        }
        let number = self.granted.fetch_add(1, Ordering::SeqCst) + 1;
        let refresh = format!("refresh-{number}");
        let granted = json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 3600,
            "refresh_token": refresh});
        axum::Json(granted).into_response()
    }

    fn serve(&self, headers: &Headers) -> Answer {
        let token = headers.get("authorization").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        let token = token.trim_start_matches("Bearer ").to_owned();
        self.calls.lock().unwrap().push(token.clone());
        if self.revoked.lock().unwrap().contains(&token) {
            return (StatusCode::UNAUTHORIZED, [("www-authenticate", self.challenge)], "").into_response();
        }
        axum::Json(json!({"seen": token})).into_response()
    }

    fn revoke(&self, token: &str) {
        self.revoked.lock().unwrap().push(token.to_owned());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn sign_ins(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

/// `more` is merged into the tool's `oauth2`.
fn tool(address: &str, effect: Effect, more: Value) -> HttpTool {
    let mut oauth2 = json!({"grant": "client_credentials", "token_url": format!("http://{address}/token"),
        "client_id": "me", "client_secret": "${PASSWORD}", "scope": "read write"});
    oauth2.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let method = if effect == Effect::Once { "POST" } else { "GET" };
    let def = json!({"path": "/api", "oauth2": oauth2, "secrets": {"PASSWORD": {"env": "KEY"}, "OLD": {"env": "BOT"}}});
    tool_for(with(address, method, def), effect).unwrap()
}

async fn seen(tool: &HttpTool) -> String {
    call(tool, json!({})).await.unwrap().json.get().to_owned()
}

#[tokio::test]
async fn a_token_is_requested_once_and_reused() {
    let (identity, address) = TokenService::start(INVALID).await;
    let tool = tool(&address, Effect::Read, json!({"params": {"audience": "crm & co"}}));
    for _ in 0..3 {
        assert_eq!(seen(&tool).await, r#"{"seen":"[REDACTED]"}"#, "an echoed token does not show");
    }
    assert_eq!(identity.calls(), ["token-1"; 3]);
    let request = identity.requests.lock().unwrap().remove(0);
    let field = |name: &str| request.get(name).map(String::as_str);
    assert_eq!((field("grant_type"), field("scope")), (Some("client_credentials"), Some("read write")));
    assert_eq!((field("audience"), field("client_secret")), (Some("crm & co"), None));
    assert_eq!(identity.basic.lock().unwrap().as_slice(), ["Basic bWU6a2V5LXNlY3JldA=="], "me:key-secret");
}

#[tokio::test]
async fn concurrent_calls_share_one_token_request() {
    let (identity, address) = TokenService::start(INVALID).await;
    identity.gate.forget_permits(1_000);
    let tool = Arc::new(tool(&address, Effect::Read, json!({})));
    let start = || {
        let tool = Arc::clone(&tool);
        tokio::spawn(async move { seen(&tool).await })
    };
    let first = start();
    identity.asked.acquire().await.unwrap().forget();
    let others: Vec<_> = (0..20).map(|_| start()).collect();
    tokio::task::yield_now().await;
    // The call that began the sign-in is dropped, but the sign-in continues.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    identity.gate.add_permits(1);
    for other in others {
        assert_eq!(other.await.unwrap(), r#"{"seen":"[REDACTED]"}"#);
    }
    assert_eq!((identity.sign_ins(), identity.calls()), (1, vec!["token-1".to_owned(); 20]));
}

#[tokio::test]
async fn waiting_calls_share_a_sign_in_failure_and_the_next_call_retries() {
    let (identity, address) = TokenService::start(INVALID).await;
    identity.gate.forget_permits(1_000);
    identity.refusals.lock().unwrap().push_back(status(503, &[("retry-after", "4")], "token-9 p&w"));
    let tool = Arc::new(tool(&address, Effect::Once, json!({})));
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let tool = Arc::clone(&tool);
            tokio::spawn(async move { call(&tool, json!({})).await })
        })
        .collect();
    identity.asked.acquire().await.unwrap().forget();
    // The runtime has only one thread, so the other calls began to wait before the first request arrived.
    identity.gate.add_permits(1);
    for failed in calls {
        match failed.await.unwrap() {
            Err(ToolFailure::Transient { message, retry_after, not_executed: true }) => {
                assert_eq!(message, "The tool could not sign in: its token service answered with status 503.");
                assert_eq!(retry_after.unwrap().as_secs(), 4);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((identity.sign_ins(), identity.calls().len()), (1, 0));
    identity.gate.add_permits(1);
    assert!(call(&tool, json!({})).await.is_ok());
}

#[tokio::test]
async fn a_rejected_token_is_replaced_once_and_the_call_is_repeated() {
    let (identity, address) = TokenService::start(INVALID).await;
    for effect in [Effect::Read, Effect::Once] {
        let tool = tool(&address, effect, json!({}));
        seen(&tool).await;
        let first = identity.calls().pop().unwrap();
        identity.revoke(&first);
        seen(&tool).await;
        let calls = identity.calls();
        let [before, refused, again] = calls.last_chunk().unwrap();
        assert!(before == refused && again != refused, "{effect:?}: {calls:?}");
        // The token is rejected again within seconds, so no new token is requested.
        identity.revoke(again);
        let sign_ins = identity.sign_ins();
        assert_eq!(message(call(&tool, json!({})).await), "The service answered with status 401.");
        assert_eq!((identity.sign_ins(), identity.calls().len()), (sign_ins, calls.len() + 1));
    }
}

#[tokio::test]
async fn a_401_without_a_token_error_retries_only_a_read() {
    let (identity, address) = TokenService::start("Basic realm=\"x\"").await;
    identity.revoke("token-1");
    identity.revoke("token-3");
    assert!(call(&tool(&address, Effect::Read, json!({})), json!({})).await.is_ok());
    let once = tool(&address, Effect::Once, json!({}));
    assert_eq!(transient(call(&once, json!({})).await), None);
    assert_eq!(identity.calls(), ["token-1", "token-2", "token-3"]);
}

#[tokio::test]
async fn a_rotated_refresh_token_replaces_the_configured_one() {
    let (identity, address) = TokenService::start(INVALID).await;
    let grant = json!({"grant": "refresh_token", "refresh_token": "${OLD}", "client_auth": "body"});
    let tool = tool(&address, Effect::Read, grant);
    seen(&tool).await;
    identity.revoke("token-1");
    seen(&tool).await;
    let sent = |name: &str| -> Vec<String> {
        identity.requests.lock().unwrap().iter().map(|form| form.get(name).cloned().unwrap_or_default()).collect()
    };
    assert_eq!(sent("refresh_token"), ["12:secret/token", "refresh-1"]);
    assert_eq!(
        (sent("client_id"), sent("client_secret")),
        (vec!["me".to_owned(); 2], vec!["key-secret".to_owned(); 2])
    );
    assert_eq!(identity.basic.lock().unwrap().as_slice(), ["", ""]);
}

#[tokio::test]
async fn a_token_service_rejection_is_final_and_exposes_only_its_code() {
    let (identity, address) = TokenService::start(INVALID).await;
    let refusal = r#"{"error":"invalid_client","error_description":"no client me with key-secret"}"#;
    let odd = [status(400, &[], refusal), status(200, &[], r#"{"token":"x"}"#), status(302, &[("location", "/x")], "")];
    identity.refusals.lock().unwrap().extend(odd);
    let tool = tool(&address, Effect::Once, json!({}));
    let end = "The fleet's operator has to fix it.";
    for why in [
        "its token service answered with status 400 (invalid_client)",
        "its token service granted no token",
        "its token service answered with a redirect",
    ] {
        assert_eq!(message(call(&tool, json!({})).await), format!("The tool could not sign in: {why}. {end}"));
    }
    assert!(identity.calls().is_empty(), "nothing was sent without a token");
}

#[tokio::test]
async fn an_unreachable_token_service_counts_as_not_executed() {
    let (_, address) = Service::start([]).await;
    // The listener was bound and dropped, so nothing listens on this port.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let oauth2 = json!({"grant": "client_credentials", "token_url": format!("http://{closed}/token"), "client_id": "me",
        "client_secret": "${KEY}"});
    let def = json!({"oauth2": oauth2, "secrets": {"KEY": {"env": "KEY"}}, "allow_private": [address, closed]});
    let tool = tool_for(with(&address, "POST", def), Effect::Once).unwrap();
    assert_eq!(transient(call(&tool, json!({})).await), Some(true), "a `once` tool may try again");
}

#[tokio::test]
async fn each_tenant_signs_in_for_its_own_token() {
    let (identity, address) = TokenService::start(INVALID).await;
    let environment = Environment::of([("PW_acme", "pw-of-acme"), ("PW_other", "pw-of-other")]);
    let def = json!({"path": "/api", "secrets": {"PASSWORD": {"env": "PW_{tenant}"}}, "oauth2": {
        "grant": "client_credentials", "token_url": format!("http://{address}/token"), "client_id": "me",
        "client_secret": "${PASSWORD}"}});
    tickfleet_outbound::install_crypto_provider();
    let def = serde_json::from_value(with(&address, "GET", def)).unwrap();
    let tool = HttpTool::new(&def, Effect::Read, &environment, &HttpClients::default());
    let tool = tool.unwrap();
    assert_eq!(tool.missing_secret(), None, "whether a tenant has one is seen when it calls");
    let ask = async |tenant: &str| {
        let context = CallContext { tenant: TenantId::new(tenant).unwrap(), ..context(1) };
        tool.call(&context, &arguments(json!({}))).await
    };
    for tenant in ["acme", "other", "acme"] {
        assert!(ask(tenant).await.is_ok());
    }
    assert_eq!(identity.calls(), ["token-1", "token-2", "token-1"]);
    assert!(matches!(ask("third").await, Err(ToolFailure::NotConfigured { .. })));
}

#[tokio::test]
async fn tools_with_equal_credentials_share_a_token() {
    tickfleet_outbound::install_crypto_provider();
    let (identity, address) = TokenService::start(INVALID).await;
    let clients = HttpClients::default();
    for _ in 0..2 {
        let def = json!({"path": "/api", "secrets": {"PASSWORD": {"env": "KEY"}}, "oauth2": {
            "grant": "client_credentials", "token_url": format!("http://{address}/token"), "client_id": "me",
            "client_secret": "${PASSWORD}"}});
        let def = serde_json::from_value(with(&address, "GET", def)).unwrap();
        let tool = HttpTool::new(&def, Effect::Read, &environment(), &clients).unwrap();
        assert!(call(&tool, json!({})).await.is_ok());
    }
    assert_eq!((identity.sign_ins(), identity.calls()), (1, vec!["token-1".to_owned(); 2]));
}

#[test]
fn a_token_url_at_a_forbidden_address_is_rejected() {
    let oauth2 = json!({"grant": "client_credentials", "token_url": "https://id.example.com/token", "client_id": "me"});
    let load = |oauth2: Value| tool_for(with("127.0.0.1:1", "GET", json!({"oauth2": oauth2})), Effect::Read);
    assert!(load(oauth2.clone()).is_ok());
    let mut forbidden = oauth2;
    forbidden["token_url"] = json!("http://169.254.169.254/token");
    assert!(load(forbidden).unwrap_err().to_string().starts_with("http.oauth2.token_url: "));
}
