//! `limits`: lists limits and bounds for a running fleet, and resets counters.

use std::fs;
use std::path::Path;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, command};
use crate::support::process::pause;

fn packed(used: f64, ends_ms: i64, began_ms: i64) -> Vec<u8> {
    [used, ends_ms as f64, began_ms as f64, 0.0].iter().flat_map(|number| number.to_le_bytes()).collect()
}

async fn now_ms(redis: &mut MultiplexedConnection) -> i64 {
    let (seconds, _): (i64, i64) = redis::cmd("TIME").query_async(redis).await.unwrap();
    seconds * 1_000
}

struct LimitsFixture {
    redis: RedisServer,
    dir: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl LimitsFixture {
    async fn new(limits: &str) -> Self {
        let redis = RedisServer::start().await;
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("limits.yaml"), format!("limits:\n{limits}")).unwrap();
        Self { redis, dir, variables: Vec::new() }
    }

    fn config(&self) -> &Path {
        self.dir.path()
    }

    fn fleet(&self) -> DevFleet {
        DevFleet::start(&["--redis-url", &self.redis.url(), "--config", self.config().to_str().unwrap()])
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        let url = self.redis.url();
        let place = ["--redis-url", &url, "--config", self.config().to_str().unwrap()];
        CommandOutput::of(command(&[args, &place].concat()).envs(self.variables.iter().copied()), "")
    }

    async fn acts(&self, shard: u32) -> Vec<Value> {
        let mut range = redis::cmd("XRANGE");
        range.arg(format!("{{tickfleet:{shard}}}:audit")).arg("-").arg("+");
        let found: Vec<(String, Vec<(String, String)>)> =
            range.query_async(&mut self.redis.connection().await).await.unwrap();
        let entries = found.iter().map(|(_, fields)| serde_json::from_str::<Value>(&fields[0].1).unwrap());
        entries.filter(|entry| entry["action"] != "TOOL_CALL").collect()
    }
}

fn limit<'a>(listing: &'a Value, name: &str) -> &'a Value {
    let found = listing["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {listing:#}"))
}

fn counters(listing: &Value, name: &str) -> Vec<String> {
    let counters = limit(listing, name)["counters"].as_array().unwrap();
    counters.iter().map(|counter| counter["counter"].as_str().unwrap().to_owned()).collect()
}

fn echoes(agent: &str, calls: usize, more: &[&str]) -> Vec<String> {
    let calls = ["--call", "echo {\"text\":\"hi\"}"].repeat(calls);
    let turn = [&["submit", "--tenant", "demo", "--agent", agent], calls.as_slice(), more].concat();
    turn.into_iter().map(str::to_owned).collect()
}

impl LimitsFixture {
    fn echo(&self, agent: &str, calls: usize, more: &[&str]) -> CommandOutput {
        let args = echoes(agent, calls, more);
        self.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

const LIMITS: &str = "
  echoes: {match: {tools: [echo]}, per: [agent], max: 2, every: day}
  texts: {match: {tools: [echo]}, per: ['argument:/text'], sum: {argument: /text/length, max: 0.5}, every: 1h, mode: shadow}
  of_gold: {match: {plans: [gold]}, max: 9, every: 1h, on_reach: reject}
  sleeps: {match: {tools: [sleep]}, per: [tool], max: 9, every: 1h}
";

fn with_a_turn_that_waits(place: &LimitsFixture) -> Value {
    place.echo("fran", 1, &["--wait"]).exits(0);
    place.echo("kelly", 2, &["--wait"]).exits(0);
    place.echo("kelly", 1, &["--turn-id", "third"]).exits(0);
    loop {
        let listing = place.run(&["limits", "--json"]).exits(0).json();
        if limit(&listing, "echoes")["counters"][0]["waiting"] == 1 {
            return listing;
        }
        pause();
    }
}

#[tokio::test]
async fn the_fullest_counters_are_listed_and_filtered_by_tenant_or_agent() {
    let place = LimitsFixture::new(LIMITS).await;
    let _fleet = place.fleet();
    let listing = with_a_turn_that_waits(&place);
    assert_eq!(counters(&listing, "echoes"), ["demo:kelly", "demo:fran"], "the fullest first: {listing:#}");
    let fullest = &limit(&listing, "echoes")["counters"][0];
    assert_eq!((&fullest["used"], &fullest["allowed"]), (&json!(2), &json!(2)));
    assert!(fullest["window_ends_ms"].as_i64() > listing["now_ms"].as_i64(), "{listing:#}");
    assert_eq!(limit(&listing, "texts")["mode"], "shadow");
    assert_eq!(limit(&listing, "sleeps")["total"], 0);
    let story = place.run(&["explain", "demo:third"]).exits(0);
    story.says("the limit echoes is used up (2 calls per agent in a day; 2 used by demo:kelly)");
    let said = place.run(&["limits", "--limit", "echoes"]).exits(0);
    said.says("echoes: 2 calls per agent in a day; calls over the limit wait").says("2 of 2");
    assert!(!said.stdout.contains("sleeps"), "{}", said.stdout);
    let said = place.run(&["limits", "--top", "1"]).exits(0);
    said.says("1 of 2 counters.").says("No calls counted recently.");

    let of_fran = place.run(&["limits", "--tenant", "demo", "--agent", "fran", "--json"]).exits(0).json();
    assert_eq!(counters(&of_fran, "echoes"), ["demo:fran"]);
    assert!(!of_fran.to_string().contains("of_gold"), "{of_fran:#}");
    place.run(&["limits", "--limit", "of_gold", "--tenant", "demo"]).exits(0).says("unknown limit");
    let of_atlas = place.run(&["limits", "--tenant", "atlas-ux", "--limit", "echoes", "--json"]).exits(0).json();
    assert!(counters(&of_atlas, "echoes").is_empty(), "{of_atlas:#}");
}

/// (counter, used, allowed)
fn cap(listing: &Value, name: &str) -> Vec<(String, Value, Value)> {
    let found = listing["caps"].as_array().unwrap().iter().find(|cap| cap["name"] == name);
    let counters = found.unwrap_or_else(|| panic!("no {name} in {listing:#}"))["counters"].as_array().unwrap();
    let of = |counter: &Value| {
        (counter["counter"].as_str().unwrap().to_owned(), counter["used"].clone(), counter["allowed"].clone())
    };
    counters.iter().map(of).collect()
}

#[tokio::test]
async fn caps_are_listed_with_their_heaviest_users() {
    let place = LimitsFixture::new(" {}").await;
    fs::write(place.config().join("tickfleet.yaml"), "caps: {tick: 1h, max_calls_per_tick: 2}\n").unwrap();
    let _fleet = place.fleet();
    place.run(&["tenant", "set", "demo", "--max-actions-per-day", "50"]).exits(0);
    place.echo("fran", 1, &["--wait"]).exits(0);
    place.echo("kelly", 2, &["--wait"]).exits(0);
    place.echo("kelly", 1, &[]).exits(0);
    let listing = loop {
        let listing = place.run(&["limits", "--json"]).exits(0).json();
        if listing["caps"][0]["counters"][0]["waiting"] == 1 {
            break listing;
        }
        pause();
    };
    let counter = |name: &str, used, allowed| (name.to_owned(), json!(used), json!(allowed));
    let ticks = [counter("demo:kelly", 2, 2), counter("demo:fran", 1, 2)];
    assert_eq!(cap(&listing, "max_calls_per_tick"), ticks);
    assert_eq!(cap(&listing, "max_actions_per_day").len(), 2);
    assert_eq!(cap(&listing, "max_actions_per_day of the tenant"), [counter("demo", 3, 50)]);
    let of_fran = place.run(&["limits", "--tenant", "demo", "--agent", "fran", "--json"]).exits(0).json();
    assert_eq!(cap(&of_fran, "max_calls_per_tick"), ticks[1..]);
    let said = place.run(&["limits", "--limit", "max_calls_per_tick"]).exits(0);
    said.says("max_calls_per_tick: 2 calls per agent in a tick").says("2 of 2");
}

#[tokio::test]
async fn a_reset_releases_waiting_turns_and_is_audited() {
    let place = LimitsFixture::new(LIMITS).await;
    let _fleet = place.fleet();
    let before = with_a_turn_that_waits(&place);
    let why = "the import was ours, token=abc";
    let said = place.run(&["limits", "reset", "echoes", "demo:kelly", "--reason", why, "--by", "anna"]).exits(0);
    said.says("2 of 2 used before, 0 now").says("1 waiting turn is checked now");
    let story = loop {
        let story = place.run(&["explain", "demo:third", "--json"]).exits(0).json();
        if story["state"] == "done" {
            break story;
        }
        pause();
    };
    assert_eq!(story["audit"]["entries"].as_array().map(Vec::len), Some(1), "the reset is none of its calls");
    let after = place.run(&["limits", "--limit", "echoes", "--json"]).exits(0).json();
    assert_eq!((&after["limits"][0]["counters"][0]["used"], counters(&after, "echoes").len()), (&json!(1), 2));
    let top = place.run(&["top", "--json"]).exits(0).json();
    assert_eq!(top["tools"]["sampled"], false, "no call that nobody saw");

    let acts = place.acts(0).await;
    let [act] = acts.as_slice() else { panic!("{acts:#?}") };
    assert_eq!((&act["action"], &act["actor_type"]), (&json!("LIMIT_RESET"), &json!("operator")));
    assert_eq!((&act["actor_id"], &act["tenant"]), (&json!("anna"), &json!("demo")));
    assert_eq!(act["entity_id"], "echoes@demo:kelly");
    let meta = &act["meta"];
    assert_eq!((&meta["used_before"], &meta["unit"]), (&json!(2), &json!("calls")));
    assert_eq!(meta["window_ends_ms"], limit(&before, "echoes")["counters"][0]["window_ends_ms"]);
    assert_eq!(meta["reason"], "the import was ours, token=[REDACTED]");
}

#[tokio::test]
async fn a_reset_with_a_wrong_name_or_no_reason_changes_nothing() {
    let place = LimitsFixture::new(LIMITS).await;
    let mut redis = place.redis.connection().await;
    let counter = packed(2.0, now_ms(&mut redis).await + 60_000, 0);
    let key = "{tickfleet:0}:counters:echoes";
    let () = redis::cmd("HSET").arg(key).arg("demo:kelly").arg(&counter).query_async(&mut redis).await.unwrap();
    let reset =
        |limit: &str, counter: &str| place.run(&["limits", "reset", limit, counter, "--reason", "why", "--by", "anna"]);
    reset("echos", "demo:kelly").exits(1).prints_error("unknown limit \"echos\". Did you mean \"echoes\"?");
    let said = reset("echoes", "demo:kely").exits(1);
    said.prints_error("echoes has no counter \"demo:kely\"").prints_error("Did you mean \"demo:kelly\"?");
    reset("sleeps", "sleep").exits(1).prints_error("no calls were counted recently");
    place.run(&["limits", "--limit", "slepes"]).exits(1).prints_error("Did you mean \"sleeps\"?");
    place.run(&["limits", "--tenant", "nobody"]).exits(1).prints_error("unknown tenant \"nobody\"");

    let of_kelly = ["limits", "reset", "echoes", "demo:kelly"];
    place.run(&of_kelly).exits(2).prints_error("--reason");
    for reason in [" ".to_owned(), "x".repeat(1_001)] {
        place.run(&[&of_kelly[..], &["--reason", &reason]].concat()).exits(2);
    }
    let nobody = CommandOutput::of(
        command(&[&of_kelly[..], &["--reason", "why", "--redis-url", &place.redis.url()]].concat()).env_remove("USER"),
        "",
    );
    nobody.exits(2).prints_error("--by");
    let kept: Vec<u8> = redis::cmd("HGET").arg(key).arg("demo:kelly").query_async(&mut redis).await.unwrap();
    assert_eq!(kept, counter);
    assert!(place.acts(0).await.is_empty());
}

#[tokio::test]
async fn a_listing_reads_a_bounded_number_of_counters_and_reports_it() {
    let place = LimitsFixture::new("  echoes: {per: [user], max: 9, every: 1h}\n").await;
    let mut redis = place.redis.connection().await;
    let ends_ms = now_ms(&mut redis).await + 60_000;
    let mut pipe = redis::pipe();
    for number in 0..12_000 {
        let counter = packed(f64::from(number % 9), ends_ms, 0);
        pipe.cmd("HSET").arg("{tickfleet:0}:counters:echoes").arg(format!("demo:u{number}")).arg(counter).ignore();
    }
    pipe.exec_async(&mut redis).await.unwrap();

    let listing = place.run(&["limits", "--json"]).exits(0).json();
    let many = limit(&listing, "echoes");
    assert_eq!((&many["total"], &many["complete"]), (&many["counters_read"], &json!(false)));
    let counters_read = many["counters_read"].as_u64().unwrap();
    assert!((10_000..11_500).contains(&counters_read), "{counters_read}");
    assert_eq!((many["counters"].as_array().map(Vec::len), &many["counters"][9]["used"]), (Some(10), &json!(8)));
    place.run(&["limits"]).exits(0).says("counters were read; others may be fuller");
}

const SUMS: &str = "{tickfleet:1}:counters:sums";

/// No fleet runs. Both shards have a counter of the whole fleet.
async fn of_two_shards() -> (LimitsFixture, i64) {
    let limits = "  all: {max: 10, every: 1h}\n  sums: {per: [user], sum: {argument: /n, max: 5}, every: 1h}\n";
    let mut place = LimitsFixture::new(limits).await;
    place.variables.push(("TICKFLEET_REDIS_SHARDS", "2"));
    let mut redis = place.redis.connection().await;
    let now_ms = now_ms(&mut redis).await;
    let mut pipe = redis::pipe();
    for (shard, used) in [(0, 5.0), (1, 1.0)] {
        let counter = packed(used, now_ms + 60_000, 0);
        pipe.cmd("HSET").arg(format!("{{tickfleet:{shard}}}:counters:all")).arg("").arg(counter).ignore();
    }
    pipe.cmd("HSET").arg(SUMS).arg("demo:u1").arg(packed(4_500_000.0, now_ms + 60_000, 7)).ignore();
    pipe.cmd("HSET").arg(SUMS).arg("demo:ended").arg(packed(4_000_000.0, now_ms - 1_000, 0)).ignore();
    pipe.exec_async(&mut redis).await.unwrap();
    (place, now_ms)
}

#[tokio::test]
async fn a_fleet_counter_is_summed_over_all_shards() {
    let (place, _) = of_two_shards().await;
    let listing = place.run(&["limits", "--json"]).exits(0).json();
    let all = &limit(&listing, "all")["counters"][0];
    assert_eq!((&all["used"], &all["allowed"]), (&json!(6), &json!(10)));
    assert_eq!((&all["full_in"], &all["shares"]), (&json!(1), &json!(2)));
    assert_eq!(counters(&listing, "sums"), ["demo:u1", "demo:ended"]);
    let sums = limit(&listing, "sums")["counters"].as_array().unwrap();
    assert_eq!((&sums[0]["used"], &sums[0]["allowed"]), (&json!(4.5), &json!(5)));
    assert_eq!((&sums[1]["used"], &sums[1]["window_ends_ms"]), (&json!(0), &Value::Null), "its window has ended");
    let said = place.run(&["limits"]).exits(0);
    said.says("(all calls)").says("6 of 10, full in 1 of 2 shards");
    said.says("4.5 of 5");
}

#[tokio::test]
async fn a_reset_reaches_every_shard() {
    let (place, now_ms) = of_two_shards().await;
    let reset = |name: &[&str]| {
        let args = [&["limits", "reset"], name, &["--reason", "why", "--by", "anna", "--json"]].concat();
        place.run(&args).exits(0).json()
    };
    let all = reset(&["all"]);
    assert_eq!((&all["used_before"], &all["shards"]), (&json!(6), &json!([0, 1])));
    for (shard, used) in [(0, 5), (1, 1)] {
        let acts = place.acts(shard).await;
        assert_eq!((acts.len(), &acts[0]["meta"]["used_before"]), (1, &json!(used)));
        assert_eq!(acts[0]["tenant"], Value::Null, "every tenant's calls debit it");
    }
    assert_eq!(reset(&["sums", "demo:u1"])["used_before"], 4.5);
    let mut redis = place.redis.connection().await;
    let kept: Vec<u8> = redis::cmd("HGET").arg(SUMS).arg("demo:u1").query_async(&mut redis).await.unwrap();
    assert_eq!(kept[..16], packed(0.0, now_ms + 60_000, 7)[..16], "its window ends as before");
    let began_ms = f64::from_le_bytes(kept[16..24].try_into().unwrap());
    assert!(began_ms >= now_ms as f64, "it began with the reset, not at 7 ms: {began_ms}");
    assert_eq!(reset(&["sums", "demo:ended"])["used_before"], 0);
    let is_armed: bool = redis::cmd("EXISTS").arg("{tickfleet:1}:timers").query_async(&mut redis).await.unwrap();
    assert!(!is_armed, "nothing waits, so nothing is to be looked at");
    let acts = place.acts(1).await;
    let before: Vec<&Value> = acts.iter().map(|act| &act["meta"]["used_before"]).collect();
    assert_eq!(before, [&json!(1), &json!(4_500_000), &json!(0)]);
    assert_eq!((&acts[1]["meta"]["unit"], &acts[1]["tenant"]), (&json!("millionths"), &json!("demo")));
}

#[tokio::test]
async fn used_concurrency_slots_are_listed_with_the_tenants_own_limit() {
    let limits = "  at_once: {match: {tools: [sleep]}, per: [tenant], concurrent: 9}\n  idle: {concurrent: 3}\n";
    let place = LimitsFixture::new(limits).await;
    let _fleet = place.fleet();
    place.run(&["tenant", "set", "demo", "--limit", "at_once=1"]).exits(0);
    for turn in ["one", "two"] {
        let call =
            ["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", turn, "--call", "sleep {\"ms\":20000}"];
        place.run(&call).exits(0);
    }
    let listing = loop {
        let listing = place.run(&["limits", "--json"]).exits(0).json();
        if limit(&listing, "at_once")["counters"][0]["waiting"] == 1 {
            break listing;
        }
        pause();
    };
    let held = &limit(&listing, "at_once")["counters"][0];
    assert_eq!((&held["counter"], &held["used"], &held["allowed"]), (&json!("demo"), &json!(1), &json!(1)));
    let said = place.run(&["limits"]).exits(0);
    said.says("1 of 1").says("when calls end").says("idle: 3 calls at once; calls over the limit wait");
    let story = place.run(&["explain", "demo:two"]).exits(0);
    story.says("all slots of the limit at_once are taken (1 call at once per tenant; 1 held by demo)");
    let reset = ["limits", "reset", "at_once", "demo", "--reason", "why", "--by", "anna"];
    place.run(&reset).exits(1).prints_error("each releases its slot when it ends");
    for turn in ["demo:one", "demo:two"] {
        place.run(&["cancel", turn]).exits(0);
    }
    while limit(&place.run(&["limits", "--json"]).exits(0).json(), "at_once")["total"] != 0 {
        pause();
    }
    place.run(&["limits", "--limit", "at_once"]).exits(0).says("No slots in use.");
}
