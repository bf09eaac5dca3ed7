//! A stand-in for an identity provider, over HTTP. Each account of the sign-in page leads to a different outcome.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::rsa::PublicKeyComponents;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

pub(super) const CLIENT: &str = "console";
/// A browser would generate these values.
pub(super) const VERIFIER: &str = "the-verifier-of-this-test-0123456789-abcdefghij";
pub(super) const NONCE: &str = "the-nonce-of-this-test-0123456789-abcdefghijk";
const STATE: &str = "the-state-of-this-test-0123456789-abcdefghijk";
/// Lifetime of the token of the account `brief`. A browser signs in faster, even on a busy machine.
const BRIEF_S: u64 = 30;
const ACCOUNTS: [&str; 14] = [
    "otto",
    "brief",
    "nobody",
    "deny",
    "swapped",
    "elsewhere",
    "late",
    "broken",
    "hanging",
    "refused",
    "tokenless",
    "nonce",
    "audience",
    "issuer",
];

pub(super) struct Provider {
    shared: Arc<Shared>,
    pub(super) url: String,
    pub(super) serving: JoinHandle<()>,
}

#[derive(Clone, Default)]
pub(super) struct Registration {
    pub(super) redirect_uri: String,
    /// `None` for a public client.
    pub(super) secret: Option<&'static str>,
    pub(super) is_secret_in_body: bool,
}

struct Shared {
    key: RsaKeyPair,
    keys: Value,
    url: String,
    client: Mutex<Registration>,
    codes: Mutex<BTreeMap<String, Fields>>,
    exchanges: AtomicUsize,
}

type Fields = BTreeMap<String, String>;

fn fields(text: &str) -> Fields {
    let url = Url::parse(&format!("http://provider/?{text}")).unwrap();
    url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

fn with_query(url: &str, fields: &[(&str, &str)]) -> String {
    let mut url = Url::parse(url).unwrap();
    url.query_pairs_mut().extend_pairs(fields);
    url.into()
}

impl Provider {
    pub(super) async fn start(folder: &Path) -> Self {
        let file = folder.join("provider.der");
        let arguments = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER", "-out"];
        let made = std::process::Command::new("openssl").args(arguments).arg(&file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let made = std::fs::read(&file).unwrap();
        // Some versions of OpenSSL write the bare key as DER, and others write PKCS #8.
        let key = RsaKeyPair::from_der(&made).or_else(|_| RsaKeyPair::from_pkcs8(&made)).unwrap();
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public());
        let n = coded(&n);
        let e = coded(&e);
        let keys = json!({"keys": [{"kty": "RSA", "n": n, "e": e, "kid": "k1", "alg": "RS256", "use": "sig"}]});
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            key,
            keys,
            url: url.clone(),
            client: Mutex::default(),
            codes: Mutex::default(),
            exchanges: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(metadata))
            .route("/keys", get(async |State(shared): State<Arc<Shared>>| Json(shared.keys.clone())))
            .route("/authorize", get(authorize))
            .route("/login", get(login))
            .route("/token", post(exchange))
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { shared, url, serving }
    }

    /// The options of a gateway that accepts the tokens. Names its holders by their email.
    pub(super) fn accepted<'a>(&'a self, rules: &'a str) -> [&'a str; 8] {
        let [audience, name, email] = ["--oidc-audience", "--oidc-name-claim", "email"];
        ["--oidc-issuer", &self.url, audience, "fleet", "--oidc-rules", rules, name, email]
    }

    pub(super) fn register(&self, client: Registration) {
        *self.shared.client.lock().unwrap() = client;
    }

    pub(super) fn exchanges(&self) -> usize {
        self.shared.exchanges.load(Ordering::SeqCst)
    }

    pub(super) fn token(&self, email: &str, claims: &Value) -> String {
        self.shared.token(email, claims)
    }

    pub(super) fn code(&self, account: &str) -> String {
        let challenge = coded(digest(&SHA256, VERIFIER.as_bytes()).as_ref());
        let redirect_uri = self.shared.client.lock().unwrap().redirect_uri.clone();
        let url = with_query(
            &self.url,
            &[
                ("as", account),
                ("client_id", CLIENT),
                ("redirect_uri", &redirect_uri),
                ("response_type", "code"),
                ("scope", "openid"),
                ("state", STATE),
                ("nonce", NONCE),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
            ],
        );
        let query = url.split_once('?').unwrap().1;
        let answer = Gateway::at(self.url.strip_prefix("http://").unwrap()).get("", &format!("/login?{query}"));
        let returned = answer.head.lines().find_map(|line| line.strip_prefix("location: "));
        let returned = returned.unwrap_or_else(|| panic!("no redirect: {answer:?}"));
        fields(returned.split_once('?').unwrap().1)["code"].clone()
    }

    pub(super) fn completion(&self, code: &str) -> Value {
        let redirect_uri = &self.shared.client.lock().unwrap().redirect_uri;
        json!({"code": code, "verifier": VERIFIER, "nonce": NONCE, "redirect_uri": redirect_uri})
    }
}

impl Shared {
    fn token(&self, email: &str, claims: &Value) -> String {
        let ends = now_s() + 900;
        let mut all = json!({"iss": self.url, "aud": "fleet", "sub": "0017", "email": email, "exp": ends});
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let header = json!({"alg": "RS256", "typ": "at+jwt", "kid": "k1"});
        let message = [header, all].map(|part| coded(part.to_string().as_bytes())).join(".");
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature).unwrap();
        format!("{message}.{}", coded(&signature))
    }

    fn id_token(&self, account: &str, nonce: &str) -> String {
        let mut claims = json!({"aud": CLIENT, "azp": CLIENT, "nonce": nonce, "groups": ["operate"]});
        match account {
            "nobody" => claims["groups"] = json!(["staff"]),
            "nonce" => claims["nonce"] = json!("of-another-sign-in"),
            "audience" => claims["aud"] = json!("mail"),
            "issuer" => claims["iss"] = json!("https://id.example.com"),
            "brief" => claims["exp"] = json!(now_s() + BRIEF_S),
            _ => {}
        }
        self.token(&format!("{account}@example.com"), &claims)
    }

    /// RFC 6749 and RFC 7636 require these fields.
    fn check(&self, query: &Fields) -> Result<(), String> {
        let expected = [
            ("client_id", CLIENT.to_owned()),
            ("redirect_uri", self.client.lock().unwrap().redirect_uri.clone()),
            ("response_type", "code".to_owned()),
            ("code_challenge_method", "S256".to_owned()),
        ];
        for (name, value) in expected {
            if query.get(name) != Some(&value) {
                return Err(format!("{name}: expected {value}: {query:?}"));
            }
        }
        let is_long = |name: &str| query.get(name).is_some_and(|value| value.len() >= 43);
        let has_scope = query.get("scope").is_some_and(|scope| scope.split(' ').any(|one| one == "openid"));
        if !(is_long("code_challenge") && is_long("state") && is_long("nonce") && has_scope) {
            return Err(format!("state, nonce, code_challenge or scope: {query:?}"));
        }
        Ok(())
    }

    /// The client must authenticate by exactly one method.
    fn knows_client(&self, head: &HeaderMap, form: &Fields) -> bool {
        let client = self.client.lock().unwrap().clone();
        let sent = head.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        let has_id = form.get("client_id").is_some_and(|id| id == CLIENT);
        match client.secret {
            None => sent.is_none() && has_id && !form.contains_key("client_secret"),
            Some(secret) if client.is_secret_in_body => {
                sent.is_none() && has_id && form.get("client_secret").is_some_and(|sent| sent == secret)
            }
            Some(secret) => {
                let credentials = sent.as_deref().and_then(credentials_of);
                credentials == Some((CLIENT.to_owned(), secret.to_owned())) && !form.contains_key("client_secret")
            }
        }
    }
}

/// (id, secret). Both are encoded as in a form (RFC 6749, section 2.3.1).
fn credentials_of(header: &str) -> Option<(String, String)> {
    let decoded = String::from_utf8(STANDARD.decode(header.strip_prefix("Basic ")?).ok()?).ok()?;
    let (id, secret) = decoded.split_once(':')?;
    let decoded = |text: &str| fields(&format!("text={text}")).remove("text");
    Some((decoded(id)?, decoded(secret)?))
}

async fn metadata(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let url = &shared.url;
    let method =
        if shared.client.lock().unwrap().is_secret_in_body { "client_secret_post" } else { "client_secret_basic" };
    Json(json!({
        "issuer": url,
        "jwks_uri": format!("{url}/keys"),
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/token"),
        "token_endpoint_auth_methods_supported": [method],
    }))
}

async fn authorize(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    if let Err(problem) = shared.check(&fields(query)) {
        return (StatusCode::BAD_REQUEST, problem).into_response();
    }
    let query = query.replace('&', "&amp;");
    let links = ACCOUNTS.map(|account| format!("<li><a href=\"/login?as={account}&amp;{query}\">{account}</a></li>"));
    let head = "<!doctype html><html lang=en><link rel=icon href=data:,><title>Accounts</title>";
    Html(format!("{head}<h1>Choose an account</h1><ul>{}</ul>", links.concat())).into_response()
}

async fn login(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let query = fields(uri.query().unwrap_or_default());
    if let Err(problem) = shared.check(&query) {
        return (StatusCode::BAD_REQUEST, problem).into_response();
    }
    let account = query["as"].clone();
    let [state, redirect_uri] = ["state", "redirect_uri"].map(|name| query[name].clone());
    if account == "deny" {
        let fields = [("error", "access_denied"), ("error_description", "The user said no"), ("state", &*state)];
        return Redirect::to(&with_query(&redirect_uri, &fields)).into_response();
    }
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).unwrap();
    let code: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    shared.codes.lock().unwrap().insert(code.clone(), query);
    let state = if account == "swapped" { "of-another-browser" } else { &state };
    let issuer = if account == "elsewhere" { "https://id.example.com" } else { &shared.url };
    Redirect::to(&with_query(&redirect_uri, &[("code", &code), ("state", state), ("iss", issuer)])).into_response()
}

async fn exchange(State(shared): State<Arc<Shared>>, head: HeaderMap, body: String) -> Response {
    shared.exchanges.fetch_add(1, Ordering::SeqCst);
    let form = fields(&body);
    let refused = |status: StatusCode, error: &str| {
        // The description repeats the secrets of the request. The gateway must not log the description.
        (status, Json(json!({"error": error, "error_description": body.clone()}))).into_response()
    };
    if !shared.knows_client(&head, &form) {
        return refused(StatusCode::UNAUTHORIZED, "invalid_client");
    }
    if form.get("grant_type").is_none_or(|kind| kind != "authorization_code") {
        return refused(StatusCode::BAD_REQUEST, "unsupported_grant_type");
    }
    let code = form.get("code").and_then(|code| shared.codes.lock().unwrap().remove(code));
    let Some(begun) = code else { return refused(StatusCode::BAD_REQUEST, "invalid_grant") };
    let challenge = coded(digest(&SHA256, form.get("code_verifier").map_or("", String::as_str).as_bytes()).as_ref());
    if begun["code_challenge"] != challenge || form.get("redirect_uri") != begun.get("redirect_uri") {
        return refused(StatusCode::BAD_REQUEST, "invalid_grant");
    }
    let account = begun["as"].as_str();
    match account {
        "late" => refused(StatusCode::BAD_REQUEST, "invalid_grant"),
        "refused" => refused(StatusCode::BAD_REQUEST, "unauthorized_client"),
        "broken" => refused(StatusCode::BAD_GATEWAY, "server_error"),
        "hanging" => std::future::pending().await,
        "tokenless" => Json(json!({"access_token": "opaque", "token_type": "Bearer"})).into_response(),
        _ => {
            let token = shared.id_token(account, &begun["nonce"]);
            Json(json!({"access_token": "opaque", "token_type": "Bearer", "id_token": token})).into_response()
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a token ends by the clock on the wall")]
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

pub(super) fn coded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
