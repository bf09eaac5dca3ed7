//! What people's consent counts for, who gives it, and until when.

use std::collections::BTreeSet;

use tickfleet_store::{AskApproval, Asked, Consent, Decided, Decision, UseApproval};
use tickfleet_testkit::guards::APPROVALS;

use super::*;

const ID: &str = "first";
const EXPIRES_MS: i64 = 1_000;

fn question(held: &Held, id: &str, demands: &str) -> AskApproval {
    AskApproval {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        id: id.into(),
        binding: format!("binding of {id}"),
        expires_ms: Some(EXPIRES_MS),
        agent: AgentId::new("kelly").unwrap(),
        tool: ("pay".into(), "1.0.0".into()),
        arguments: "{}".into(),
        short: None,
        why: "[]".into(),
        demands: demands.into(),
        may_narrow: r#"["/a"]"#.into(),
        early: None,
        beside: false,
    }
}

async fn asks(shard: &Shard, held: &Held, id: &str, demands: &str) -> Result<(), String> {
    let asked = shard.store.ask_approval(&[question(held, id, demands)]).await.unwrap();
    same("people are asked", asked, vec![Asked::Parked(Parked::Ok)])
}

/// A call of a turn that people were asked about.
async fn asked(shard: &Shard, demands: &str) -> Result<Held, String> {
    let held = shard.leased(1).await.remove(0);
    asks(shard, &held, ID, demands).await?;
    Ok(held)
}

fn of(held: &Held) -> UseApproval {
    UseApproval {
        name: held.0.clone(),
        fence: held.1.clone(),
        position: 0,
        id: ID.into(),
        binding: format!("binding of {ID}"),
        takes: true,
        agent: AgentId::new("kelly").unwrap(),
    }
}

async fn uses(shard: &Shard, question: UseApproval) -> Consent {
    shard.store.use_approval(&[question]).await.unwrap().remove(0)
}

/// A word of somebody: `+ann` agrees, `-ann` denies; those of finance are ann and bob.
async fn says(shard: &Shard, who: &str, id: &str, (narrowed, seen): (&str, &str)) -> Decided {
    let (by, finance) = (&who[1..], ["ann", "bob"]);
    let roles: BTreeSet<String> = finance.contains(&by).then(|| "finance".to_owned()).into_iter().collect();
    let decision = Decision {
        tenant: &TenantId::new("acme").unwrap(),
        id,
        by,
        roles: &roles,
        agrees: who.starts_with('+'),
        reason: "",
        narrowed,
        seen,
        shown: narrowed,
        entry: r#"{"meta":{"a":1"#,
    };
    shard.store.decide_approval(&decision).await.unwrap()
}

async fn said(shard: &Shard, who: &str) -> Decided {
    says(shard, who, ID, ("", "")).await
}

fn counts(state: &str, missing: u32) -> Decided {
    Decided::Counts { state: state.into(), missing }
}

fn given(by: &[&str]) -> Consent {
    Consent::Given { narrowed: None, by: by.iter().map(ToString::to_string).collect() }
}

/// Two who may have to agree, and the call that is theirs takes that once nothing else stops it.
async fn agreed(shard: &Shard) -> Result<(), String> {
    let held = asked(shard, "2:finance").await?;
    same("an agent's own", said(shard, "+kelly").await, Decided::Own)?;
    same("not one of those", said(shard, "+eve").await, Decided::Role)?;
    same("one of two", said(shard, "+ann").await, counts("waiting", 1))?;
    same("the same one", said(shard, "+ann").await, Decided::Again)?;
    same("nobody is woken yet", waits::due(shard, 0).await, vec![])?;
    same("two of two", said(shard, "+bob").await, counts("approved", 0))?;
    same("its turn is woken", waits::due(shard, 0).await, vec![held.0.clone()])?;
    let held = gone_on(shard, &held).await?;
    let others = [
        (UseApproval { position: 1, ..of(&held) }, Consent::Others),
        (UseApproval { binding: "another".into(), ..of(&held) }, Consent::Others),
    ];
    for (question, expected) in others {
        same("another call's", uses(shard, question).await, expected)?;
    }
    let looks = UseApproval { takes: false, ..of(&held) };
    same("it is looked at", uses(shard, looks).await, given(&["ann", "bob"]))?;
    same("it is not taken", said(shard, "+ann").await, Decided::Ended("approved".into()))?;
    for _ in 0..2 {
        same("it is taken", uses(shard, of(&held)).await, given(&["ann", "bob"]))?;
    }
    same("what is taken stays so", said(shard, "-ann").await, Decided::Ended("used".into()))
}

/// Nobody has decided, or has denied it.
async fn not_agreed(shard: &Shard) -> Result<(), String> {
    let held = asked(shard, "1:").await?;
    let held = gone_on(shard, &held).await?;
    same("people may decide still", uses(shard, of(&held)).await, Consent::Waits)?;
    same("one does", said(shard, "-ann").await, counts("denied", 0))?;
    same("it is told", uses(shard, of(&held)).await, Consent::Denied { by: "ann".into(), why: String::new() })
}

/// The time has come: of who may decide, and of what was said.
async fn late(shard: &Shard) -> Result<(), String> {
    let held = asked(shard, "1:").await?;
    shard.advance(EXPIRES_MS);
    same("nobody decides any more", said(shard, "+ann").await, Decided::Ended("expired".into()))?;
    drop(held);
    fresh(shard).await;
    let held = asked(shard, "1:").await?;
    same("it counts", said(shard, "+ann").await, counts("approved", 0))?;
    let held = gone_on(shard, &held).await?;
    shard.advance(EXPIRES_MS);
    same("and then no more", uses(shard, of(&held)).await, Consent::Expired(START_MS + EXPIRES_MS))
}

/// Its turn was cancelled.
async fn over(shard: &Shard) -> Result<(), String> {
    let held = asked(shard, "1:").await?;
    shard.store.cancel(&held.0, "enough").await.unwrap();
    same("nothing is left to decide", said(shard, "+ann").await, Decided::Gone)
}

/// Somebody changes the arguments.
async fn changed(shard: &Shard) -> Result<(), String> {
    let narrowed = r#"{"/a":1}"#;
    asked(shard, "2:").await?;
    same("one agrees", said(shard, "+ann").await, counts("waiting", 1))?;
    let other = says(shard, "+bob", ID, (narrowed, "")).await;
    same("who agreed to others has not agreed to these", other, counts("waiting", 1))?;
    same("nobody agrees unseen", said(shard, "+ann").await, Decided::Changed)
}

/// Guards of the bounds on what waits, and how many approvals of which agent wait.
type Crowd = (&'static str, &'static str, u64);
const CROWDS: [Crowd; 2] = [
    ("if of_agent >= num(most_of_agent) then return 'agent' end", "kelly", limits::APPROVALS_WAITING_OF_AGENT_MAX),
    ("if count >= num(most_of_tenant) then return 'tenant' end", "fran", limits::APPROVALS_WAITING_MAX),
];

#[tokio::test]
async fn one_agent_leaves_room_for_others() {
    for (guard, agent, count) in CROWDS {
        for (scripts, expected) in [
            (Scripts::embedded(), Asked::Full),
            (Scripts::embedded().sabotage(guard, "").unwrap(), Asked::Parked(Parked::Ok)),
        ] {
            let shard = Shard::new(RedisOptions::default(), scripts).await;
            let held = shard.leased(1).await.remove(0);
            let (mut redis, mut pipe, keys) = (shard.server.connection().await, redis::pipe(), shard.store.keys());
            for number in 0..count {
                let id = format!("{agent}-{number}");
                pipe.zadd(keys.key("asked:acme"), &id, START_MS + 60_000).ignore();
                pipe.hset(keys.key(format_args!("approval:acme:{id}")), "ag", agent).ignore();
            }
            let () = pipe.query_async(&mut redis).await.unwrap();
            let asked = shard.store.ask_approval(&[question(&held, ID, "1:")]).await.unwrap();
            assert_eq!(asked, [expected], "{guard}");
        }
    }
}

/// A call that has begun, one asked about before as another, and one too many.
async fn not_asked(shard: &Shard) -> Result<(), String> {
    let held = shard.leased(1).await.remove(0);
    begin(shard, &held).await;
    let asked_now = shard.store.ask_approval(&[question(&held, ID, "1:")]).await.unwrap();
    same("it has begun", asked_now, vec![Asked::Decided])?;
    fresh(shard).await;
    let held = asked(shard, "1:").await?;
    let held = gone_on(shard, &held).await?;
    asks(shard, &held, "second", "1:").await?;
    same("it is another call now", said(shard, "+ann").await, Decided::Ended("void".into()))?;
    fresh(shard).await;
    let held = shard.leased(1).await.remove(0);
    let (mut redis, mut pipe) = (shard.server.connection().await, redis::pipe());
    for number in 0..limits::APPROVALS_WAITING_MAX {
        pipe.zadd(shard.store.keys().key("asked:acme"), number, START_MS + 60_000).ignore();
    }
    let () = pipe.query_async(&mut redis).await.unwrap();
    let asked_now = shard.store.ask_approval(&[question(&held, ID, "1:")]).await.unwrap();
    same("there are too many", asked_now, vec![Asked::Full])
}

async fn all(scripts: Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    agreed(&shard).await?;
    fresh(&shard).await;
    not_agreed(&shard).await?;
    fresh(&shard).await;
    late(&shard).await?;
    fresh(&shard).await;
    over(&shard).await?;
    fresh(&shard).await;
    changed(&shard).await?;
    fresh(&shard).await;
    not_asked(&shard).await
}

#[tokio::test]
async fn switching_off_a_guard_of_approvals_is_noticed() {
    each_is_missed(APPROVALS, all).await;
}
