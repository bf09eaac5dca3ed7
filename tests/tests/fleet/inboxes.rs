//! Bounds on unread replies. One tenant cannot use up the bounds of another.

use serde_json::{Value, json};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;

fn plan() -> Plan {
    Plan {
        store: StoreOptions { lease_ms: 2_000, inbox_unread_max: 5, inboxes_max: 4, ..StoreOptions::default() },
        policy: |policy| {
            let agents = policy.agents.clone();
            policy.tenants.insert(TenantId::new("bolt").unwrap(), TenantPolicy::default());
            assert!(agents.contains_key(&AgentId::new("kelly").unwrap()));
        },
        ..Plan::default()
    }
}

fn echo(text: &str) -> Value {
    json!([{"id": "c", "name": "echo", "arguments": {"text": text}}])
}

async fn keys(fleet: &Fleet, prefix: &str) -> Vec<String> {
    let pattern = fleet.store.keys().key(format!("{prefix}*")).replace(['{', '}'], "?");
    let mut command = redis::cmd("SCAN");
    command.arg(0).arg("MATCH").arg(pattern).arg("COUNT").arg(100_000);
    let (_, found): (String, Vec<String>) = command.query_async(&mut fleet.server.connection().await).await.unwrap();
    found
}

#[tokio::test]
async fn junk_turns_cannot_use_up_the_inboxes_of_other_tenants() {
    let mut fleet = Fleet::start(plan()).await;
    for i in 0..1_100 {
        let junk = format!(r#"{{"tenant":"nobody","agent":"kelly","reply_to":"junk{i}","calls":[]}}"#);
        fleet.xadd("turns", "turn", junk.as_bytes()).await;
    }
    for i in 0..50 {
        let junk = format!(r#"{{"tenant":"acme","agent":"kelly","reply_to":"junk{i}","calls":[]}}"#);
        fleet.xadd("turns", "turn", junk.as_bytes()).await;
    }
    fleet.until("all are refused", async |fleet| fleet.ask::<u64>("XLEN", "dead", &[]).await >= 1_150).await;
    assert_eq!(keys(&fleet, "replies:nobody").await, Vec::<String>::new());
    assert_eq!(keys(&fleet, "replies:acme").await.len(), 4, "its own bound");
    fleet.submit_turn(json!({"tenant": "bolt", "turn_id": "t", "calls": echo("hi")})).await;
    let reply = fleet.reply_in("bolt:box", PATIENCE).await.expect("a reply");
    assert_eq!(outcomes(&reply), ["ok"]);
    fleet.submit_turn(json!({"turn_id": "t", "reply_to": "junk0", "calls": echo("hi")})).await;
    fleet.until("it has its reply", async |fleet| fleet.ask::<u64>("XLEN", "replies:acme:junk0", &[]).await == 2).await;
    fleet.stop().await;
}

async fn turn(fleet: &Fleet, inbox: &mut tickfleet_tests::inbox::Inbox, id: &str) -> (String, String) {
    fleet.submit_turn(json!({"turn_id": id, "calls": echo(id)})).await;
    let (entry, reply) = inbox.next_entry().await;
    assert_eq!(reply["turn_id"], id, "{reply}");
    (entry, reply["status"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn only_a_reader_that_reports_its_position_keeps_its_inbox_from_filling() {
    let fleet = Fleet::start(plan()).await;
    let mut inbox = fleet.inbox("box").await;
    for i in 0..20 {
        let (entry, status) = turn(&fleet, &mut inbox, &format!("t{i}")).await;
        assert_eq!(status, "done", "turn {i}");
        let _: String = fleet.ask("SET", "read:acme:box", &[&entry, "EX", "600"]).await;
    }
    assert!(fleet.ask::<u64>("XLEN", "replies:acme:box", &[]).await <= 6, "what was read made room");
    let mut statuses = Vec::new();
    for i in 20..27 {
        statuses.push(turn(&fleet, &mut inbox, &format!("t{i}")).await.1);
    }
    let done = statuses.iter().filter(|status| *status == "done").count();
    assert!((4..=5).contains(&done), "{statuses:?}");
    assert_eq!(statuses.last().map(String::as_str), Some("rejected"));
    assert!(fleet.ask::<u64>("XLEN", "replies:acme:box", &[]).await >= 7);
    for beyond in ["99999999999999999999999-0", "9999999999999-0"] {
        let _: String = fleet.ask("SET", "read:acme:box", &[beyond, "EX", "600"]).await;
        assert_eq!(turn(&fleet, &mut inbox, beyond).await.1, "rejected");
    }
    assert!(fleet.ask::<u64>("XLEN", "replies:acme:box", &[]).await >= 9);
    let _: u64 = fleet.ask("DEL", "read:acme:box", &[]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn the_janitor_trims_other_inboxes_despite_a_damaged_one() {
    let fleet = Fleet::start(plan()).await;
    let mut inbox = fleet.inbox("box").await;
    let (entry, _) = turn(&fleet, &mut inbox, "t").await;
    // The janitor starts with the inbox that was used least recently, which is the damaged inbox.
    let _: String = fleet.ask("SET", "replies:acme:bad", &["odd"]).await;
    let _: u64 = fleet.ask("ZADD", "inboxes:acme", &["1", "bad"]).await;
    let _: String = fleet.ask("SET", "read:acme:box", &[&entry, "EX", "600"]).await;
    fleet.until("it is trimmed", async |fleet| fleet.ask::<u64>("XLEN", "replies:acme:box", &[]).await == 0).await;
    for key in ["replies:acme:bad", "read:acme:box"] {
        let _: u64 = fleet.ask("DEL", key, &[]).await;
    }
    fleet.stop().await;
}

#[tokio::test]
async fn acknowledged_group_reads_keep_an_inbox_from_filling() {
    let fleet = Fleet::start(plan()).await;
    let mut inbox = fleet.inbox("box").await;
    let mut connection = fleet.server.connection().await;
    let key = fleet.store.keys().key("replies:acme:box");
    let group = redis::cmd("XGROUP").arg(&["CREATE", &key, "readers", "0", "MKSTREAM"]).to_owned();
    let () = group.query_async(&mut connection).await.unwrap();
    for i in 0..20 {
        let (entry, status) = turn(&fleet, &mut inbox, &format!("t{i}")).await;
        assert_eq!(status, "done", "turn {i}");
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", "readers", "r1", "COUNT", "10", "STREAMS", &key, ">"]);
        let _: redis::Value = read.query_async(&mut connection).await.unwrap();
        let acked: u64 = fleet.ask("XACK", "replies:acme:box", &["readers", &entry]).await;
        assert_eq!(acked, 1);
    }
    fleet.stop().await;
}
