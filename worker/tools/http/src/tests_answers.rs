//! Tests of `outcomes`: responses from a real server that have errors in their body.

use super::*;
use tickfleet_tools::CONTENT_BLOCKS;

fn tool(address: &str, outcomes: Value) -> HttpTool {
    get(address, json!({"outcomes": outcomes, "response_bytes_max": 200}))
}

#[tokio::test]
async fn outcome_rules_override_the_status() {
    let answers = [
        status(200, &[], r#"{"ok":false,"error":"channel_not_found"}"#),
        status(200, &[("retry-after", "9")], r#"{"ok":false,"error":"ratelimited"}"#),
        status(200, &[], r#"{"ok":true,"id":7}"#),
        status(409, &[], r#"{"id":8}"#),
        status(404, &[], r#"{"ok":false,"error":"gone"}"#),
    ];
    let (_, address) = Service::start(answers).await;
    let tool = tool(
        &address,
        json!([
            {"status": [409], "outcome": "ok"},
            {"at": "/error", "equals": "ratelimited", "outcome": "not_executed"},
            {"status": [200], "at": "/ok", "equals": false, "outcome": "permanent", "message": "/error"}
        ]),
    );
    let said = message(call(&tool, json!({})).await);
    assert_eq!(said, "The service answered with status 200: channel_not_found");
    match call(&tool, json!({})).await {
        Err(ToolFailure::Transient { retry_after, not_executed: true, .. }) => {
            assert_eq!(retry_after.unwrap().as_secs(), 9);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(call(&tool, json!({})).await.unwrap().json.get(), r#"{"ok":true,"id":7}"#);
    assert_eq!(call(&tool, json!({})).await.unwrap().json.get(), r#"{"id":8}"#);
    assert_eq!(transient(call(&tool, json!({})).await), None, "no rule fits: the status decides");
}

#[tokio::test]
async fn an_oversized_response_is_transient_if_rules_need_its_body() {
    let (_, address) = Service::start([status(200, &[], &"x".repeat(201)), status(200, &[], &"x".repeat(201))]).await;
    let failing = tool(&address, json!([{"at": "/ok", "equals": false, "outcome": "permanent"}]));
    assert_eq!(transient(call(&failing, json!({})).await), Some(false), "nobody knows");
    let plain = tool(&address, json!([]));
    assert_eq!(transient(call(&plain, json!({})).await), None);
}

#[tokio::test]
async fn an_oversized_success_response_still_counts_as_executed() {
    for effect in [Effect::Once, Effect::Idempotent] {
        let (_, address) = Service::start([status(201, &[], &"x".repeat(201))]).await;
        let tool = tool_for(with(&address, "POST", json!({"response_bytes_max": 200})), effect).unwrap();
        let output = call(&tool, json!({})).await.unwrap();
        let said: Value = serde_json::from_str(output.json.get()).unwrap();
        assert_eq!((&said["executed"], &said["status"]), (&json!(true), &json!(201)), "{said}");
        assert!(said["note"].as_str().unwrap().contains("more than 200 bytes"), "{said}");
    }
}

#[tokio::test]
async fn an_unfollowed_redirect_does_not_count_as_not_executed() {
    for number in [301, 302, 303, 307, 308] {
        for (effect, expected) in [(Effect::Once, Some(false)), (Effect::Idempotent, None), (Effect::Read, None)] {
            let (service, address) = Service::start([status(number, &[("location", "/payments/7")], "")]).await;
            let tool = tool_for(with(&address, "POST", json!({"body": {"a": "{{a}}"}})), effect).unwrap();
            let answered = call(&tool, json!({"a": 1})).await;
            assert_eq!(transient(answered.clone()), expected, "{number} {effect:?}");
            let said = message(answered);
            assert!(said.contains(&format!("answered with a redirect ({number})")), "{said}");
            assert_eq!(service.seen().len(), 1, "it was not followed");
        }
    }
    let (_, address) = Service::start([status(302, &[("location", "/b")], ""), status(303, &[], "")]).await;
    let following = tool_for(with(&address, "POST", json!({"redirects_max": 2})), Effect::Idempotent).unwrap();
    assert!(message(call(&following, json!({})).await).contains("ambiguous redirect (302)"));
    assert!(message(call(&following, json!({})).await).contains("redirect without a target"));
}

#[tokio::test]
async fn outcome_rules_apply_to_an_unfollowed_redirect() {
    let to = |number, body: &str| status(number, &[("location", "/payments/7")], body);
    let answers = [to(303, r#"{"id":7}"#), to(303, ""), to(302, r#"{"why":"sign in"}"#), to(307, ""), to(308, "")];
    let (service, address) = Service::start(answers).await;
    let outcomes = json!([
        {"status": [303], "outcome": "ok"},
        {"status": [302], "at": "/why", "outcome": "permanent", "message": "/why"},
        {"status": [307], "outcome": "not_executed"}
    ]);
    let tool = tool_for(with(&address, "POST", json!({"outcomes": outcomes})), Effect::Once).unwrap();
    assert_eq!(call(&tool, json!({})).await.unwrap().json.get(), r#"{"id":7}"#);
    assert_eq!(call(&tool, json!({})).await.unwrap().json.get(), "null");
    let refused = call(&tool, json!({})).await;
    assert_eq!(transient(refused.clone()), None);
    assert_eq!(message(refused), "The service answered with status 302: sign in");
    assert_eq!(transient(call(&tool, json!({})).await), Some(true), "the rule says that it did nothing");
    assert_eq!(transient(call(&tool, json!({})).await), Some(false), "no rule fits");
    assert_eq!(service.seen().len(), 5);
}

#[tokio::test]
async fn a_result_pointer_selects_the_output_and_hides_other_members() {
    let answers = [
        r#"{"ok":true,"result":{"id":12345678901234567890123}}"#,
        r#"{"ok":true,"hidden":"h1"}"#,
        r#"{"result":null,"hidden":"h1"}"#,
        "<html>h1</html>",
        "",
    ];
    for effect in [Effect::Read, Effect::Once] {
        let (_, address) = Service::start(answers.map(|body| status(200, &[], body))).await;
        let tool = tool_for(with(&address, "POST", json!({"result": "/result"})), effect).unwrap();
        let mut outputs = Vec::new();
        for _ in answers {
            outputs.push(call(&tool, json!({})).await.unwrap().json.get().to_owned());
        }
        assert_eq!(outputs[0], r#"{"id":12345678901234567890123}"#);
        assert_eq!((outputs[2].as_str(), outputs[4].as_str()), ("null", "null"));
        for nothing in [&outputs[1], &outputs[3]] {
            let said: Value = serde_json::from_str(nothing).unwrap();
            assert!(said["note"].as_str().unwrap().contains("has no value at the result pointer /result"), "{said}");
            assert_eq!(said["executed"] == true, effect == Effect::Once, "{said}");
            assert!(!nothing.contains("h1"), "{said}");
        }
    }
    let (_, address) = Service::start([status(200, &[], "text"), status(200, &[], "[1]")]).await;
    let whole = get(&address, json!({"result": ""}));
    assert_eq!(call(&whole, json!({})).await.unwrap().json.get(), r#""text""#);
    assert_eq!(call(&whole, json!({})).await.unwrap().json.get(), "[1]");
}

#[tokio::test]
async fn a_declared_charset_applies_to_rules_messages_and_output() {
    let latin = |number: u16, kind: &'static str, body: &'static [u8]| {
        (axum::http::StatusCode::from_u16(number).unwrap(), [("content-type", kind)], body).into_response()
    };
    let answers = [
        latin(200, "text/plain; charset=iso-8859-1", b"Z\xfcrich 12:secret/token"),
        latin(200, "application/json; charset=iso-8859-1", b"{\"city\":\"Z\xfcrich\"}"),
        latin(200, "application/json; charset=iso-8859-1", b"{\"error\":\"Verd\xe4chtig\"}"),
        latin(400, "text/plain; charset=iso-8859-1", b"Stra\xdfe?"),
        latin(200, "image/png; charset=iso-8859-1", b"\x89PNG"),
        latin(200, "application/octet-stream", b"\x89PNG\r\n\x1a\n"),
    ];
    let (_, address) = Service::start(answers).await;
    let outcomes = json!([{"at": "/error", "equals": "Verdächtig", "outcome": "permanent", "message": "/error"}]);
    let tool = get(&address, json!({"outcomes": outcomes, "secrets": {"TOKEN": {"env": "BOT"}}}));
    assert_eq!(call(&tool, json!({})).await.unwrap().json.get(), r#""Zürich [REDACTED]""#);
    assert_eq!(call(&tool, json!({})).await.unwrap().json.get(), r#"{"city":"Zürich"}"#);
    assert_eq!(message(call(&tool, json!({})).await), "The service answered with status 200: Verdächtig");
    assert_eq!(message(call(&tool, json!({})).await), "The service answered with status 400: Straße?");
    assert!(call(&tool, json!({})).await.unwrap().json.get().contains("binary answer, not shown"));
    let image = call(&tool, json!({})).await.unwrap();
    assert_eq!(image.json.get(), r#"[{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}]"#);
    assert_eq!(image.content_type, CONTENT_BLOCKS);
}
