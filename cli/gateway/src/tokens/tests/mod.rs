//! Tokens against an issuer that responds over HTTP, with generated keys and real signatures.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod world;

use axum::response::IntoResponse as _;
use serde_json::json;

use super::*;
use crate::verbs::{TenantScope, Verb};
use world::{Mode, Signer, TestIssuer, base64url};

/// Waits for the idle phase, in which a token with an unknown key triggers a read. The runtime has one thread, so an
/// earlier request has already ended the previous idle phase.
async fn idle(tokens: &Tokens) {
    let mut key_reads = tokens.inner.key_read.subscribe();
    key_reads.wait_for(|key_read| key_read.phase == KeyReadPhase::Idle).await.unwrap();
}

async fn refusal(tokens: &Tokens, token: &str) -> (u16, String) {
    let problem = tokens.holder(token).await.expect_err("it was taken");
    let message = problem.summary().0.to_owned();
    (problem.into_response().status().as_u16(), message)
}

#[tokio::test]
async fn a_token_gets_the_grant_of_the_first_matching_rule() {
    let ed = Signer::ed("a");
    let p256 = Signer::p256("b");
    let world = TestIssuer::start(&[&ed, &p256]).await;
    let tokens = world.tokens(world.options());
    let grant = tokens.holder(&ed.token(&world.claims())).await.unwrap();
    assert_eq!((grant.id.as_str(), grant.tenant.one().unwrap().as_str()), ("shop-7", "demo"));
    assert_eq!((grant.agents, grant.verbs), (vec!["kelly".into(), "fran".into()], [Verb::Submit, Verb::Read].into()));
    assert!(grant.expires.is_some(), "its end is the token's");
    let watch = world.with(&json!({"groups": ["staff", "fleet-watch"]}));
    let grant = tokens.holder(&p256.token(&watch)).await.unwrap();
    assert_eq!((grant.tenant, grant.verbs), (TenantScope::All, [Verb::View].into()));
    let decides = world.with(&json!({"groups": "approve-eu", "mfa": true, "org": {"id": "acme"}, "aud": "fleet"}));
    let grant = tokens.holder(&p256.token(&decides)).await.unwrap();
    assert_eq!((grant.approver.as_deref(), grant.tenant.one().unwrap().as_str()), (Some("shop-7"), "acme"));
    for (change, why) in [
        (json!({"azp": "till"}), "no rule"),
        (json!({"azp": null}), "no rule"),
        (json!({"groups": "approve-eu", "mfa": "true", "azp": "x"}), "no rule"),
        (json!({"tenant": null}), "\"tenant\": expected a text"),
        (json!({"tenant": "*"}), "services"),
        (json!({"agents": []}), "expected an agent"),
        (json!({"agents": ["kelly", "fr*"]}), "expected an agent"),
        (json!({"agents": "*"}), "expected an agent"),
        (json!({"sub": "shop\n7"}), "letters, digits and punctuation"),
        (json!({"sub": "x".repeat(400)}), "letters, digits and punctuation"),
    ] {
        let (status, message) = refusal(&tokens, &ed.token(&world.with(&change))).await;
        assert!(status == 403 && message.contains(why), "{change}: {status} {message}");
    }
    assert_eq!(world.requests(), 1, "the keys were read once for all");
}

#[tokio::test]
async fn a_malformed_or_badly_signed_token_is_rejected() {
    let (ed, p256, stranger) = (Signer::ed("a"), Signer::p256("b"), Signer::ed("a"));
    let world = TestIssuer::start(&[&ed, &p256]).await;
    let tokens = world.tokens(world.options());
    let good = ed.token(&world.claims());
    let header = |changes: Value| {
        let mut header = ed.header();
        header.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ed.token_with(&header, &world.claims())
    };
    let (message, signature) = good.rsplit_once('.').unwrap();
    let none = format!("{}.{}.", base64url(br#"{"alg":"none"}"#), message.split('.').nth(1).unwrap());
    // A forged token: the public key is the shared secret of HS256.
    let confused = json!({"alg": "HS256", "kid": "a"}).to_string();
    let confused = format!("{}.{}", base64url(confused.as_bytes()), message.split('.').nth(1).unwrap());
    let mac = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, ed.public()), confused.as_bytes());
    let other_claims = base64url(world.with(&json!({"tenant": "acme"})).to_string().as_bytes());
    let stitched = format!("{}.{other_claims}.{signature}", message.split('.').next().unwrap());
    for (token, why) in [
        (none, "nor a signed token"),
        (format!("{confused}.{}", base64url(mac.as_ref())), "signed with HS256"),
        (header(json!({"alg": "RS256"})), "another algorithm"),
        (header(json!({"alg": "RS512"})), "signed with RS512"),
        (header(json!({"kid": "b"})), "another algorithm"),
        (header(json!({"crit": ["b64"], "b64": false})), "critical"),
        (header(json!({"typ": "logout+jwt"})), "does not authorize requests"),
        (stranger.token(&world.claims()), "its signature"),
        (stitched, "its signature"),
        (format!("{message}."), "its signature"),
        ("a.b.c".into(), "nor a signed token"),
        ("...".into(), "nor a signed token"),
        (format!("{}.x.x", "a".repeat(100_000)), "at most 16384 bytes"),
    ] {
        let (status, said) = refusal(&tokens, &token).await;
        assert!(status == 401 && said.contains(why), "{status} {said}, and not {why}: {token}");
    }
    assert_eq!(world.requests(), 1, "nothing of that asks the issuer");
}

#[tokio::test]
async fn a_token_with_a_wrong_time_audience_or_issuer_is_rejected() {
    let ed = Signer::ed("a");
    let world = TestIssuer::start(&[&ed]).await;
    let tokens = world.tokens(world.options());
    let now = i64::try_from(jsonwebtoken::get_current_timestamp()).unwrap();
    for (change, why) in [
        (json!({"exp": now - 90}), "it has expired"),
        (json!({"nbf": now + 600}), "not valid yet"),
        (json!({"exp": "soon"}), "\"exp\""),
        (json!({"exp": -1}), "\"exp\""),
        (json!({"exp": null}), "\"exp\""),
        (json!({"sub": null}), "\"sub\""),
        (json!({"aud": null}), "\"aud\""),
        (json!({"iss": null}), "\"iss\""),
        (json!({"aud": "fleet-2"}), "another service"),
        (json!({"iss": "https://id.example.com"}), "another issuer"),
        (json!({"iss": [world.url, "https://id.example.com"]}), "another issuer"),
        (json!({"cnf": {"jkt": "x"}}), "bound to the sender"),
    ] {
        let (status, said) = refusal(&tokens, &ed.token(&world.with(&change))).await;
        assert!(status == 401 && said.contains(why), "{change}: {status} {said}");
    }
    for change in
        [json!({"exp": now - 10}), json!({"nbf": now + 10}), json!({"exp": 1e17}), json!({"exp": (now as f64) + 60.5})]
    {
        assert!(tokens.holder(&ed.token(&world.with(&change))).await.is_ok(), "{change}");
    }
    assert_eq!(world.requests(), 1, "nothing of that asks the issuer");
}

#[tokio::test]
async fn a_rotated_key_is_fetched_and_unknown_key_ids_cause_no_requests() {
    let old = Signer::ed("old");
    let new = Signer::ed("new");
    let world = TestIssuer::start(&[&old]).await;
    let tokens = world.tokens(TokenOptions { keys_rest: Duration::ZERO, ..world.options() });
    assert!(tokens.holder(&old.token(&world.claims())).await.is_ok());
    idle(&tokens).await;
    world.has(&[&new]);
    assert!(tokens.holder(&new.token(&world.claims())).await.is_ok(), "a key that was rotated in is taken at once");
    assert_eq!(refusal(&tokens, &old.token(&world.claims())).await.0, 401, "and the one that it replaced is not");

    let cooling_down = world.tokens(world.options());
    assert!(cooling_down.holder(&new.token(&world.claims())).await.is_ok());
    let before = world.requests();
    for n in 0..1_000 {
        let unknown = Signer { id: format!("k{n}"), ..Signer::ed("") }.token(&world.claims());
        let (status, said) = refusal(&cooling_down, &unknown).await;
        assert!(status == 401 && said.contains("unknown key of its issuer"), "{status} {said}");
    }
    assert_eq!(world.requests(), before, "whatever tokens name");
    assert!(cooling_down.holder(&new.token(&world.claims())).await.is_ok());
}

#[tokio::test]
async fn an_issuer_outage_does_not_affect_tokens_with_cached_keys() {
    let known = Signer::ed("known");
    let new = Signer::ed("new");
    let world = TestIssuer::start(&[&known]).await;
    let quick =
        || TokenOptions { keys_rest: Duration::ZERO, answer_max: Duration::from_millis(300), ..world.options() };
    let tokens = world.tokens(TokenOptions { answer_max: Duration::from_secs(60), ..quick() });
    assert!(tokens.holder(&known.token(&world.claims())).await.is_ok());
    idle(&tokens).await;
    world.has(&[&new]);
    world.set_mode(Mode::Broken);
    let (status, said) = refusal(&tokens, &new.token(&world.claims())).await;
    assert!(
        status == 503 && said.contains("keys are unavailable"),
        "what cannot be known is not told as wrong: {status} {said}"
    );
    assert!(tokens.holder(&known.token(&world.claims())).await.is_ok(), "what was read stays in force");
    world.set_mode(Mode::Hanging);
    let late = world.tokens(quick());
    assert_eq!(refusal(&late, &new.token(&world.claims())).await.0, 503);
    world.set_mode(Mode::Working);
    for look in 0.. {
        if late.holder(&new.token(&world.claims())).await.is_ok() {
            break;
        }
        assert!(look < 6_000, "keys come when the issuer answers");
        // Each attempt requests the keys; the sleep gives the issuer time to respond.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    idle(&tokens).await;
    assert!(tokens.holder(&new.token(&world.claims())).await.is_ok());
    for mode in [Mode::OtherHost, Mode::Working] {
        world.set_mode(mode);
        *world.responses.name.lock() =
            if mode == Mode::Working { "https://other.example".into() } else { world.url.clone() };
        assert_eq!(refusal(&world.tokens(world.options()), &new.token(&world.claims())).await.0, 503);
    }
}

#[tokio::test]
async fn sign_in_needs_the_issuers_endpoints_and_tokens_do_not() {
    let key = Signer::ed("a");
    let world = TestIssuer::start(&[&key]).await;
    let console = || SignInOptions { client_id: "console".into(), client_secret: None, scopes: vec!["email".into()] };
    let options = || TokenOptions { keys_rest: Duration::ZERO, sign_in: Some(console()), ..world.options() };
    for mode in [Mode::NoEndpoints, Mode::UntrustedEndpoint] {
        world.set_mode(mode);
        let tokens = world.tokens(options());
        assert!(tokens.holder(&key.token(&world.claims())).await.is_ok(), "tokens are accepted");
        let problem = tokens.authorization().await.unwrap_err();
        assert!(problem.summary().0.contains("does not respond"), "{problem:?}");
        world.set_mode(Mode::Working);
        idle(&tokens).await;
        let found = tokens.authorization().await.unwrap().unwrap();
        assert_eq!((found.client_id.as_str(), found.scope.as_str()), ("console", "openid email"));
        assert!(found.authorization_endpoint.ends_with("/authorize"), "{found:?}");
    }
    let tokens = world.tokens(options());
    assert!(tokens.authorization().await.unwrap().is_some());
    world.set_mode(Mode::Broken);
    idle(&tokens).await;
    assert!(tokens.authorization().await.unwrap().is_some());
    assert!(world.tokens(options()).authorization().await.is_err());
    world.set_mode(Mode::Working);
    assert!(world.tokens(world.options()).authorization().await.unwrap().is_none(), "no client, no sign-in");
    let of = |audience: &str| key.token(&world.with(&json!({"aud": audience})));
    assert!(tokens.holder(&of("console")).await.is_ok());
    assert_eq!(refusal(&tokens, &of("console-2")).await.0, 401);
    assert_eq!(refusal(&world.tokens(world.options()), &of("console")).await.0, 401);
    let refused = |options: TokenOptions| Tokens::open(options).unwrap_err().to_string();
    let file = world.folder.path().join("keys.json");
    assert!(refused(TokenOptions { jwks: Some(file), ..options() }).contains("metadata"));
    let nobody = SignInOptions { client_id: String::new(), ..console() };
    assert!(refused(TokenOptions { sign_in: Some(nobody), ..world.options() }).contains("client id"));
}

#[tokio::test]
async fn an_oversized_key_set_is_rejected_and_unusable_keys_are_skipped() {
    let key = Signer::ed("a");
    let world = TestIssuer::start(&[&key]).await;
    let file = world.folder.path().join("keys.json");
    let odd = [
        json!({"kty": "oct", "k": base64url(b"secret"), "kid": "shared"}),
        json!({"kty": "RSA", "n": base64url(&[255; 128]), "e": "AQAB", "kid": "short"}),
        json!({"kty": "OKP", "crv": "X25519", "x": base64url(&[1; 32]), "kid": "agree"}),
        json!({"kty": "EC", "crv": "P-256", "x": "!", "y": "!", "kid": "odd"}),
        json!({"kty": "RSA", "n": base64url(&[255; 256]), "e": "AQAB", "kid": "enc", "use": "enc"}),
        json!({"kty": "RSA", "n": base64url(&[255; 256]), "e": "AQAB", "kid": "for-es", "alg": "ES256"}),
        json!(["no key"]),
    ];
    let mut keys: Vec<Value> = odd.into();
    let skipped = keys.len();
    keys.push(key.jwk());
    let read = KeySet::parse(json!({"keys": keys}).to_string().as_bytes()).unwrap();
    assert_eq!((read.len(), read.skipped), (1, skipped), "{read:?}");
    std::fs::write(&file, json!({"keys": keys}).to_string()).unwrap();
    let tokens = world.tokens(TokenOptions { jwks: Some(file.clone()), ..world.options() });
    let mut header = key.header();
    header.as_object_mut().unwrap().remove("kid");
    assert!(tokens.holder(&key.token_with(&header, &world.claims())).await.is_ok());
    assert_eq!(world.requests(), 0);
    let many = |count: usize| {
        let keys: Vec<Value> = (0..count)
            .map(|n| json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(&[1; 32]), "kid": n.to_string()}))
            .collect();
        json!({"keys": keys})
    };
    assert!(KeySet::parse(many(1_001).to_string().as_bytes()).unwrap_err().contains("1001 keys"));
    let padded = format!("{}{}", json!({"keys": []}), " ".repeat(keyset::SET_BYTES_MAX));
    assert!(KeySet::parse(padded.as_bytes()).unwrap_err().contains("more than"));
    for text in ["", "{}", "[]", "{\"keys\": 1}"] {
        assert!(KeySet::parse(text.as_bytes()).is_err(), "{text}");
    }
    let tokens = world.tokens(TokenOptions { keys_rest: Duration::ZERO, ..world.options() });
    assert!(tokens.holder(&key.token(&world.claims())).await.is_ok());
    idle(&tokens).await;
    *world.responses.keys.lock() = many(10_000);
    assert_eq!(refusal(&tokens, &Signer::ed("7").token(&world.claims())).await.0, 503);
    assert!(tokens.holder(&key.token(&world.claims())).await.is_ok());
}

#[test]
fn an_invalid_grant_rule_is_rejected() {
    let refused = |rule: &str| GrantRules::parse(&format!("- {{name: a, {rule}}}\n")).unwrap_err();
    for (rule, why) in [
        ("claims: {}, tenant: demo, role: viewer", "at least one"),
        ("claims: {a: [x]}, tenant: demo, role: viewer", "a: expected a text"),
        ("claims: {a: 'x*y'}, tenant: demo, role: viewer", "a * at its end"),
        ("claims: {a: ''}, tenant: demo, role: viewer", "expected a text"),
        ("claims: {a: x}, role: viewer", "tenant or tenant_claim"),
        ("claims: {a: x}, tenant: demo, tenant_claim: t, role: viewer", "tenant or tenant_claim"),
        ("claims: {a: x}, tenant: demo", "role or verbs"),
        ("claims: {a: x}, tenant: demo, role: viewer, verbs: [view]", "role or verbs"),
        ("claims: {a: x}, tenant: demo, verbs: [submit]", "agents or agents_claim"),
        ("claims: {a: x}, tenant: '*', agents: ['*'], verbs: [submit]", "only view, operate and approve"),
        ("claims: {a: x}, tenant: demo, agents: [kelly], role: viewer", "cover all agents"),
        ("claims: {a: x}, tenant: demo, role: approver", "approver"),
        ("claims: {a: x}, tenant: demo, role: viewer, approver: ann", "approver"),
        ("claims: {a: x}, tenant: demo, role: admin", "admin"),
        ("claims: {a: x}, tenant: demo, role: viewer, rolle: x", "rolle"),
    ] {
        assert!(refused(rule).contains(why), "{rule}: {}", refused(rule));
    }
    let good = "- {name: a, claims: {a: x}, tenant: demo, role: viewer}\n";
    assert!(GrantRules::parse(&good.repeat(2)).unwrap_err().contains("two rules"));
    assert_eq!(GrantRules::parse(good).unwrap().len(), 1);
    assert_eq!(GrantRules::parse("- {name: a, claims: {a: café}, tenant: demo, role: viewer}\n").unwrap().len(), 1);
    assert!(GrantRules::parse("# nobody\n").unwrap().grant("x".into(), &Claims::new()).is_err());
}

#[tokio::test]
async fn invalid_token_options_are_rejected_and_rules_are_reloaded() {
    let key = Signer::ed("a");
    let world = TestIssuer::start(&[&key]).await;
    let refused = |options: TokenOptions| Tokens::open(options).unwrap_err().to_string();
    assert!(refused(TokenOptions { audience: vec![], ..world.options() }).contains("audience"));
    assert!(refused(TokenOptions { algorithms: vec![Algorithm::HS256], ..world.options() }).contains("public keys"));
    assert!(refused(TokenOptions { leeway: Duration::from_secs(301), ..world.options() }).contains("5 minutes"));
    assert!(refused(TokenOptions { issuer: "http://id.example.com".into(), ..world.options() }).contains("https"));
    assert!(refused(TokenOptions { rules: world.folder.path().join("none"), ..world.options() }).contains("none"));
    let tokens = world.tokens(TokenOptions { name_claim: "email".into(), ..world.options() });
    let of = |verified: Value| key.token(&world.with(&json!({"email": "ann@example.com", "email_verified": verified})));
    assert_eq!(tokens.holder(&of(json!(true))).await.unwrap().id, "ann@example.com");
    assert_eq!(tokens.holder(&of(json!("true"))).await.unwrap().id, "ann@example.com", "some issuers write it so");
    for unverified in [json!(false), json!("false"), json!(0)] {
        assert!(refusal(&tokens, &of(unverified.clone())).await.1.contains("not verified"), "{unverified}");
    }
    std::fs::write(world.folder.path().join("rules.yaml"), "[]").unwrap();
    while tokens.holder(&of(json!(true))).await.is_ok() {
        // The reload is not signaled, so poll. The gateway checks the file once a second.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(refusal(&tokens, &of(json!(true))).await.0, 403, "what is granted no more is refused");
}
