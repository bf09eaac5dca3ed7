//! Each invalid turn must get the reply that docs/reference/outcomes.md lists.

use serde_json::{Value, json};
use tickfleet_client::Client;
use tickfleet_protocol::parse_turn;
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;

struct InvalidTurn {
    what: &'static str,
    message: Vec<u8>,
    code: &'static str,
    /// True if tenant and inbox can be read. Otherwise, the fleet sends no reply.
    answered: bool,
}

fn bad(what: &'static str, message: impl Into<Vec<u8>>, code: &'static str, answered: bool) -> InvalidTurn {
    InvalidTurn { what, message: message.into(), code, answered }
}

/// Returns text, because JSON libraries cannot write some of the tested members.
fn with(member: &str) -> String {
    let name = member.split(':').next().unwrap();
    let good = [
        r#""tenant":"acme""#,
        r#""agent":"kelly""#,
        r#""reply_to":"box""#,
        r#""calls":[{"id":"c1","name":"echo","arguments":{}}]"#,
    ];
    let mut members: Vec<&str> = good.into_iter().filter(|m| m.split(':').next().unwrap() != name).collect();
    members.push(member);
    format!("{{{}}}", members.join(","))
}

fn without(field: &str) -> String {
    let mut turn =
        json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": [{"id": "c1", "name": "echo"}]});
    turn.as_object_mut().unwrap().remove(field);
    turn.to_string()
}

fn calls(count: usize) -> String {
    let calls: Vec<String> = (0..count).map(|i| format!(r#"{{"id":"c{i}","name":"echo"}}"#)).collect();
    with(&format!(r#""calls":[{}]"#, calls.join(",")))
}

fn malformed() -> Vec<InvalidTurn> {
    let deep = format!(r#""session_data":{}1{}"#, "[".repeat(500), "]".repeat(500));
    let huge = format!(r#""session_data":"{}""#, "x".repeat(1_200_000));
    let long_arguments =
        format!(r#""calls":[{{"id":"c1","name":"echo","arguments":{{"text":"{}"}}}}]"#, "x".repeat(300_000));
    let mut not_utf8 = with(r#""correlation_id":"?""#).into_bytes();
    let at = not_utf8.iter().position(|b| *b == b'?').unwrap();
    not_utf8[at] = 0xff;
    vec![
        bad("no JSON", "hello", "malformed_json", false),
        bad("nothing", "", "malformed_json", false),
        bad("cut off", &with(r#""priority":"high""#).as_bytes()[..60], "malformed_json", true),
        bad("text behind it", with(r#""priority":"high""#) + " {}", "malformed_json", true),
        bad("not UTF-8", not_utf8, "malformed_json", true),
        bad("a raw NUL byte", with("\"correlation_id\":\"a\0b\""), "malformed_json", true),
        bad("half a surrogate pair", with(r#""correlation_id":"\ud83d""#), "malformed_json", true),
        bad("an array", "[1,2]", "invalid_field", false),
        bad("too deep", with(&deep), "too_deep", true),
        bad("more than 1 MiB", with(&huge), "too_large", true),
        bad("arguments of more than 256 KiB", with(&long_arguments), "too_large", true),
        bad("a key twice", with(r#""priority":"low","priority":"high""#), "duplicate_key", true),
        bad("a key twice, deep inside", with(r#""session_data":{"a":{"b":1,"b":2}}"#), "duplicate_key", true),
        bad(
            "a key twice in arguments",
            with(r#""calls":[{"name":"echo","arguments":{"a":1,"a":2}}]"#),
            "duplicate_key",
            true,
        ),
        bad("an unknown field", with(r#""prio":"high""#), "unknown_field", true),
        bad("no tenant", without("tenant"), "missing_field", false),
        bad("no agent", without("agent"), "missing_field", true),
        bad("no calls field", without("calls"), "missing_field", true),
        bad("calls of two dialects", with(r#""tool_calls":[]"#), "invalid_field", true),
        bad("an agent that is a number", with(r#""agent":7"#), "invalid_field", true),
        bad("calls that are no list", with(r#""calls":{"name":"echo"}"#), "invalid_field", true),
        bad("a call that is no object", with(r#""calls":["echo"]"#), "invalid_field", true),
        bad("a tenant with a colon", with(r#""tenant":"ac:me""#), "invalid_field", false),
        bad("an inbox with odd characters", with(r#""reply_to":"box:{0}*\n""#), "invalid_field", false),
        bad("a turn_id with a NUL", with(r#""turn_id":"a\u0000b""#), "invalid_field", true),
        bad("a deadline in words", with(r#""deadline":"tomorrow""#), "invalid_field", true),
        bad("a deadline beyond 30 days", with(r#""deadline":"2999-01-01T00:00:00Z""#), "invalid_field", true),
        bad("no calls", calls(0), "no_calls", true),
        bad("10,000 calls", calls(10_000), "too_many_calls", true),
        bad("an unknown tenant", with(r#""tenant":"nobody""#), "unknown_tenant", false),
        bad("an unknown agent", with(r#""agent":"nobody""#), "unknown_agent", true),
        bad("an unknown task", with(r#""task_id":"no-such-task""#), "unknown_task", true),
    ]
}

#[tokio::test]
async fn malformed_turns_get_their_documented_errors_and_block_nothing() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let cases = malformed();
    for (index, case) in cases.iter().enumerate() {
        fleet.xadd("turns", "turn", &case.message).await;
        if case.answered {
            let reply = fleet.reply_in("acme:box", PATIENCE).await;
            let reply = reply.unwrap_or_else(|| panic!("{}: no reply", case.what));
            assert_eq!(reply["status"], "rejected", "{}: {reply}", case.what);
            assert_eq!(reply["error"]["code"], case.code, "{}: {reply}", case.what);
            for result in reply["results"].as_array().unwrap() {
                assert_eq!((&result["outcome"], &result["attempts"]), (&json!("rejected"), &json!(0)), "{}", case.what);
            }
        }
        fleet.until(case.what, async |fleet| fleet.dead().await.len() == index + 1).await;
        let dead = fleet.dead().await.remove(index);
        assert_eq!(dead["reason"], case.code, "{}", case.what);
        let kept = String::from_utf8_lossy(&case.message[..case.message.len().min(4_096)]).into_owned();
        assert_eq!(dead["raw"], kept, "{}", case.what);
    }
    assert_eq!(fleet.debited("kelly").await, 0, "a refused turn costs nothing");
    assert!(fleet.audits().await.is_empty(), "what was never accepted is in `dead`, not in the audit log");
    fleet.no_more_replies().await;
    assert_eq!(fleet.debited("kelly").await, 1);
    fleet.stop().await;
}

#[tokio::test]
async fn a_rejected_turn_gets_one_result_per_readable_call() {
    let mut fleet = Fleet::start(Plan::default()).await;
    fleet.xadd("turns", "turn", calls(10_000).as_bytes()).await;
    let reply = fleet.reply().await;
    let results = reply["results"].as_array().unwrap();
    assert!(results.len() > 5_000, "as many as a reply has room for");
    assert_eq!(results[4_999]["tool_call_id"], "c4999");
    assert_eq!(reply["error"]["details"]["calls_without_result"], 10_000 - results.len());
    fleet.xadd("turns", "turn", calls(129).as_bytes()).await;
    let reply = fleet.reply().await;
    let ids: Vec<&str> =
        reply["results"].as_array().unwrap().iter().map(|result| result["tool_call_id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), ids[128]), (129, "c128"), "nothing that was parsed is left without its answer");
    let long = "i".repeat(2_000);
    let chat = json!({"agent": "kelly", "reply_to": "box", "tenant": "acme",
        "tool_calls": [{"id": long, "function": {"name": "echo", "arguments": "{}"}}]});
    fleet.xadd("turns", "turn", chat.to_string().as_bytes()).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["status"], &reply["messages"][0]["tool_call_id"]), (&json!("done"), &json!(long)));
    let anthropic = json!({"agent": "kelly", "reply_to": "box", "tenant": "acme", "prio": 1,
        "content": [{"type": "text", "text": "hm"}, {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {}}]});
    fleet.xadd("turns", "turn", anthropic.to_string().as_bytes()).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["messages"][0]["content"][0]["tool_use_id"], "toolu_1");
    assert_eq!(reply["messages"][0]["content"][0]["is_error"], true);
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn secrets_of_a_rejected_message_are_not_stored() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let arguments = r#"{"password":"hunter2","pin":"hunter2","note":"Bearer hunter2-hunter2-hunter2"}"#;
    let quoted = json!(arguments).to_string();
    for message in [
        with(&format!(r#""prio":1,"calls":[{{"id":"c1","name":"echo","arguments":{arguments}}}]"#)),
        with(&format!(r#""prio":1,"calls":[{{"id":"c1","name":"echo","arguments":{quoted}}}]"#)),
        with(&format!(r#""calls":[{{"id":"c1","name":"echo","arguments":{arguments}}}],}} broken"#)),
        format!("password=hunter2 session_id=hunter2 Cookie: hunter2 {}", "x".repeat(2_000_000)),
    ] {
        fleet.xadd("turns", "turn", message.as_bytes()).await;
    }
    fleet.until("four dead letters", async |fleet| fleet.dead().await.len() == 4).await;
    let dead = fleet.dead().await;
    assert!(
        dead[0]["raw"]
            .contains(r#""arguments":{"password":"[REDACTED]","pin":"[REDACTED]","note":"Bearer [REDACTED]"}"#)
    );
    assert!(dead.iter().all(|letter| letter["raw"].len() <= 4_096));
    for _ in 0..3 {
        assert_eq!(fleet.reply().await["status"], "rejected");
    }
    fleet.until("an empty stream", async |fleet| fleet.ask::<u64>("XLEN", "turns", &[]).await == 0).await;
    let kept = fleet.everything().await;
    assert!(!kept.contains("hunter2"), "{kept}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_malformed_call_fails_only_itself() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let calls = json!([
        {"id": "a", "name": "", "arguments": {}},
        {"id": "b", "name": "ec\u{0}ho", "arguments": {}},
        {"id": "c", "name": "echo", "arguments": "{not json"},
        {"id": "d", "name": "echo", "arguments": "{\"text\": \"\\ud83d\"}"},
        {"id": "e", "name": "echo", "arguments": "[1]"},
        {"id": "f", "name": "echo", "arguments": {"text": "a\u{0}b"}},
        {"id": "f", "name": "échø/../*", "arguments": null},
        {"name": "echo", "arguments": "{\"value\": 123456789012345678901234567890}"},
    ]);
    fleet.submit_turn(json!({"calls": calls})).await;
    let reply = fleet.reply().await;
    let expected = [
        "unknown_tool",
        "unknown_tool",
        "invalid_arguments",
        "invalid_arguments",
        "invalid_arguments",
        "ok",
        "unknown_tool",
        "ok",
    ];
    assert_eq!(outcomes(&reply), expected, "{reply:#}");
    assert_eq!(reply["results"][5]["output"]["text"], "a\u{0}b");
    assert_eq!(fleet.debited("kelly").await, 8, "every admitted call debits");
    fleet.stop().await;
}

#[tokio::test]
async fn an_entry_without_the_expected_field_becomes_a_dead_letter() {
    let mut fleet = Fleet::start(Plan::default()).await;
    fleet.xadd("turns", "trun", b"{}").await;
    fleet.xadd("tasks", "tsak", b"{}").await;
    fleet.xadd("tasks", "task", b"\xff\xfe").await;
    fleet.until("three dead letters", async |fleet| fleet.dead().await.len() == 3).await;
    assert!(fleet.dead().await.iter().all(|dead| dead["reason"] == "malformed_json"));
    fleet.no_more_replies().await;
    for stream in ["turns", "tasks"] {
        fleet.until("an empty stream", async |fleet| fleet.ask::<u64>("XLEN", stream, &[]).await == 0).await;
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_reused_turn_id_is_a_silent_duplicate_or_a_conflict() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let turn =
        |text: &str| json!({"turn_id": "t-1", "calls": [{"id": "c1", "name": "echo", "arguments": {"text": text}}]});
    for _ in 0..3 {
        fleet.submit_turn(turn("one")).await;
    }
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], &reply["status"]), (&json!("t-1"), &json!("done")));
    fleet.submit_turn(turn("two")).await;
    let conflict = fleet.reply().await;
    assert_eq!((&conflict["turn_id"], &conflict["status"]), (&json!("t-1"), &json!("conflict")));
    assert_eq!((&conflict["results"], &conflict["error"]["code"]), (&json!([]), &json!("conflict")));
    fleet.no_more_replies().await;
    assert_eq!(fleet.debited("kelly").await, 2, "a duplicate and a conflict cost nothing");
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_with_a_past_deadline_expires_without_a_debit() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let calls: Value = json!([{"id": "c1", "name": "echo"}, {"id": "c2", "name": "echo"}]);
    fleet.submit_turn(json!({"deadline": "2020-01-01T00:00:00Z", "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["status"], outcomes(&reply)), (&json!("done"), vec!["expired", "expired"]));
    assert_eq!(reply["results"][0]["error"]["details"]["deadline"], "2020-01-01T00:00:00Z");
    assert_eq!(fleet.debited("kelly").await, 0);
    assert_eq!(fleet.audits().await.len(), 2, "an accepted call is audited however it ends");
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_in_the_wrong_shard_is_rejected() {
    let store = tickfleet_store::StoreOptions { shards: 16, ..fleet_options() };
    let mut fleet = Fleet::start(Plan { store, ..Plan::default() }).await;
    // This fleet serves only shard 0, but CRC32("acme") mod 16 is another shard.
    let acme = tickfleet_model::TenantId::new("acme").unwrap();
    assert_ne!(tickfleet_model::ids::shard_of(&acme, 16), 0);
    fleet.submit(&[("echo", serde_json::json!({}))]).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["status"], &reply["error"]["code"]), (&"rejected".into(), &"wrong_shard".into()));
    fleet.stop().await;
}

fn fleet_options() -> tickfleet_store::StoreOptions {
    Plan::default().store
}

#[tokio::test]
async fn a_temporarily_rejected_turn_can_be_resubmitted_under_its_id() {
    let store = StoreOptions { tenant_turns_max: 1, lease_ms: 2_000, ..StoreOptions::default() };
    let mut fleet = Fleet::start(Plan { workers: 0, store, ..Plan::default() }).await;
    let client = Client::connect(&fleet.server.url(), fleet.plan().store.clone()).await.unwrap();
    let submit = async |id: &str| {
        let turn = with(&format!(r#""turn_id":"{id}""#));
        client.submit(parse_turn(turn.as_bytes()).unwrap()).await.unwrap().duplicate
    };
    submit("first").await;
    fleet.until("the first waits", async |fleet| fleet.ask::<u64>("EXISTS", "turn:acme:first", &[]).await == 1).await;
    for again in ["the first time", "the second time"] {
        assert!(!submit("second").await, "{again}");
        let reply = fleet.reply().await;
        assert_eq!((&reply["turn_id"], &reply["error"]["code"]), (&json!("second"), &json!("tenant_queue_full")));
    }
    fleet.add_worker();
    assert_eq!(fleet.reply().await["turn_id"], "first");
    assert!(!submit("second").await, "there is room now");
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], outcomes(&reply)), (&json!("second"), vec!["ok"]));
    assert!(submit("second").await, "what was carried out is not carried out again");
    fleet.stop().await;
}

#[tokio::test]
async fn an_entry_with_an_extreme_id_blocks_no_other_entries() {
    let mut fleet = Fleet::start(Plan::default()).await;
    // IDs with the largest sequence number, with numbers that a double cannot hold, and with a time far ahead.
    for id in ["5-18446744073709551615", "9007199254740993-9007199254740993", "99999999999999999-1"] {
        let entry: String = fleet.ask("XADD", "turns", &[id, "turn", &with(r#""correlation_id":"odd""#)]).await;
        let reply = fleet.reply().await;
        assert_eq!((&reply["turn_id"], outcomes(&reply)), (&json!(format!("t{entry}")), vec!["ok"]), "{reply}");
        fleet.no_more_replies().await;
    }
    fleet.until("the stream is trimmed", async |fleet| fleet.ask::<u64>("XLEN", "turns", &[]).await == 0).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_id_record_rejects_only_its_own_turn() {
    let mut fleet = Fleet::start(Plan::default()).await;
    // The value is not a string, so string commands on it fail.
    let () = fleet.ask("HSET", "id:acme:damaged", &["a", "b"]).await;
    let calls = json!([{"id": "c", "name": "echo", "arguments": {"text": "hi"}}]);
    let turn = |id: &str| json!({"turn_id": id, "tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": calls});
    for id in ["damaged", "good"] {
        fleet.xadd("turns", "turn", turn(id).to_string().as_bytes()).await;
    }
    let replies = fleet.replies(2).await;
    assert_eq!(outcomes(&replies["good"]), ["ok"], "{replies:?}");
    assert_eq!(replies["damaged"]["status"], "rejected", "{replies:?}");
    fleet.submit(&[("echo", json!({"text": "later"}))]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"], "its shard takes in what comes later");
    assert_eq!(fleet.ask::<u64>("XLEN", "dead", &[]).await, 1, "one refusal is written once");
    // This key never expires, so the test must delete it.
    let () = fleet.ask("DEL", "id:acme:damaged", &[]).await;
    fleet.stop().await;
}
