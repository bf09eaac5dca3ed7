//! Every dialect in a whole fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::{Dialect, Effect};
use tickfleet_protocol::text::calls_in;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::TypedTool;

fn outcomes(reply: &Value) -> Vec<&str> {
    reply["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

fn call(dialect: Dialect, id: &str, name: &str, arguments: &str) -> Value {
    match dialect {
        Dialect::Raw | Dialect::Mcp | Dialect::Mcp2026_07_28 => json!({"id": id, "name": name, "arguments": arguments}),
        Dialect::Text => json!({"id": id, "tool": name, "reason": "asked", "arguments": arguments}),
        Dialect::OpenaiChat => {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        }
        Dialect::OpenaiResponses => {
            json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
        }
        Dialect::Anthropic => json!({"type": "tool_use", "id": id, "name": name, "input": arguments}),
        Dialect::Gemini => json!({"functionCall": {"id": id, "name": name, "args": arguments}}),
    }
}

#[tokio::test]
async fn every_dialect_gets_its_results_ready_to_append() {
    let mut fleet = Fleet::start(Plan::default()).await;
    for dialect in Dialect::ALL {
        let calls = [
            call(dialect, "same", "echo", r#"{"text":"<1>"}"#),
            call(dialect, "same", "nope", "{}"),
            call(dialect, "x", "echo", r#"{"text":5}"#),
        ];
        fleet.submit_turn(json!({"format": dialect.as_str(), "calls": calls})).await;
        let reply = fleet.reply().await;
        assert_eq!(reply["dialect"], dialect.as_str());
        assert_eq!(outcomes(&reply), ["ok", "unknown_tool", "invalid_arguments"], "{reply}");
        let messages = &reply["messages"];
        let reported: Vec<String> = match dialect {
            Dialect::Raw => {
                assert_eq!(messages, &Value::Null);
                continue;
            }
            Dialect::Anthropic | Dialect::Text => list(&messages[0]["content"]),
            Dialect::Gemini => list(&messages[0]["parts"]),
            _ => list(messages),
        };
        let first = match dialect {
            Dialect::Gemini => r#""response":{"output":{"text":"<1>"}}"#,
            Dialect::Mcp | Dialect::Mcp2026_07_28 => r#""structuredContent":{"text":"<1>"}"#,
            Dialect::Text => r#"<tool_result tool_name=\"echo\">\n{\"text\":\"&lt;1&gt;\"}\n</tool_result>"#,
            _ => r#""{\"text\":\"<1>\"}""#,
        };
        assert!(reported[0].contains(first), "{}", reported[0]);
        assert!(reported.len() == 3 && reported[1].contains("nope") && reported[2].contains("'text'"), "{reported:#?}");
        let is_mcp = matches!(dialect, Dialect::Mcp | Dialect::Mcp2026_07_28);
        let place = if is_mcp { "tickfleet/tool_call_id" } else { "id\":\"same" };
        assert!(dialect == Dialect::Text || reported[1].contains(place), "{}", reported[1]);
    }
    fleet.stop().await;
}

fn list(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_answer_without_calls_ends_at_once_and_debits_nothing() {
    let plan = Plan {
        caps: tickfleet_model::policy::DefaultCaps { max_actions_per_day: 1, ..Plan::default().caps },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    let words = json!({"turn_id": "words", "answer": "Paris is the capital.", "tool_call_audits": true});
    fleet.submit_turn(words.clone()).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["status"], &reply["results"]), (&json!("done"), &json!([])), "{reply}");
    assert_eq!((reply.get("messages"), &reply["tool_call_audits"]), (None, &json!([])));
    fleet.submit_turn(words).await;
    fleet.submit_turn(json!({"answer": r#"Now {"tool":"echo","arguments":{}} and {"tool":"echo"}"#})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "daily_cap_reached"], "{reply}");
    fleet.submit_turn(json!({"answer": "That is all."})).await;
    assert_eq!(fleet.reply().await["results"], json!([]));
    fleet.stop().await;
}

#[tokio::test]
async fn an_unreadable_call_reports_its_error_and_runs_nothing_after_it() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let answer = r#"First {"tool":"echo","arguments":{"text":"1"}}, then
        {"tool":"echo","arguments":{"text":"say "{"tool":"fail","arguments":{}}""}}"#;
    fleet.submit_turn(json!({"answer": answer})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "invalid_arguments"], "{reply}");
    let reported = reply["results"][1]["error"]["message"].as_str().unwrap();
    assert!(reported.starts_with("Your call of 'echo' cannot be read: expected a comma"), "{reported}");
    assert!(reported.contains("line 1, column 42"), "{reported}");
    let parts = reply["messages"][0]["content"].as_array().unwrap();
    assert!(parts[1]["text"].as_str().unwrap().contains("is_error=\"true\""), "{parts:#?}");

    fleet.submit_turn(json!({"answer": r#"{"tool":"fail","arguments":{"outcomes":[]}"#})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["invalid_arguments"], "a call that breaks off does not run: {reply}");
    fleet.submit_turn(json!({"answer": r#"{"tool":"sleep","arguments":{}}"#})).await;
    let reply = fleet.reply().await;
    let reported = reply["results"][0]["error"]["message"].as_str().unwrap();
    assert!(reported.starts_with("Missing required argument 'ms' for tool 'sleep'"), "{reported}");
    fleet.stop().await;
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Search {
    query: String,
    /// The maximum number of results.
    #[serde(default)]
    limit: u32,
}

#[tokio::test]
async fn a_strict_null_counts_as_an_omitted_argument() {
    let search = |_, args: Search| async move { Ok(args) };
    let tools = vec![TypedTool::new("search", "Searches.", Effect::Read, search)];
    let mut fleet = Fleet::start(Plan { tools, ..Plan::default() }).await;
    let turn = |strict: bool| {
        let call = call(Dialect::OpenaiChat, "c", "search", r#"{"query":"x","limit":null}"#);
        json!({"strict": strict, "tool_calls": [call]})
    };
    fleet.submit_turn(turn(true)).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["output"], json!({"query": "x", "limit": 0}), "{reply}");
    fleet.submit_turn(turn(false)).await;
    assert_eq!(outcomes(&fleet.reply().await), ["invalid_arguments"]);
    fleet.stop().await;
}

#[test]
fn hostile_answers_parse_to_the_end() {
    let parts = [
        "{",
        "[",
        "{\"a\":",
        "[{",
        "{id:",
        "{\"tool",
        "<",
        "<think>",
        "{\"a\": \"",
        "[1,",
        "{\"a\":1}x",
        "<|channel|>",
        "<tool_call>",
        "{\"name\":\"arguments\" ",
        "{\"a\":1,\"a\":2}",
        "[[",
        "{ ",
        "[TOOL_CALLS]",
        "<think><tool_call>",
        "Action: a\n\n",
        "```tool_code\n",
        "<think>```tool_call\n</think><",
        "<a b=1>",
    ];
    for part in parts {
        // With quadratic steps, 256 KiB would take longer than nextest allows.
        drop(calls_in(&part.repeat((1 << 18) / part.len())));
    }
}

#[derive(Deserialize, JsonSchema)]
struct Erase {
    /// The path to erase; everything if it is missing.
    #[allow(dead_code, reason = "only read")]
    path: Option<String>,
    /// The number of repetitions.
    times: Option<u32>,
}

#[tokio::test]
async fn truncated_calls_do_not_run_and_odd_formats_are_accepted() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let erase = TypedTool::new("erase", "Erases.", Effect::Once, move |_, given: Erase| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { Ok(given.times.unwrap_or_default()) }
    });
    let mut fleet = Fleet::start(Plan { tools: vec![erase], ..Plan::default() }).await;
    let cut = include_str!("../../data/trouble/cut.json");
    for case in serde_json::from_str::<Vec<Value>>(cut).unwrap() {
        if case["cut"] == json!([]) {
            continue;
        }
        fleet.submit_turn(case["turn"].clone()).await;
        let reply = fleet.reply().await;
        let result = reply["results"].as_array().unwrap().last().unwrap();
        assert_eq!((&result["outcome"], &result["attempts"]), (&json!("invalid_arguments"), &json!(0)), "{case}");
        let reported = result["error"]["message"].as_str().unwrap();
        assert!(reported.contains("was cut off") && reported.contains("Request the response again"), "{reported}");
        assert_eq!(result["error"]["details"]["reason"], "cut");
    }
    let broken = json!({"calls": [{"name": "erase", "arguments": "{\"path\": \"/ho"}]});
    fleet.submit_turn(broken).await;
    assert_eq!(fleet.reply().await["results"][0]["error"]["details"]["reason"], "cut");
    assert_eq!(ran.load(Ordering::Relaxed), 0, "nothing that was cut off runs");

    let long = format!("call_1__sig__{}", "Qk1".repeat(3_000));
    let calls = json!([
        {"id": long, "function": {"name": "erase", "arguments": "{\"times\": 5.0}"}},
        {"id": 7, "function": {"name": "erase", "arguments": null}},
        {"id": "c", "function": {"name": null, "arguments": "{}"}},
        {"id": null, "function": {"name": "erase", "arguments": "{\"times\": 3e0}"}}
    ]);
    fleet.submit_turn(json!({"tool_calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "ok", "unknown_tool", "ok"], "{reply}");
    let outputs: Vec<&Value> = [0, 1, 3].map(|at| &reply["results"][at]["output"]).into();
    assert_eq!(outputs, [&json!(5), &json!(0), &json!(3)]);
    assert_eq!(
        (&reply["messages"][0]["tool_call_id"], &reply["messages"][1]["tool_call_id"]),
        (&json!(long), &json!("7"))
    );
    fleet.stop().await;
}
