//! Calls that wait for somebody else and have begun nothing give their places of limits back, and take them again before they go
//! on; with rows that switch that off.

use tickfleet_model::limit::counters::Debits;
use tickfleet_model::limit::{Every, LimitBound, LimitMatch, LimitMode, OnReach};
use tickfleet_model::{AgentId, Limit};
use tickfleet_store::fields::turn;
use tickfleet_store::{
    AskApproval, Asked, CounterDebits, JudgedBy, Lane, LanePolicy, LaneRelease, LaneTurns, LimitRow, Promoted,
    ReleaseReply, Released, SweepAt, Wait, WaitingTurn,
};
use tickfleet_testkit::guards::PLACES;

use super::*;

const BY: Generations = Generations { policy: 1, tenants: 0 };
/// How long a call waits where nobody wakes it.
const AT_MOST_MS: i64 = 2_000;
const LANE: &str = "one@x";

/// So many places, and so many calls in a day.
fn rows(places: u64) -> [LimitRow; 2] {
    let limit = |name: &str, bound, every| Limit {
        name: name.into(),
        matches: LimitMatch::default(),
        per: std::collections::BTreeSet::new(),
        bound,
        every,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1,
    };
    let held = limit("one", LimitBound::Concurrent(places), Every::Held);
    let day = limit("few", LimitBound::Calls(50), Every::Day);
    let ends_ms = START_MS + 86_400_000;
    [LimitRow::new(&held, (0, 1), 1_000, (0, 0)), LimitRow::new(&day, (0, 1), 1_000, (START_MS, ends_ms))]
}

/// Both calls of each turn need a place, and are calls of the day.
fn counters() -> Vec<CounterDebits> {
    let debit = |row: usize| {
        let debits = Debits { limit: row, key: "x".into(), amounts: vec![Some(1), Some(1)] };
        CounterDebits { row, stagger_ms: 0, debits }
    };
    vec![debit(0), debit(1)]
}

type Held = (TurnName, String);

/// These turns come, and what they wait for is limited to so many places.
async fn come(scripts: &Scripts, turns: usize, places: u64) -> Shard {
    let shard = Shard::new(RedisOptions::default(), scripts.clone()).await;
    let mut turns = shard.inbound(turns).await;
    turns.iter_mut().for_each(|turn| turn.counters = counters());
    shard.store.admit(BY, &[row()], &rows(places), &turns).await.unwrap();
    shard.beat("w").await;
    shard
}

/// What a worker reads next.
async fn lease(shard: &Shard) -> Option<Held> {
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().pop()?;
    let turn = String::from_utf8_lossy(entry.field("t").unwrap_or_default()).into_owned();
    Some((TurnName::parse(&turn).unwrap(), entry.id))
}

/// The turn's first call waits for another turn.
async fn waits(shard: &Shard, held: &Held, awaits: &str) -> Parked {
    let wait = Wait {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        awaits: Some(TurnId::new(awaits).unwrap()),
        at_most: Duration::from_millis(AT_MOST_MS.unsigned_abs()),
        has_begun: false,
        beside: false,
    };
    shard.store.wait(&[wait]).await.unwrap().remove(0)
}

/// What a look at the lane comes to, where it is due.
async fn look(shard: &Shard, places: u64) -> Released {
    let lane = Lane::parse(LANE).unwrap();
    let heads = shard.store.heads(std::slice::from_ref(&lane), 16, 1 << 20).await.unwrap().remove(0);
    let waiting = heads.into_iter().map(|head| {
        let by = JudgedBy { agent: "a1".into(), policy: LanePolicy::Row(0), stagger_ms: 0 };
        let left = |mut debit: CounterDebits| {
            debit.debits.amounts.drain(..head.next);
            debit
        };
        WaitingTurn { name: head.name, next: head.next, by, counters: counters().into_iter().map(left).collect() }
    });
    let batch = [LaneRelease { lane, turns: LaneTurns::These(waiting.collect()) }];
    match shard.store.release(BY, 16, &[row()], &rows(places), &batch).await.unwrap() {
        ReleaseReply::Released(mut lanes) => lanes.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Who holds places, by turn and number.
async fn held(shard: &Shard) -> Vec<String> {
    let key = shard.store.keys().key(format_args!("held:{LANE}"));
    let mut redis = shard.server.connection().await;
    let mut held: Vec<String> = redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).query_async(&mut redis).await.unwrap();
    held.sort_unstable();
    held
}

/// How many calls of the day are counted.
async fn counted(shard: &Shard) -> f64 {
    let mut redis = shard.server.connection().await;
    let key = shard.store.keys().key("counters:few");
    let packed: Vec<u8> = redis::cmd("HGET").arg(key).arg("x").query_async(&mut redis).await.unwrap();
    f64::from_le_bytes(packed[..8].try_into().unwrap())
}

async fn field(shard: &Shard, turn: &TurnName, field: &str) -> Option<String> {
    let mut redis = shard.server.connection().await;
    let key = shard.store.keys().key(format_args!("turn:{turn}"));
    redis::cmd("HGET").arg(key).arg(field).query_async(&mut redis).await.unwrap()
}

async fn promoted(shard: &Shard, turn: &TurnName) -> Promoted {
    shard.store.promote(std::slice::from_ref(turn)).await.unwrap().remove(0)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    (found == expected).then_some(()).ok_or_else(|| format!("{what}: {found:?}, and not {expected:?}"))
}

/// One place for calls one by one: the first turn's call waits for the second turn, which waits for the place.
async fn whom_it_waits_for(scripts: &Scripts) -> Result<(), String> {
    let shard = come(scripts, 2, 1).await;
    let first = lease(&shard).await.unwrap();
    same("has the place", &held(&shard).await, &vec!["acme:t0/1".to_owned()])?;
    same("waits", &waits(&shard, &first, "t1").await, &Parked::Ok)?;
    same("as said twice", &waits(&shard, &first, "t1").await, &Parked::Already)?;
    // Those who follow it are told so, and not that a cap holds it up.
    let told = shard.store.lane_wait(&first.0).await.unwrap().ok_or("nothing is told of it")?;
    same("is told to be parked", &told.record.is_parked(), &true)?;
    same("goes at once", &look(&shard, 1).await.turns, &1)?;
    let second = lease(&shard).await.ok_or("whom it waits for does not go out")?;
    same("has the place now", &held(&shard).await, &vec!["acme:t1/1".to_owned()])?;
    let sweep = shard.store.sweep(SweepAt::default()).await.unwrap();
    same("seems lost", &sweep.waiting_without_timer, &vec![])?;
    // It looks by itself, while the other has the place.
    shard.advance(AT_MOST_MS);
    match promoted(&shard, &first.0).await {
        Promoted::Queues => {}
        other => return Err(format!("it stands in line: {other:?}")),
    }
    let lane = Lane::parse(LANE).unwrap();
    let heads = shard.store.heads(&[lane], 2, 1 << 20).await.unwrap().remove(0);
    let comes_back: Vec<(String, bool)> = heads.into_iter().map(|head| (head.name, head.comes_back)).collect();
    same("comes back, and waits for no slot", &comes_back, &vec![(first.0.to_string(), true)])?;
    same("goes beyond the place", &look(&shard, 1).await.turns, &0)?;
    same("beside it", &held(&shard).await, &vec!["acme:t1/1".to_owned()])?;
    if !matches!(promoted(&shard, &first.0).await, Promoted::Later) {
        return Err("it waits on its lane".into());
    }
    let sweep = shard.store.sweep(SweepAt::default()).await.unwrap();
    same("seems lost on its lane", &sweep.waiting_without_timer, &vec![])?;
    // Its next call waited before the first one came back.
    shard.settle(&second, 1).await.unwrap();
    same("goes before it", &look(&shard, 1).await.turns, &1)?;
    same("has the place still", &held(&shard).await, &vec!["acme:t1/1".to_owned()])?;
    let third = lease(&shard).await.ok_or("whom it waits for does not go on")?;
    shard.settle(&third, 2).await.unwrap();
    same("goes when the place is free", &look(&shard, 1).await.turns, &1)?;
    same("has it again", &held(&shard).await, &vec!["acme:t0/1".to_owned()])?;
    let again = lease(&shard).await.ok_or("it is not out again")?;
    same("goes on", &again.0, &first.0)?;
    same("calls of the day", &counted(&shard).await, &3.0)?;
    same("left of what was debited", &field(&shard, &first.0, turn::PAID).await, &None)?;
    shard.settle(&again, 1).await.unwrap();
    same("its other call", &look(&shard, 1).await.calls, &1)
}

/// Both calls of a turn go out together, and wait: where a place is free for one of them, that one goes on.
async fn a_part(scripts: &Scripts) -> Result<(), String> {
    let shard = come(scripts, 2, 2).await;
    let first = lease(&shard).await.unwrap();
    waits(&shard, &first, "t1").await;
    same("the other's", &look(&shard, 2).await.calls, &2)?;
    let second = lease(&shard).await.unwrap();
    shard.advance(AT_MOST_MS);
    promoted(&shard, &first.0).await;
    same("no place", &look(&shard, 2).await.turns, &0)?;
    shard.settle(&second, 2).await.unwrap();
    // There is one place less by now.
    same("one by one", &look(&shard, 1).await.turns, &1)?;
    same("as there are places", &held(&shard).await, &vec!["acme:t0/1".to_owned()])?;
    let again = lease(&shard).await.unwrap();
    shard.settle(&again, 1).await.unwrap();
    same("and the other", &look(&shard, 1).await.turns, &1)?;
    same("which has its place", &held(&shard).await, &vec!["acme:t0/1".to_owned()])?;
    same("calls of the day", &counted(&shard).await, &4.0)
}

/// Who comes while it waits for its place goes behind it; who waited before it gave it back goes before it.
async fn in_line(scripts: &Scripts) -> Result<(), String> {
    let shard = come(scripts, 3, 2).await;
    // Two places are the first turn's; both others wait.
    let first = lease(&shard).await.unwrap();
    waits(&shard, &first, "t1").await;
    shard.advance(AT_MOST_MS);
    promoted(&shard, &first.0).await;
    same("one goes", &look(&shard, 2).await.turns, &1)?;
    let mut order = Vec::new();
    while let Some(out) = lease(&shard).await {
        order.push(out.0.turn.to_string());
        shard.settle(&out, 2).await.unwrap();
        look(&shard, 2).await;
    }
    same("in this order", &order, &["t1", "t2", "t0"].map(str::to_owned).to_vec())
}

/// However it ends, nothing is left of it: while it waits, and while it waits for its place.
async fn ended(scripts: &Scripts, on_lane: bool) -> Result<(), String> {
    let shard = come(scripts, 2, 1).await;
    let first = lease(&shard).await.unwrap();
    waits(&shard, &first, "t1").await;
    look(&shard, 1).await;
    if on_lane {
        shard.advance(AT_MOST_MS);
        promoted(&shard, &first.0).await;
    }
    shard.store.cancel(&first.0, "enough").await.unwrap();
    let Promoted::Ending(ending) = promoted(&shard, &first.0).await else { return Err("it does not end".into()) };
    same("calls that were admitted", &ending.admitted, &1)?;
    same("calls that end", &ending.upto, &2)?;
    same("places", &held(&shard).await, &vec!["acme:t1/1".to_owned()])?;
    let mut redis = shard.server.connection().await;
    let key = shard.store.keys().key(format_args!("lane:{LANE}"));
    let left: Vec<String> = redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).query_async(&mut redis).await.unwrap();
    same("on the lane", &left, &vec![])
}

/// A call that waits for people gives its place back as well.
async fn people(scripts: &Scripts) -> Result<(), String> {
    let shard = come(scripts, 2, 1).await;
    let first = lease(&shard).await.unwrap();
    let question = AskApproval {
        name: first.0.clone(),
        fence: first.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        id: "one".into(),
        binding: "this".into(),
        expires_ms: Some(60_000),
        agent: AgentId::new("a1").unwrap(),
        tool: ("pay".into(), "1.0.0".into()),
        arguments: "{}".into(),
        short: None,
        why: "[]".into(),
        demands: "1:".into(),
        may_narrow: "[]".into(),
        early: None,
        beside: false,
    };
    let asked = shard.store.ask_approval(&[question]).await.unwrap().remove(0);
    same("people are asked", &asked, &Asked::Parked(Parked::Ok))?;
    same("the other goes", &look(&shard, 1).await.turns, &1)
}

async fn all(scripts: &Scripts) -> Result<(), String> {
    whom_it_waits_for(scripts).await?;
    a_part(scripts).await?;
    in_line(scripts).await?;
    ended(scripts, false).await?;
    ended(scripts, true).await?;
    people(scripts).await
}

#[tokio::test]
async fn calls_that_wait_for_somebody_give_their_places_back_and_take_them_again() {
    all(&Scripts::embedded()).await.unwrap();
}

#[tokio::test]
async fn switching_off_a_guard_of_places_that_are_given_back_is_noticed() {
    for (rule, what, from, to) in PLACES {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        match all(&scripts).await {
            Ok(()) => panic!("rule {rule}: {what}: nobody notices"),
            Err(noticed) => println!("rule {rule}, {what}: {noticed}"),
        }
    }
}
