//! Slices whose tool rests: for how long in all, and what is known of their calls; with rows that switch that off.

use tickfleet_store::fields::turn;
use tickfleet_store::{Rest, Rested};
use tickfleet_testkit::guards::RESTS;

use super::*;

/// For how long a call may rest in all.
const AT_MOST: Duration = Duration::from_secs(60);
/// For how long it does each time.
const DELAY_MS: i64 = 35_000;

type Held = (TurnName, String);

async fn rest(shard: &Shard, held: &Held) -> Rested {
    let rest = Rest {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        delay: Duration::from_millis(DELAY_MS.unsigned_abs()),
        at_most: Some(AT_MOST),
        beside: true,
        why: "post failed 5 times in a row".into(),
    };
    shard.store.rest(&[rest]).await.unwrap().remove(0)
}

async fn begin(shard: &Shard, held: &Held, nonce: &str) -> Begun {
    let begin = Begin {
        name: held.0.clone(),
        fence: held.1.clone(),
        position: 0,
        nonce: Some(nonce.into()),
        digest: "d".into(),
        knows: None,
    };
    shard.store.begin(&[begin]).await.unwrap().remove(0)
}

/// The slice again, once it has rested.
async fn rested(shard: &Shard, name: &TurnName) -> Held {
    shard.advance(DELAY_MS);
    promote(shard, name).await;
    shard.beat("w").await;
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    (name.clone(), entry.id)
}

async fn all(scripts: &Scripts) -> Result<(), String> {
    let expect = |is: bool, what: &str| if is { Ok(()) } else { Err(what.to_owned()) };
    let shard = Shard::new(RedisOptions::default(), scripts.clone()).await;
    let held = shard.leased(1).await.remove(0);
    assert_eq!(begin(&shard, &held, "1").await, Begun::Ok);
    let parked = Rested::Parked(Parked::Ok);
    assert_eq!(rest(&shard, &held).await, parked);
    let lost = redis::cmd("HEXISTS").arg(shard.store.keys().turn(&held.0)).arg(turn::LOST).to_owned();
    let lost: bool = lost.query_async(&mut shard.server.connection().await).await.unwrap();
    expect(lost, "what was read beside it is forgotten")?;
    let held = rested(&shard, &held.0).await;
    assert_eq!(rest(&shard, &held).await, parked, "it has time left");
    let held = rested(&shard, &held.0).await;
    expect(rest(&shard, &held).await == Rested::Over, "it rests for longer than it may")?;
    expect(begin(&shard, &held, "2").await == Begun::Unknown, "what had begun begins again")
}

#[tokio::test]
async fn a_call_rests_for_its_time_in_all_and_what_is_known_of_it_stays() {
    all(&Scripts::embedded()).await.unwrap();
}

#[tokio::test]
async fn switching_off_a_guard_of_rests_is_noticed() {
    for (rule, what, from, to) in RESTS {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let noticed = all(&scripts).await;
        println!("{what}: {noticed:?}");
        assert!(noticed.is_err(), "rule {rule}: {what}: not noticed");
    }
}
