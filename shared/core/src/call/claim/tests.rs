use proptest::prelude::*;

use super::super::testing::{MiniStore, call, detects, name, tenant, turn};
use super::*;

fn effect() -> EffectName {
    EffectName { tenant: tenant(), tool: "pay".into(), hash: "0a".into() }
}

fn claimant(turn: &str) -> Claimant {
    Claimant { call: call(turn, 0), digest: "d0".into(), admitted_ms: 1 }
}

fn claim_of(turn: &str) -> ClaimEffect {
    ClaimEffect { effect: effect(), by: claimant(turn), window_ms: 1_000, nothing: None }
}

fn claim(store: &mut MiniStore, claim: &ClaimEffect) -> ClaimResult {
    store.section(|transaction, view, context| claim.add_to(transaction, view, context, 10_000)).unwrap()
}

fn wait(store: &mut MiniStore, turn: &str) {
    let asks = claim_of(turn);
    store.section(|transaction, view, context| WaitForClaim(&asks).add_to(transaction, view, context)).unwrap();
}

fn end(store: &mut MiniStore, turn: &str, end: EffectEnd) -> EndClaimResult {
    store.run(&EndClaim { effect: effect(), by: claimant(turn), end, window_ms: 1_000 })
}

fn ended(turn: &str, result: &str) -> ClaimResult {
    ClaimResult::Ended { by: claimant(turn), result: result.into() }
}

#[test]
fn equal_calls_share_the_result_of_the_first_call() {
    let mut store = MiniStore::default();
    store.put(&name("a").record(), &turn());
    assert_eq!(claim(&mut store, &claim_of("a")), ClaimResult::Ours);
    assert_eq!(claim(&mut store, &claim_of("a")), ClaimResult::Ours, "the claim is repeated after a crash");
    assert_eq!(claim(&mut store, &claim_of("b")), ClaimResult::Waits { by: claimant("a") });
    wait(&mut store, "b");
    assert!(store.due.is_empty());
    assert_eq!(end(&mut store, "a", EffectEnd::Ended("1".into())), EndClaimResult::Done);
    assert_eq!(store.woken, ["turn:acme:b".to_owned()].into());
    assert_eq!(claim(&mut store, &claim_of("b")), ended("a", "1"));
    assert_eq!(claim(&mut store, &claim_of("a")), ended("a", "1"));
    assert_eq!(end(&mut store, "a", EffectEnd::Unknown("2".into())), EndClaimResult::Known);
    assert_eq!(end(&mut store, "b", EffectEnd::Undone), EndClaimResult::Others);
    store.now_ms = 1_000;
    assert_eq!(claim(&mut store, &claim_of("b")), ClaimResult::Ours, "the window is over");
}

#[test]
fn an_undone_call_releases_its_claim_to_the_next_call() {
    let mut store = MiniStore::default();
    store.put(&name("a").record(), &turn());
    claim(&mut store, &claim_of("a"));
    wait(&mut store, "b");
    assert_eq!(end(&mut store, "a", EffectEnd::Undone), EndClaimResult::Done);
    assert_eq!(store.woken, ["turn:acme:b".to_owned()].into());
    wait(&mut store, "b");
    assert_eq!(store.due, ["turn:acme:b".to_owned()].into(), "there is nothing to wait for any more");
    assert_eq!(claim(&mut store, &claim_of("b")), ClaimResult::Ours);
}

#[test]
fn a_claim_takeover_still_wakes_the_earlier_waiters() {
    let mut store = MiniStore::default();
    store.put(&name("a").record(), &turn());
    claim(&mut store, &claim_of("a"));
    wait(&mut store, "b");
    wait(&mut store, "c");
    store.records.remove(&name("a").record());
    let void = ClaimEffect { nothing: Some(claimant("a")), ..claim_of("c") };
    store.put(&name("c").record(), &turn());
    assert_eq!(claim(&mut store, &void), ClaimResult::Ours);
    assert!(store.woken.is_empty());
    assert_eq!(end(&mut store, "c", EffectEnd::Ended("1".into())), EndClaimResult::Done);
    assert_eq!(store.woken, ["turn:acme:b".to_owned()].into());
}

#[test]
fn a_claim_is_not_inherited_by_a_later_turn_with_the_same_id() {
    let mut store = MiniStore::default();
    assert_eq!(claim(&mut store, &claim_of("a")), ClaimResult::Ours);
    let later = Claimant { admitted_ms: 2, ..claimant("a") };
    store.put(&name("a").record(), &Turn { admitted_ms: 2, ..turn() });
    let again = ClaimEffect { by: later.clone(), ..claim_of("a") };
    assert_eq!(claim(&mut store, &again), ClaimResult::Abandoned { by: claimant("a"), result: None });
    let void = ClaimEffect { nothing: Some(claimant("a")), ..again };
    assert_eq!(claim(&mut store, &void), ClaimResult::Ours, "it certainly did nothing");
    assert_eq!(store.record::<Claim>(&effect().key()).unwrap().by, later);
}

#[test]
fn an_abandoned_claim_reports_its_stored_result() {
    let mut store = MiniStore::default();
    let abandoned =
        |result: Option<&str>| ClaimResult::Abandoned { by: claimant("a"), result: result.map(str::to_owned) };
    claim(&mut store, &claim_of("a"));
    assert_eq!(claim(&mut store, &claim_of("b")), abandoned(None));
    store.put(&name("a").record(), &Turn { position: 1, ..turn() });
    store.parts.insert((name("a").record(), parts::result(0)), "7".into());
    assert_eq!(claim(&mut store, &claim_of("b")), abandoned(Some("7")));
    store.records.remove(&name("a").record());
    let reply = r#"{"results":[8,9]}"#.into();
    let finished = Finished {
        admitted_ms: 1,
        ended_ms: 0,
        digest: "d0".into(),
        crashes: 0,
        retries: 0,
        reason: None,
        canceled: None,
        agent: None,
        notes: Vec::new(),
        reply,
    };
    store.put(&name("a").finished(), &finished);
    assert_eq!(claim(&mut store, &claim_of("b")), abandoned(Some("8")));
    store.put(&name("a").finished(), &Finished { digest: "other".into(), ..finished });
    assert_eq!(claim(&mut store, &claim_of("b")), abandoned(None), "the ID was given to other calls");
    let again = ClaimEffect { nothing: Some(claimant("a")), ..claim_of("b") };
    assert_eq!(claim(&mut store, &again), ClaimResult::Ours);
    store.put(
        &effect().key(),
        &Claim { by: claimant("a"), until_ms: 9_000, state: ClaimState::Open { waiters: BTreeSet::new() } },
    );
    store.put(&name("a").record(), &turn());
    assert_eq!(claim(&mut store, &again), ClaimResult::Waits { by: claimant("a") }, "it came again");
}

#[test]
fn each_guard_of_a_claim_is_needed() {
    let a = claim_of("a");
    let b = claim_of("b");
    detects("claim_guards_its_record", || {
        MiniStore::default().refuses_stale(
            |transaction, view, context| a.add_to(transaction, view, context, 10_000),
            |store| drop(claim(store, &b)),
        )
    });
    // The claimant had no effect. The claimant begins again before another call takes over the claim.
    let again = ClaimEffect { nothing: Some(claimant("a")), ..claim_of("b") };
    detects("claim_guards_that_the_claimant_is_gone", || {
        let mut store = MiniStore::default();
        claim(&mut store, &a);
        store.refuses_stale(
            |transaction, view, context| again.add_to(transaction, view, context, 10_000),
            |store| drop(store.put(&name("a").record(), &turn())),
        )
    });
    // Another turn joins the waiters, or parks, while the claim ends.
    let ends = EndClaim { effect: effect(), by: claimant("a"), end: EffectEnd::Undone, window_ms: 1_000 };
    let store = || {
        let mut store = MiniStore::default();
        store.put(&name("a").record(), &turn());
        claim(&mut store, &a);
        store
    };
    detects("end_claim_guards_its_record", || {
        store().refuses_stale(
            |transaction, view, context| ends.end_claim(transaction, view, context),
            |store| wait(store, "b"),
        )
    });
    detects("wait_for_claim_guards_the_claim", || {
        store().refuses_stale(
            |transaction, view, context| WaitForClaim(&b).add_to(transaction, view, context),
            |store| assert_eq!(store.run(&ends), EndClaimResult::Done),
        )
    });
}

proptest! {
    #[test]
    fn equal_calls_take_effect_once(steps in prop::collection::vec((0..4_usize, 0..4_u8), 1..40)) {
        let mut store = MiniStore::default();
        let names = ["a", "b", "c", "d"];
        names.iter().for_each(|id| drop(store.put(&name(id).record(), &turn())));
        let mut views: Vec<Option<View>> = vec![None; 4];
        let mut running = BTreeSet::new();
        let mut effects = 0;
        for (who, action) in steps {
            let wants = claim_of(names[who]);
            let add = |transaction: &mut Transaction, view: &View, context: &Context| {
                wants.add_to(transaction, view, context, 10_000)
            };
            match action {
                0 => views[who] = Some(store.view_for(|view, context| {
                    add(&mut Transaction::new(context.version.clone()), view, context)
                })),
                1 => {
                    let Some(view) = views[who].take() else { continue };
                    let context = store.context();
                    let mut transaction = Transaction::new(context.version.clone());
                    let Ok(ClaimResult::Ours) = add(&mut transaction, &view, &context) else { continue };
                    if store.commit(&transaction).is_ok() {
                        running.insert(who);
                    }
                }
                2 if running.remove(&who) => {
                    effects += 1;
                    end(&mut store, names[who], EffectEnd::Ended("1".into()));
                }
                3 if running.remove(&who) => {
                    end(&mut store, names[who], EffectEnd::Undone);
                }
                _ => {}
            }
            prop_assert!(running.len() + effects <= 1);
        }
    }
}

/// A claim without its result still stops equal calls.
#[test]
fn under_memory_pressure_a_claim_keeps_only_small_results() {
    for (bytes, pressure, kept) in [(2_000, false, 2_002), (2_000, true, 0), (10, true, 12)] {
        let mut store = MiniStore { pressure, ..MiniStore::default() };
        store.put(&name("a").record(), &turn());
        claim(&mut store, &claim_of("a"));
        let result = format!("\"{}\"", "x".repeat(bytes));
        assert_eq!(end(&mut store, "a", EffectEnd::Ended(result)), EndClaimResult::Done);
        let ClaimResult::Ended { result, .. } = claim(&mut store, &claim_of("b")) else { panic!("it has ended") };
        assert_eq!(result.len(), kept);
    }
}
