//! A handler must get a model's numbers digit by digit.

use axum::Router;
use axum::routing::post;
use serde_json::json;
use tickfleet_tests::fleet::{Fleet, Plan};

/// A double cannot hold these numbers.
const ARGUMENTS: &str = r#"{"big":123456789012345678901234567890,"small":0.1000000000000000055511151231257827,"list":[18446744073709551616,1.10]}"#;

#[tokio::test]
async fn an_http_tool_receives_numbers_digit_for_digit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = Router::new().route("/mirror", post(|body: String| async move { format!("{{\"got\":{body:?}}}") }));
    let serving = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    let declared = json!({"tools": {"mirror": {
        "description": "Gives back.",
        "effect": "read",
        "input_schema": {"type": "object", "properties": {"big": {"type": "integer"}, "small": {"type": "number"}, "list": {"type": "array"}}},
        "http": {
            "method": "POST", "base_url": format!("http://{address}"), "path": "/mirror", "allow_private": [address],
            "body": {"big": "{{big}}", "small": "{{small}}", "list": "{{list}}"}
        }
    }}});
    let mut fleet = Fleet::start(Plan { declared: serde_json::from_value(declared).unwrap(), ..Plan::default() }).await;
    let turn = format!(
        r#"{{"tenant":"acme","agent":"kelly","reply_to":"box","calls":[{{"name":"mirror","arguments":{ARGUMENTS}}}]}}"#
    );
    fleet.xadd("turns", "turn", turn.as_bytes()).await;
    let reply = fleet.reply().await;
    let got = reply["results"][0]["output"]["got"].as_str().unwrap_or_else(|| panic!("{reply}"));
    for number in
        ["123456789012345678901234567890", "0.1000000000000000055511151231257827", "18446744073709551616", "1.10"]
    {
        assert!(got.contains(number), "{number} is not in {got}");
    }
    serving.abort();
    fleet.stop().await;
}
