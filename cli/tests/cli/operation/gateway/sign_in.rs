//! Tests the sign-in to the console at an identity provider.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::browser::is_skipped;
use super::provider::{CLIENT, NONCE, Provider, Registration, VERIFIER};
use super::{Gateway, HttpResponse, add_key, until};
use crate::support::binary::tickfleet;
use crate::support::packages::Packages;

const RULES: &str = "- {name: operate, claims: {groups: operate}, tenant: '*', role: operator}\n";
const PATH: &str = "/console/sign-in";
const JSON: &str = "content-type: application/json\r\n";
/// Some characters must be encoded in forms and in the authorization header, so the secret contains them.
const SECRET: &str = "s3cret: of/the+console=0123";

struct SignInFleet {
    provider: Provider,
    gateway: Gateway,
    url: String,
    key: String,
    keys: PathBuf,
    rules: PathBuf,
    redis: RedisServer,
    folder: tempfile::TempDir,
}

/// Returns a free address. The gateway must know its public URL before it starts.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

impl SignInFleet {
    async fn start(client: Registration, more: &[&str]) -> Self {
        let redis = RedisServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let [keys, rules] = ["keys.yaml", "rules.yaml"].map(|name| folder.path().join(name));
        fs::write(&rules, RULES).unwrap();
        let key = add_key(&keys, &["--id", "anna", "--tenant", "*", "--role", "operator"]);
        let provider = Provider::start(folder.path()).await;
        let address = free_address();
        let url = format!("http://{address}");
        provider.register(Registration { redirect_uri: format!("{url}/console/"), ..client });
        let tokens = provider.accepted(rules.to_str().unwrap());
        let sign_in = ["--oidc-client-id", CLIENT, "--public-url", &url];
        let arguments = [&tokens[..], &sign_in, more].concat();
        let gateway = Gateway::start_at(&address, &redis.url(), &keys, &arguments);
        Self { provider, gateway, url, key, keys, rules, redis, folder }
    }

    fn redirect_uri(&self) -> String {
        format!("{}/console/", self.url)
    }

    fn body(&self, account: &str) -> Value {
        self.provider.completion(&self.provider.code(account))
    }

    fn complete(&self, body: &Value) -> HttpResponse {
        self.gateway.ask_with("", "POST", PATH, JSON, body)
    }

    fn log(&self) -> String {
        self.gateway.log.lock().unwrap().iter().map(|line| format!("{line}\n")).collect()
    }
}

fn message(answer: &HttpResponse) -> String {
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

fn fails(answer: &HttpResponse, status: u16, reason: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(message(answer).contains(reason), "{reason}: {answer:?}");
    assert!(!answer.body.contains("eyJ"), "a token: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_of_the_provider_becomes_a_token_that_the_gateway_accepts_once() {
    let fleet = SignInFleet::start(Registration::default(), &[]).await;
    let offer = json!({"sign_in": {"issuer": fleet.provider.url, "authorization_endpoint": format!("{}/authorize", fleet.provider.url),
        "client_id": CLIENT, "scope": "openid profile email", "redirect_uri": fleet.redirect_uri()}});
    assert_eq!(fleet.gateway.get("", PATH).json(), offer, "it needs no key");

    let body = fleet.body("otto");
    let answer = fleet.complete(&body);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.head.contains("cache-control: no-store"), "{answer:?}");
    let session = answer.json();
    let token = session["token"].as_str().unwrap();
    let me = fleet.gateway.get(token, "/v1/operate/me").json();
    assert_eq!((&me["id"], &me["expires"]), (&json!("otto@example.com"), &session["expires"]), "{me}");
    assert!(me["expires"].is_string(), "{me}");

    fails(&fleet.complete(&body), 401, "already used");
    let mut other = fleet.body("otto");
    other["verifier"] = json!(VERIFIER.to_uppercase());
    fails(&fleet.complete(&other), 401, "belongs to another sign-in");
    let mut other = fleet.body("otto");
    other["nonce"] = json!(NONCE.to_uppercase());
    fails(&fleet.complete(&other), 401, "(nonce)");

    let said = until_logged(&fleet, "signed in to the console");
    assert!(said.contains("otto@example.com"), "{said}");
}

fn until_logged(fleet: &SignInFleet, text: &str) -> String {
    until(text, || fleet.log(), |log| log.contains(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_that_fails_reports_the_reason_and_returns_no_token() {
    let fleet = SignInFleet::start(Registration::default(), &[]).await;
    for (account, status, reason) in [
        ("late", 401, "it has expired, was already used"),
        ("nonce", 401, "(nonce)"),
        ("audience", 401, "another service"),
        ("issuer", 401, "another issuer"),
        ("nobody", 403, "no rule of the gateway matches"),
        ("refused", 500, "it returned unauthorized_client"),
        ("tokenless", 500, "it returned no ID token"),
        ("broken", 503, "does not respond"),
        ("hanging", 503, "does not respond"),
    ] {
        let answer = fleet.complete(&fleet.body(account));
        fails(&answer, status, reason);
        assert_eq!(answer.head.contains("retry-after: "), status == 503, "{account}: {answer:?}");
    }
    let log = until_logged(&fleet, "unauthorized_client");
    assert!(!log.contains(VERIFIER), "the description of the provider repeats the request: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_exchanges_no_code_that_was_sent_to_another_site() {
    let fleet = SignInFleet::start(Registration::default(), &[]).await;
    let body = fleet.body("otto");
    let with = |name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    for foreign in ["https://evil.example/console/", "/console/", &format!("{}/console", fleet.url), ""] {
        fails(&fleet.complete(&with("redirect_uri", json!(foreign))), 400, "redirect_uri: expected");
    }
    for (body, reason) in [
        (with("verifier", json!("short")), "verifier: expected 43 to 128"),
        (with("verifier", json!(format!("{VERIFIER}\r\n"))), "verifier: expected"),
        (with("verifier", json!("v".repeat(129))), "verifier: expected"),
        (with("nonce", json!("")), "nonce: expected 16 to 128"),
        (with("code", json!("")), "code: expected"),
        (with("code", json!(7)), "invalid type"),
        (with("client_id", json!("other")), "unknown field"),
        (with("code", json!("c".repeat(20_000))), "length limit"),
    ] {
        fails(&fleet.complete(&body), 400, reason);
    }
    for head in ["", "content-type: text/plain\r\n", "content-type: application/jsonx\r\n"] {
        fails(&fleet.gateway.ask_with("", "POST", PATH, head, &body), 400, "Content-Type");
    }
    for origin in ["https://evil.example", "null", &fleet.url.replace("http:", "https:")] {
        let head = format!("{JSON}origin: {origin}\r\n");
        fails(&fleet.gateway.ask_with("", "POST", PATH, &head, &body), 403, &fleet.redirect_uri());
    }
    assert_eq!(fleet.provider.exchanges(), 0, "the provider received none of them");
    let head = format!("content-type: application/json; charset=utf-8\r\norigin: {}\r\n", fleet.url);
    assert_eq!(fleet.gateway.ask_with("", "POST", PATH, &head, &body).status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confidential_client_sends_its_secret_as_the_provider_requires() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, format!("{SECRET}\n")).unwrap();
    let place = format!("file:{}", file.display());
    let given = ["--oidc-client-secret", &place, "--oidc-scope", "groups", "--oidc-scope", "openid"];
    for is_secret_in_body in [false, true] {
        let client = Registration { secret: Some(SECRET), is_secret_in_body, ..Registration::default() };
        let fleet = SignInFleet::start(client.clone(), &given).await;
        let offer = fleet.gateway.get("", PATH);
        assert_eq!(offer.json()["sign_in"]["scope"], "openid groups", "{offer:?}");
        let answer = fleet.complete(&fleet.body("otto"));
        assert_eq!(answer.status, 200, "{answer:?}");
        let redirect_uri = fleet.redirect_uri();
        fleet.provider.register(Registration { secret: Some("another"), redirect_uri, ..client });
        fails(&fleet.complete(&fleet.body("otto")), 500, "invalid_client; fleet operator: check");
        let log = until_logged(&fleet, "invalid_client");
        assert!(!offer.body.contains(SECRET) && !log.contains(SECRET), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn codes_cannot_be_guessed_faster_than_keys() {
    let fleet =
        SignInFleet::start(Registration::default(), &["--auth-failure-rate", "1", "--auth-failure-burst", "3"]).await;
    let guessed = |number: usize| fleet.complete(&fleet.provider.completion(&format!("guess-{number}")));
    // Each guess uses up a part of the rate allowance, which refills by one per second.
    let limited = (0..100).map(guessed).find(|answer| answer.status != 401).unwrap();
    assert_eq!((limited.status, limited.code().as_str()), (429, "too_many_wrong_keys"), "{limited:?}");
    assert!(fleet.provider.exchanges() >= 3, "the provider rejected the first guesses");
    let mut both = (0..100).map(|number| {
        let before = fleet.provider.exchanges();
        let key = fleet.gateway.get(&format!("tfk_wrong-{number}"), "/v1/operate/me").status;
        let answer = guessed(number);
        (key, answer.status, fleet.provider.exchanges() - before)
    });
    assert!(both.any(|found| found == (429, 429, 0)), "the provider receives no codes beyond the limit");
    assert_eq!(fleet.gateway.get(&fleet.key, "/v1/operate/me").status, 200, "a valid key is not limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_a_client_id_offers_no_sign_in() {
    let fleet = SignInFleet::start(Registration::default(), &[]).await;
    let rules = fleet.rules.to_str().unwrap();
    let tokens = fleet.provider.accepted(rules);
    let public = ["--public-url", &fleet.url];
    for more in [Vec::new(), tokens.to_vec(), [&tokens[..], &public].concat()] {
        let gateway = Gateway::start_with(&fleet.redis.url(), &fleet.keys, &more);
        assert_eq!(gateway.get("", PATH).json(), json!({"sign_in": null}), "{more:?}");
        let answer = gateway.ask_with("", "POST", PATH, JSON, &fleet.body("otto"));
        assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{answer:?}");
    }
    let client = ["--oidc-client-id", CLIENT];
    let empty = fleet.folder.path().join("empty");
    fs::write(&empty, "\n").unwrap();
    let empty = format!("file:{}", empty.display());
    for (more, code, reason) in [
        ([&tokens[..], &client].concat(), 2, "--public-url"),
        ([&public[..], &client].concat(), 2, "--oidc-issuer"),
        ([&tokens[..], &public, &["--oidc-scope", "email"]].concat(), 2, "--oidc-client-id"),
        ([&tokens[..], &public, &client, &["--oidc-jwks", "keys.json"]].concat(), 2, "--oidc-jwks"),
        ([&tokens[..], &public, &client, &["--oidc-scope", "a b"]].concat(), 2, "one scope without spaces"),
        ([&tokens[..], &public, &client, &["--oidc-client-secret", SECRET]].concat(), 2, "env:NAME"),
        ([&tokens[..], &public, &client, &["--oidc-client-secret", &empty]].concat(), 1, "the secret is empty"),
        ([&tokens[..], &public, &client, &["--oidc-client-secret", "env:NONE"]].concat(), 1, "NONE is not set"),
    ] {
        let keys = ["--keys", fleet.keys.to_str().unwrap()];
        let url = fleet.redis.url();
        let place = ["--redis-url", &url, "--address", "127.0.0.1:0"];
        let ended = tickfleet(&[&["gateway"], &keys[..], &place, &more].concat()).exits(code);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_signs_in_at_the_provider_in_a_browser_and_all_tabs_share_the_session() {
    if is_skipped() {
        return;
    }
    let Some(packages) = Packages::unless_skipped() else { return };
    let fleet = SignInFleet::start(Registration::default(), &["--oidc-leeway", "1s"]).await;
    let plain = Gateway::start_with(&fleet.redis.url(), &fleet.keys, &[]);
    let key = plain.key(&["--id", "ben", "--tenant", "*", "--role", "operator"]);
    let output = packages
        .node()
        .arg("tests/console/sign-in.mjs")
        .arg(&packages.folder)
        .args([fleet.redirect_uri(), format!("{}/console/", plain.url()), key])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("no findings"), "{said}");
    println!("{said}");
}
