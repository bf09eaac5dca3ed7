//! What Redis has lost of a call: nobody is told that it did not run before those who know have had their say.

use tickfleet_store::{
    ASKS, Admission, AdmitReply, Admitted, Asserted, Begin, Begun, Claim, EndReason, Ending, Promoted, ReplyFrame,
    Scripts, Settled, SettledCall, Settlement,
};
use tickfleet_testkit::RedisOptions;

use super::lost::{Left, begin, lease, name, redis_loses, result, says};
use super::targeted::{START_MS, Shard};

/// A lease, and a little.
const LEASE_MS: i64 = 11_000;

async fn decided(shard: &Shard, turns: &[Admission]) -> Admitted {
    let AdmitReply::Decided { mut turns, .. } = shard.admit(turns).await.unwrap() else { panic!("not decided") };
    turns.remove(0)
}

/// A turn that Redis has lost after its call was carried out, and that comes again after its deadline. Answers its
/// ending: at once, or when its timer gives it out, and the worker has said in between what it knows.
async fn comes_after_its_deadline(scripts: Scripts) -> (Shard, Ending) {
    let (shard, mut turns, _) = redis_loses(scripts, Left::Inbound).await;
    turns[0].deadline_ms = START_MS;
    let at_once = decided(&shard, &turns).await;
    assert_eq!(shard.store.assert(&says(Claim::Ended(result())), true).await.unwrap(), [Asserted::Marked]);
    let ending = match at_once {
        Admitted::Ending(ending) => ending,
        Admitted::Later => {
            shard.advance(LEASE_MS);
            match shard.store.promote(&[name()]).await.unwrap().remove(0) {
                Promoted::Ending(ending) => ending,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((ending.reason, ending.begun), (EndReason::Expired, None));
    (shard, *ending)
}

#[tokio::test]
async fn a_turn_that_ends_right_after_a_restart_waits_for_those_who_know_what_it_did() {
    assert_eq!(comes_after_its_deadline(Scripts::embedded()).await.1.marked, [0]);
    let too_early = Scripts::embedded().sabotage("if now < spoken_ms then return 'LATER' end", "");
    assert_eq!(comes_after_its_deadline(too_early.unwrap()).await.1.marked, [0; 0], "before anybody could speak");
    let deaf = Scripts::embedded().sabotage("if now < marks_ms then begun =", "if false then begun =").unwrap();
    assert_eq!(comes_after_its_deadline(deaf).await.1.marked, [0; 0], "its call would be told as not executed");
}

/// The reply to a turn whose ending says that its call did not run.
async fn told(scripts: Scripts) -> String {
    let (shard, ending) = comes_after_its_deadline(scripts).await;
    let call = SettledCall { result: "\"not executed\"".into(), ..SettledCall::default() };
    let settlement = Settlement {
        name: name(),
        fence: ending.fence,
        queue: None,
        first: 0,
        reply_to: None,
        frame: ReplyFrame { head: r#"{"results":["#.into(), ..ReplyFrame::default() },
        calls: vec![call; ending.upto],
    };
    assert_eq!(shard.store.settle(&[settlement]).await.unwrap(), [Settled::Done]);
    let mut redis = shard.server.connection().await;
    redis::cmd("GET").arg(shard.store.keys().key("done:acme:t0")).query_async(&mut redis).await.unwrap()
}

#[tokio::test]
async fn what_a_worker_says_of_a_lost_call_is_its_result_whatever_its_ending_says() {
    assert!(told(Scripts::embedded()).await.contains(r#""results":[1"#));
    let deaf = Scripts::embedded().sabotage("if item.queue == '' then recall(item, key, rec.done) end", "").unwrap();
    assert!(told(deaf).await.contains(r#""results":["not executed""#));
}

fn of(fence: &str, position: usize, nonce: &str) -> [Begin; 1] {
    let [call] = begin(fence, nonce, "d");
    [Begin { position, ..call }]
}

/// A worker begins the second call and dies; the next one asks about the first, which it will not carry out, and begins
/// the second.
async fn asks_and_begins(scripts: Scripts) -> Begun {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let turns = shard.inbound(1).await;
    assert!(matches!(decided(&shard, &turns).await, Admitted::Dispatched));
    let fence = lease(&shard, "w").await;
    let mut begun = Vec::new();
    for call in [of(&fence, 1, "mine"), of(&fence, 0, ASKS), of(&fence, 1, "other")] {
        begun.extend(shard.store.begin(&call).await.unwrap());
    }
    assert_eq!(begun[..2], [Begun::Ok, Begun::Ok]);
    begun.remove(2)
}

#[tokio::test]
async fn who_only_asks_about_a_call_does_not_hide_what_was_begun_behind_it() {
    assert_eq!(asks_and_begins(Scripts::embedded()).await, Begun::Unknown);
    let hides = Scripts::embedded().sabotage("if nonce == '?' then return 'OK' end", "").unwrap();
    assert_eq!(asks_and_begins(hides).await, Begun::Ok, "the second call runs twice");
}

/// A worker begins the second call and dies; to the next one, the first is a call that must not run twice.
async fn begins_before(scripts: Scripts) -> Begun {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let turns = shard.inbound(1).await;
    assert!(matches!(decided(&shard, &turns).await, Admitted::Dispatched));
    let fence = lease(&shard, "w").await;
    assert_eq!(shard.store.begin(&of(&fence, 1, "mine")).await.unwrap(), [Begun::Ok]);
    shard.store.begin(&of(&fence, 0, "other")).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_call_before_one_that_was_begun_was_carried_out_too() {
    assert_eq!(begins_before(Scripts::embedded()).await, Begun::Unknown);
    let hides = Scripts::embedded().sabotage(" or nonce ~= '?' and other > position", "").unwrap();
    assert_eq!(begins_before(hides).await, Begun::Ok, "and what was begun is forgotten");
}
