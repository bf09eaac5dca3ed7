//! An issuer that responds over HTTP, with generated keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::tokens::{TokenOptions, Tokens};

const RULES: &str = "
- {name: watch, claims: {groups: fleet-watch}, tenant: '*', role: viewer}
- {name: deciders, claims: {groups: 'approve-*', mfa: true}, tenant_claim: org.id, role: approver, approver_claim: sub}
- {name: services, claims: {azp: shop}, tenant_claim: tenant, agents_claim: agents, verbs: [submit, read]}
";

pub(super) struct Signer {
    pub(super) id: String,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Ed(Ed25519KeyPair),
    P256(EcdsaKeyPair),
}

impl Signer {
    pub(super) fn ed(id: &str) -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { id: id.into(), kind: Kind::Ed(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap()) }
    }

    pub(super) fn p256(id: &str) -> Self {
        let chance = SystemRandom::new();
        let how = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let made = EcdsaKeyPair::generate_pkcs8(how, &chance).unwrap();
        Self { id: id.into(), kind: Kind::P256(EcdsaKeyPair::from_pkcs8(how, made.as_ref(), &chance).unwrap()) }
    }

    pub(super) fn public(&self) -> &[u8] {
        match &self.kind {
            Kind::Ed(key) => key.public_key().as_ref(),
            Kind::P256(key) => key.public_key().as_ref(),
        }
    }

    pub(super) fn jwk(&self) -> Value {
        let public = self.public();
        let id = &self.id;
        match &self.kind {
            Kind::Ed(_) => json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(public), "kid": id, "use": "sig"}),
            Kind::P256(_) => {
                json!({"kty": "EC", "crv": "P-256", "x": base64url(&public[1..33]), "y": base64url(&public[33..]), "kid": id, "alg": "ES256"})
            }
        }
    }

    pub(super) fn header(&self) -> Value {
        let alg = if matches!(self.kind, Kind::Ed(_)) { "EdDSA" } else { "ES256" };
        json!({"alg": alg, "typ": "JWT", "kid": self.id})
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_with(&self.header(), claims)
    }

    pub(super) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message =
            format!("{}.{}", base64url(header.to_string().as_bytes()), base64url(claims.to_string().as_bytes()));
        let signature = match &self.kind {
            Kind::Ed(key) => key.sign(message.as_bytes()).as_ref().to_vec(),
            Kind::P256(key) => key.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec(),
        };
        format!("{message}.{}", base64url(&signature))
    }
}

pub(super) fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) struct IssuerResponses {
    pub(super) name: Mutex<String>,
    pub(super) keys: Mutex<Value>,
    pub(super) mode: Mutex<Mode>,
    pub(super) requests: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Working,
    Broken,
    Hanging,
    OtherHost,
    NoEndpoints,
    /// The endpoint has no TLS, so an attacker on the network could replace it.
    UntrustedEndpoint,
}

pub(super) struct TestIssuer {
    pub(super) url: String,
    pub(super) responses: Arc<IssuerResponses>,
    pub(super) folder: tempfile::TempDir,
    pub(super) stop: CancellationToken,
}

impl Drop for TestIssuer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl TestIssuer {
    pub(super) async fn start(keys: &[&Signer]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/realms/acme", listener.local_addr().unwrap());
        let responses = Arc::new(IssuerResponses {
            name: Mutex::new(url.clone()),
            keys: Mutex::new(set(keys)),
            mode: Mutex::new(Mode::Working),
            requests: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/realms/acme/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys_of))
            .with_state((Arc::clone(&responses), url.trim_end_matches("/realms/acme").to_owned()));
        drop(tokio::spawn(async { axum::serve(listener, router).await }));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        Self { url, responses, folder, stop: CancellationToken::new() }
    }

    pub(super) fn options(&self) -> TokenOptions {
        TokenOptions {
            issuer: self.url.clone(),
            jwks: None,
            audience: vec!["fleet".into()],
            algorithms: TokenOptions::ALGORITHMS.into(),
            name_claim: "sub".into(),
            leeway: TokenOptions::LEEWAY,
            rules: self.folder.path().join("rules.yaml"),
            // No test reads keys twice unless the test changes this interval.
            keys_rest: Duration::from_secs(3_600),
            answer_max: Duration::from_secs(60),
            sign_in: None,
        }
    }

    pub(super) fn tokens(&self, options: TokenOptions) -> Tokens {
        let tokens = Tokens::open(options).unwrap();
        drop(tokio::spawn(tokens.clone().follow(self.stop.clone())));
        tokens
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        *self.responses.mode.lock() = mode;
    }

    pub(super) fn has(&self, keys: &[&Signer]) {
        *self.responses.keys.lock() = set(keys);
    }

    pub(super) fn requests(&self) -> usize {
        self.responses.requests.load(Ordering::SeqCst)
    }

    pub(super) fn claims(&self) -> Value {
        let now = i64::try_from(jsonwebtoken::get_current_timestamp()).unwrap();
        json!({
            "iss": self.url, "aud": ["other", "fleet"], "sub": "shop-7", "exp": now + 300, "nbf": now - 5,
            "azp": "shop", "tenant": "demo", "agents": ["kelly", "fran"],
        })
    }

    /// Null removes a claim.
    pub(super) fn with(&self, changes: &Value) -> Value {
        let mut claims = self.claims();
        for (name, value) in changes.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        claims
    }
}

pub(super) fn set(keys: &[&Signer]) -> Value {
    json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()})
}

type IssuerState = State<(Arc<IssuerResponses>, String)>;

pub(super) async fn discovery(State((responses, base)): IssuerState) -> Response {
    let mode = *responses.mode.lock();
    let mut metadata = json!({
        "issuer": &*responses.name.lock(),
        "jwks_uri": format!("{base}/keys"),
        "authorization_endpoint": format!("{base}/authorize"),
        "token_endpoint": format!("{base}/token"),
    });
    match mode {
        Mode::Hanging => return std::future::pending().await,
        Mode::Broken => {
            responses.requests.fetch_add(1, Ordering::SeqCst);
            return StatusCode::BAD_GATEWAY.into_response();
        }
        Mode::OtherHost => metadata["jwks_uri"] = json!("http://keys.example/k"),
        Mode::NoEndpoints => _ = metadata.as_object_mut().unwrap().remove("token_endpoint"),
        Mode::UntrustedEndpoint => metadata["token_endpoint"] = json!("http://id.example/token"),
        Mode::Working => {}
    }
    Json(metadata).into_response()
}

pub(super) async fn keys_of(State((responses, _)): IssuerState) -> Json<Value> {
    responses.requests.fetch_add(1, Ordering::SeqCst);
    Json(responses.keys.lock().clone())
}
