//! Budgets of tokens and money: what is reserved, corrected and counted, each once; with rows that switch that off.

use std::collections::BTreeSet;

use tickfleet_model::Limit;
use tickfleet_model::limit::counters::Debits;
use tickfleet_model::limit::{Every, LimitBound, LimitMatch, LimitMode, OnReach};
use tickfleet_store::{
    BudgetDebit, CounterDebits, LimitRow, Reservation, Reserved, ShortReach, Spent, Stepped, Used, Wait,
};

use super::*;

const DAY_MS: (i64, i64) = (START_MS, START_MS + 86_400_000);
const TOKENS_MAX: u64 = 1_000;

fn limit() -> Limit {
    Limit {
        name: "tokens".into(),
        matches: LimitMatch::default(),
        per: BTreeSet::new(),
        bound: LimitBound::Tokens(TOKENS_MAX),
        every: Every::Day,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 10,
    }
}

/// A task that a worker holds, with the fence of its slice.
type Held = (TurnName, String);

async fn reserve(shard: &Shard, held: &Held, number: &str, tokens: u64) -> Reserved {
    let debits = Debits { limit: 0, key: "acme".into(), amounts: vec![Some(tokens)] };
    let debit = BudgetDebit { counter: CounterDebits { row: 0, stagger_ms: 0, debits }, is_tokens: true };
    let rows = [LimitRow::new(&limit(), (0, 1), 1_000, DAY_MS)];
    let of = Reservation { task: &held.0, fence: &held.1, number };
    shard.store.reserve(of, &rows, &[debit]).await.unwrap()
}

async fn step(shard: &Shard, held: &Held, number: &str, entries: &[&str]) -> Stepped {
    let agent = AgentId::new("kelly").unwrap();
    let spent = Spent { number: number.into(), agent, input: 100, output: 10, cost: 7, day_ms: DAY_MS };
    let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
    shard.store.step(&held.0, &held.1, 0, &entries, Some(&spent)).await.unwrap()
}

async fn counted(shard: &Shard) -> u64 {
    let mut redis = shard.server.connection().await;
    let key = shard.store.keys().key("counters:tokens");
    let packed: Vec<u8> = redis::cmd("HGET").arg(key).arg("acme").query_async(&mut redis).await.unwrap();
    f64::from_le_bytes(packed[..8].try_into().unwrap()) as u64
}

/// One request from its reservation to its step, each said twice, as whoever lost a reply does.
async fn one_request(scripts: Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let held = shard.leased(1).await.remove(0);
    let same = |what: &str, found: u64, expected: u64| {
        if found == expected { Ok(()) } else { Err(format!("{what}: {found}, not {expected}")) }
    };
    for _ in 0..2 {
        assert_eq!(reserve(&shard, &held, "0.0", 400).await, Reserved::Ok(vec![]));
    }
    same("reserved", counted(&shard).await, 400)?;
    // A request that was refused gave nothing to pay for.
    let of = Reservation { task: &held.0, fence: &held.1, number: "0.0" };
    for _ in 0..2 {
        shard.store.give_back(of).await.unwrap();
    }
    same("given back", counted(&shard).await, 0)?;
    assert_eq!(reserve(&shard, &held, "0.1", 700).await, Reserved::Ok(vec![]));
    // An empty answer has no entry, and is counted all the same.
    for _ in 0..2 {
        assert_eq!(step(&shard, &held, "0.1", &[]).await, Stepped::Ok);
    }
    same("corrected", counted(&shard).await, 110)?;
    assert_eq!(reserve(&shard, &held, "0.2", 800).await, Reserved::Ok(vec![]));
    assert_eq!(step(&shard, &held, "0.2", &["a"]).await, Stepped::Ok);
    assert_eq!(step(&shard, &held, "0.2", &["a"]).await, Stepped::Already);
    same("corrected", counted(&shard).await, 220)?;
    let day = shard.store.usage(&held.0.tenant, &[START_MS]).await.unwrap().remove(0);
    let twice = Used { requests: 2, input_tokens: 200, output_tokens: 20, cost: 14 };
    if (day.total, day.agents.get("kelly")) != (twice, Some(&twice)) {
        return Err(format!("counted: {day:?}"));
    }
    Ok(())
}

#[tokio::test]
async fn a_request_is_reserved_corrected_and_counted_once_however_often_that_is_said() {
    one_request(Scripts::embedded()).await.unwrap();
}

#[tokio::test]
async fn switching_off_a_guard_of_budgets_is_noticed() {
    for (rule, what, from, to) in tickfleet_testkit::guards::BUDGETS {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let noticed = one_request(scripts).await;
        println!("{what}: {noticed:?}");
        assert!(noticed.is_err(), "rule {rule}: {what}: not noticed");
    }
}

#[tokio::test]
async fn what_a_lost_worker_has_reserved_stays_used_and_whoever_takes_over_reserves_anew() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = shard.leased(1).await.remove(0);
    assert_eq!(reserve(&shard, &held, "0.0", 300).await, Reserved::Ok(vec![]));
    // Its worker falls silent, and another takes the slice over.
    let mut reaped = 0;
    while reaped == 0 {
        shard.advance(4_000);
        shard.beat("s").await;
        shard.beat("x").await;
        reaped = shard.store.reap(10).await.unwrap().requeued;
    }
    let entry = shard.reader("x").take("ready:suspect:normal", 1).await.unwrap().remove(0);
    assert_eq!(reserve(&shard, &held, "0.0", 300).await, Reserved::Stale);
    let mine = (held.0.clone(), entry.id);
    assert_eq!(reserve(&shard, &mine, "0.0", 300).await, Reserved::Ok(vec![]));
    assert_eq!(counted(&shard).await, 600, "the first request may have been paid for");
    assert_eq!(step(&shard, &mine, "0.0", &["a"]).await, Stepped::Ok);
    assert_eq!(counted(&shard).await, 410);
}

#[tokio::test]
async fn whoever_waits_for_a_budget_is_woken_when_some_is_given_back_also_before_it_is_parked() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = shard.leased(3).await;
    assert_eq!(reserve(&shard, &held[0], "0.0", 900).await, Reserved::Ok(vec![]));
    let short = |reserved: Reserved| match reserved {
        Reserved::Short(short) => short,
        other => panic!("{other:?}"),
    };
    let first = short(reserve(&shard, &held[1], "0.0", 500).await);
    assert_eq!((first.reach, first.used, first.ends_ms, first.is_news), (ShortReach::Wait, 900, DAY_MS.1, true));
    assert_eq!(first.look_ms, START_MS + 300_000, "its limit may be raised meanwhile");
    assert!(!short(reserve(&shard, &held[1], "0.0", 500).await).is_news);
    assert_eq!(short(reserve(&shard, &held[2], "0.0", 1_001).await).reach, ShortReach::Never);
    short(reserve(&shard, &held[2], "0.0", 500).await);
    let park = |held: &Held| Wait {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        awaits: None,
        at_most: Duration::from_secs(300),
        has_begun: true,
        beside: false,
    };
    // One is parked when it is woken, the other is only about to be.
    shard.store.wait(&[park(&held[1])]).await.unwrap();
    assert_eq!(step(&shard, &held[0], "0.0", &["a"]).await, Stepped::Ok);
    shard.store.wait(&[park(&held[2])]).await.unwrap();
    let due = shard.store.due(START_MS, 10).await.unwrap().turns;
    assert_eq!(due.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&held[1].0, &held[2].0]));
}

#[tokio::test]
async fn a_day_tells_so_many_agents_apart_and_counts_all_others_as_one() {
    let text = Scripts::embedded().sabotage("4 * num(ARGV[at + 8])", "4 * 2").unwrap();
    let shard = Shard::new(RedisOptions::default(), text).await;
    let held = shard.leased(1).await.remove(0);
    for (n, agent) in ["a", "b", "c", "a"].into_iter().enumerate() {
        let agent = AgentId::new(agent).unwrap();
        let spent = Spent { number: n.to_string(), agent, input: 1, output: 0, cost: 0, day_ms: DAY_MS };
        shard.store.step(&held.0, &held.1, 0, &[], Some(&spent)).await.unwrap();
    }
    let day = shard.store.usage(&held.0.tenant, &[START_MS]).await.unwrap().remove(0);
    let of = |agent: &str| day.agents.get(agent).map(|used| used.requests);
    assert_eq!((of("a"), of("~"), of("c"), day.total.requests), (Some(2), Some(2), None, 4));
}
