//! The producer's client with a real Redis. The tests write replies in the format of commits.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tickfleet_client::operate::Operator;
use tickfleet_client::verbs::{ToolPaused, pause_tool, resume_tool};
use tickfleet_client::{Client, Reply, SubmitError, private_inbox};
use tickfleet_core::audit::AuditAppend;
use tickfleet_core::settings::{ChangeSetting, Origin};
use tickfleet_core::turn::state::Finished;
use tickfleet_core::{EntryId, Transaction};
use tickfleet_model::policy::{Pause, Paused, PausedTool};
use tickfleet_model::{AgentId, InboxName, Redactor, TenantId, Turn, TurnId, limits};
use tickfleet_protocol::parse_turn;
use tickfleet_store::{DeadItem, HandleResult, Inbound, StoreError, StoreOptions, Submission, TurnName};
use tickfleet_testkit::RedisServer;

const SOON: Duration = Duration::from_secs(60);
const NOT_LONG: Duration = Duration::from_millis(20);

struct ClientFixture {
    server: RedisServer,
    client: Client,
    redis: MultiplexedConnection,
    tenant: TenantId,
    inbox: InboxName,
}

impl ClientFixture {
    async fn new(options: StoreOptions) -> Self {
        let server = RedisServer::start().await;
        let client = Client::connect(&server.url(), options).await.unwrap();
        let redis = server.connection().await;
        let tenant = TenantId::new("acme").unwrap();
        Self { server, client, redis, tenant, inbox: InboxName::new("box").unwrap() }
    }

    fn turn(&self, id: Option<&str>) -> Turn {
        let json = r#"{"tenant":"acme","agent":"kelly","reply_to":"box","calls":[{"name":"echo"}]}"#;
        Turn { id: id.map(|id| TurnId::new(id).unwrap()), ..parse_turn(json.as_bytes()).unwrap() }
    }

    fn key(&self) -> String {
        self.client.store(&self.tenant).keys().replies(&self.tenant, &self.inbox)
    }

    async fn reply(&mut self, turn: &str, seq: u64) {
        let () = self.redis.xadd(self.key(), "*", &[("reply", json(turn)), ("seq", seq.to_string())]).await.unwrap();
    }

    async fn unread(&mut self) -> usize {
        self.redis.xlen(self.key()).await.unwrap()
    }
}

fn json(turn: &str) -> String {
    format!(r#"{{"turn_id":"{turn}","tenant":"acme","agent":"kelly","status":"done","dialect":"raw","results":[]}}"#)
}

fn id(reply: &Reply) -> &str {
    reply.id().unwrap().as_str()
}

#[tokio::test]
async fn replies_arrive_in_order_and_are_removed_when_the_next_is_requested() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    world.reply("t1", 1).await;
    world.reply("t2", 2).await;
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t1");
    assert_eq!(world.unread().await, 2, "whoever crashes now finds both again");
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t2");
    assert!(replies.next(NOT_LONG).await.unwrap().is_none());
    assert_eq!(world.unread().await, 0);

    world.reply("t3", 3).await;
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t3");
    replies.finish().await.unwrap();
    assert_eq!(world.unread().await, 0);
}

#[tokio::test]
async fn a_waiting_reader_gets_a_new_reply_at_once() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    let waiting = tokio::spawn(async move { replies.next(SOON).await });
    world.reply("t1", 1).await;
    assert_eq!(id(&waiting.await.unwrap().unwrap().unwrap()), "t1");
}

#[tokio::test]
async fn a_gap_in_sequence_numbers_is_reported() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    world.reply("t1", 4).await;
    world.reply("t2", 7).await;
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    let one = replies.next(SOON).await.unwrap().unwrap();
    let two = replies.next(SOON).await.unwrap().unwrap();
    assert_eq!([(one.seq, one.missed), (two.seq, two.missed)], [(Some(4), 0), (Some(7), 2)]);
}

/// Redis has lost the inbox, and Redis' clock is behind. So new replies have lower entry IDs than earlier replies.
#[tokio::test]
async fn replies_with_lower_ids_than_the_last_read_are_still_read() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    world.reply("t-1", 1).await;
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t-1");
    let () = world.redis.del(world.key()).await.unwrap();
    for (number, entry) in [(1, "5-0"), (2, "6-0")] {
        let fields = [("reply", json(&format!("low-{number}"))), ("seq", number.to_string())];
        let () = world.redis.xadd(world.key(), entry, &fields).await.unwrap();
    }
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "low-1");
    world.reply("t-4", 4).await;
    let () = world.redis.xadd(world.key(), "*", &[("reply", json("t-5")), ("seq", "5".into())]).await.unwrap();
    let mut read = Vec::new();
    while let Some(reply) = replies.next(SOON).await.unwrap() {
        read.push(id(&reply).to_owned());
        if read.len() == 3 {
            break;
        }
    }
    assert_eq!(read, ["low-2", "t-4", "t-5"]);
    replies.finish().await.unwrap();
    assert_eq!(world.unread().await, 0);
}

#[tokio::test]
async fn a_sequence_gap_makes_the_reader_find_replies_with_lower_ids() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    // The test sets entry IDs, because automatic IDs of the same millisecond could repeat.
    let add = |turn: &str, seq: u64| [("reply", json(turn)), ("seq", seq.to_string())];
    let () = world.redis.xadd(world.key(), "10-0", &add("t-1", 1)).await.unwrap();
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t-1");
    let () = world.redis.del(world.key()).await.unwrap();
    let () = world.redis.xadd(world.key(), "5-0", &add("low-2", 2)).await.unwrap();
    let () = world.redis.xadd(world.key(), "20-0", &add("t-3", 3)).await.unwrap();
    let mut read = Vec::new();
    for _ in 0..2 {
        read.push(id(&replies.next(SOON).await.unwrap().unwrap()).to_owned());
    }
    assert_eq!(read, ["t-3", "low-2"]);
}

#[tokio::test]
async fn awaiting_a_reply_keeps_the_replies_before_it() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    for (turn, seq) in [("t1", 1), ("t2", 2), ("t3", 3)] {
        world.reply(turn, seq).await;
    }
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    let wanted = TurnId::new("t2").unwrap();
    assert_eq!(id(&replies.await_reply(&wanted, SOON).await.unwrap().unwrap()), "t2");
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t1");
    assert_eq!(world.unread().await, 3);
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t3");
    replies.finish().await.unwrap();
    assert_eq!(world.unread().await, 0);
}

#[tokio::test]
async fn a_reply_that_is_not_in_the_inbox_is_read_from_the_turns_record() {
    let world = ClientFixture::new(StoreOptions::default()).await;
    let store = world.client.store(&world.tenant);
    let name = TurnName::parse("acme:mine").unwrap();
    let finished = Finished {
        admitted_ms: 1,
        ended_ms: 2,
        digest: "d".into(),
        crashes: 0,
        retries: 0,
        reason: None,
        canceled: None,
        agent: None,
        notes: Vec::new(),
        reply: json("mine"),
    };
    let mut transaction = Transaction::new(store.versions().draw());
    transaction.put(&name.finished(), &finished);
    store.seam().commit(&[transaction]).await.unwrap().results.remove(0).unwrap();
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    let wanted = TurnId::new("mine").unwrap();
    let reply = replies.await_reply(&wanted, SOON).await.unwrap().unwrap();
    assert_eq!((id(&reply), reply.seq), ("mine", None));
    let other = TurnId::new("other").unwrap();
    assert!(replies.await_reply(&other, NOT_LONG).await.unwrap().is_none());
}

#[tokio::test]
async fn an_unreadable_reply_is_reported_and_skipped() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    let () = world.redis.xadd(world.key(), "*", &[("reply", "{"), ("seq", "1")]).await.unwrap();
    world.reply("t2", 2).await;
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    assert!(matches!(replies.next(SOON).await, Err(StoreError::Reply { .. })));
    assert_eq!(id(&replies.next(SOON).await.unwrap().unwrap()), "t2");
}

#[tokio::test]
async fn a_private_inbox_is_deleted_with_all_its_keys() {
    let mut world = ClientFixture::new(StoreOptions::default()).await;
    world.inbox = private_inbox("test");
    world.reply("t1", 1).await;
    let replies = world.client.replies(&world.tenant, &world.inbox);
    replies.forget().await.unwrap();
    let keys: Vec<String> = world.redis.keys("*replies*").await.unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn submit_many_returns_answers_in_order_across_shards() {
    let world = ClientFixture::new(StoreOptions { shards: 3, ..StoreOptions::default() }).await;
    let turns: Vec<Turn> = (0..600)
        .map(|n| Turn {
            tenant: TenantId::new(format!("tenant-{}", n % 7)).unwrap(),
            ..world.turn(Some(&format!("id-{n}")))
        })
        .collect();
    let answers = world.client.submit_many(turns).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.as_ref().unwrap().turn_id.as_str(), format!("id-{n}"));
    }
    let mut redis = world.server.connection().await;
    let mut found = 0;
    for store in world.client.stores() {
        let length: usize = redis.xlen(store.keys().key("turns")).await.unwrap();
        assert!(length > 0, "a shard got nothing");
        found += length;
    }
    assert_eq!(found, 600);
}

#[tokio::test]
async fn a_repeated_submission_is_a_duplicate_and_a_changed_one_a_conflict() {
    let world = ClientFixture::new(StoreOptions { turns_max: 2, ..StoreOptions::default() }).await;
    let first = world.client.submit(world.turn(Some("mine"))).await.unwrap();
    let again = world.client.submit(world.turn(Some("mine"))).await.unwrap();
    assert_eq!((first.duplicate, again.duplicate), (false, true));
    let mut other = world.turn(Some("mine"));
    other.calls[0].tool = "sleep".into();
    assert!(matches!(world.client.submit(other).await, Err(SubmitError::Conflict(id)) if id.as_str() == "mine"));
    let minted = world.client.submit(world.turn(None)).await.unwrap();
    assert!(minted.turn_id.as_str().starts_with('t'), "{minted:?}");
    assert!(matches!(world.client.submit(world.turn(None)).await, Err(SubmitError::QueueFull)));
    let empty = Turn { calls: Vec::new(), ..world.turn(None) };
    assert!(matches!(world.client.submit(empty).await, Err(SubmitError::Invalid(_))));
}

#[tokio::test]
async fn a_client_with_a_different_shard_count_is_rejected() {
    let world = ClientFixture::new(StoreOptions::default()).await;
    world.client.stores()[0].announce("digest", None, false).await.unwrap();
    let error = Client::connect(&world.server.url(), StoreOptions { shards: 2, ..StoreOptions::default() }).await;
    assert!(matches!(error, Err(StoreError::Shards { ours: 2, .. })), "{error:?}");
}

fn no_entry() -> AuditAppend {
    AuditAppend { text: "".into(), entries_max: 1 }
}

#[tokio::test]
async fn a_tool_pause_reports_full_shards_and_applies_to_the_others() {
    let world = ClientFixture::new(StoreOptions { shards: 2, ..StoreOptions::default() }).await;
    let shards = world.client.stores().to_vec();
    let pause = Pause { by: "anna".into(), reason: "many".into(), since_ms: 1 };
    for n in 0..limits::PAUSES_MAX {
        let who = Paused { tenant: world.tenant.clone(), agent: Some(AgentId::new(format!("a{n}")).unwrap()) };
        let origin = Origin::Operator(no_entry());
        shards[0].decide(ChangeSetting::pause(who, &pause, origin)).await.unwrap();
    }
    let tool = PausedTool { tenant: None, tool: "post".into() };
    let redactor = Redactor::default();
    let operator = Operator { by: "anna", reason: "it moves", redactor: &redactor };
    for changed in [true, false] {
        let set = pause_tool(&shards, &tool, operator).await.unwrap();
        assert_eq!(set, ToolPaused { changed, full: vec![0], paused: 1 });
        let reported = set.incomplete_message().unwrap();
        assert!(reported.contains("in shard 0") && reported.contains("it is paused in the others"), "{reported}");
    }
    let paused = shards[1].run_time_config().await.unwrap().tool_pauses;
    assert_eq!(paused.keys().collect::<Vec<_>>(), [&tool]);
    assert!(resume_tool(&shards, &tool, operator).await.unwrap());
    assert_eq!(ToolPaused { changed: true, full: Vec::new(), paused: 2 }.incomplete_message(), None);
}

#[tokio::test]
async fn a_dead_letter_is_not_replayed_into_a_full_inbox() {
    let mut world = ClientFixture::new(StoreOptions { inbox_unread_max: 1, ..StoreOptions::default() }).await;
    let store = world.client.store(&world.tenant).clone();
    let letter: String = world.redis.xadd(store.keys().key("dead"), "*", &[("any", "letter")]).await.unwrap();
    world.reply("t1", 1).await;
    let new = Submission {
        tenant: world.tenant.clone(),
        turn: Some(TurnId::new("again").unwrap()),
        digest: "d".into(),
        reply_to: Some(world.inbox.clone()),
        payload: "{}".into(),
    };
    let replay =
        async || store.replay(DeadItem::Letter(EntryId::new(&letter)), Inbound::Turns, &new, no_entry()).await.unwrap();
    assert_eq!(replay().await, HandleResult::InboxFull);
    assert_eq!(world.redis.xlen::<_, usize>(store.keys().key("turns")).await.unwrap(), 0);
    let mut replies = world.client.replies(&world.tenant, &world.inbox);
    while replies.next(NOT_LONG).await.unwrap().is_some() {}
    assert_eq!(replay().await, HandleResult::Ok);
    assert_eq!(replay().await, HandleResult::Again);
}
