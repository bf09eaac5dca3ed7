use proptest::prelude::*;

use super::super::testing::{MiniStore, agent, call, detects, name, tenant, turn};
use super::*;
use crate::Decision;
use crate::Step;
use crate::audit::AuditAppend;
use crate::decision::Context;
use crate::section::Section;
use crate::transaction::{Conflict, InboxKey, Transaction};
use crate::turn::Turn;

const ID: &str = "apr-1";

fn roles(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(ToString::to_string).collect()
}

fn demand(quorum: u32, words: &[&str]) -> Demand {
    Demand { quorum, roles: roles(words) }
}

fn ask(demands: Vec<Demand>) -> AskApproval {
    AskApproval {
        id: ID.into(),
        call: call("t", 0),
        binding: "bound".into(),
        shown: ApprovalPreview {
            tool: "pay".into(),
            version: "1".into(),
            arguments: "{}".into(),
            abridged: true,
            bytes: 9,
            why: "[]".into(),
            may_narrow: BTreeSet::new(),
        },
        exact: "{\"a\":700}".into(),
        demands,
        expires_ms: Some(1_000),
        early: Some((InboxKey { tenant: "acme".into(), inbox: "in".into() }, "{requested_ms}-{until_ms}".into())),
        tenant_max: 3,
        agent_max: 2,
    }
}

fn park(store: &mut MiniStore, ask: &AskApproval, turn: &Turn) -> AskResult {
    let asked =
        store.section(|transaction, view, context| ask.add_to(transaction, view, context, &tenant(), turn)).unwrap();
    if let AskResult::Waits { .. } = asked {
        store.put(&name("t").record(), &Turn { approval: Some(ask.id.clone()), ..turn.clone() });
    }
    asked
}

fn asked(demands: Vec<Demand>) -> MiniStore {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    assert_eq!(park(&mut store, &ask(demands), &turn()), AskResult::Waits { until_ms: 1_100 });
    store
}

fn audit() -> AuditAppend {
    AuditAppend { text: r#"{"action":"x","meta":{"reason":""}}"#.into(), entries_max: 10 }
}

fn decide_with(store: &mut MiniStore, by: &str, words: &[&str], verdict: Verdict<'_>) -> DecideResult {
    let tenant = tenant();
    let roles = roles(words);
    let audit = audit();
    let decision =
        DecideApproval { tenant: &tenant, id: ID, by, roles: &roles, reason: "because", verdict, audit: &audit };
    store.run(&decision)
}

const AGREES: Verdict<'_> = Verdict::Approve { seen: None, narrowed: None, shown: "" };

fn agree(store: &mut MiniStore, by: &str, words: &[&str]) -> DecideResult {
    decide_with(store, by, words, AGREES)
}

fn counts(state: &'static str, missing: u32) -> DecideResult {
    DecideResult::Counts { state, missing }
}

fn begin(store: &mut MiniStore, binding: &str) -> Consent {
    let asks = UseConsent { id: ID.into(), binding: binding.into() };
    let tenant = tenant();
    let caller = call("t", 0);
    store
        .section(|transaction, view, context| asks.add_to(transaction, view, context, &tenant, &caller, 1_000_000))
        .unwrap()
}

fn given(by: &[&str]) -> Consent {
    Consent::Given { by: by.iter().map(ToString::to_string).collect(), narrowed: None }
}

fn events_of(store: &MiniStore) -> Vec<String> {
    let word = |fields: &crate::view::Fields| String::from_utf8(fields[0].1.to_vec()).unwrap();
    store.logs[&events(&tenant())].iter().map(word).collect()
}

fn waits_in(store: &MiniStore) -> usize {
    let sets = [waiting(), waiting_of(&tenant()), waiting_of_agent(&tenant(), &agent())];
    let sizes: BTreeSet<usize> = sets.iter().map(|set| store.sets.get(set).map_or(0, BTreeMap::len)).collect();
    assert_eq!(sizes.len(), 1, "the indexes agree");
    *sizes.first().unwrap()
}

#[test]
fn an_approval_is_used_once_by_its_bound_call() {
    let mut store = asked(vec![demand(1, &[])]);
    assert_eq!(store.replies, ["100-1100"]);
    assert_eq!(store.lifetimes[&key(&tenant(), ID)], None, "what is unfinished has no lifetime");
    assert_eq!(store.parts.len(), 1);
    assert_eq!((waits_in(&store), begin(&mut store, "bound")), (1, Consent::Waiting { until_ms: 1_100 }));
    assert_eq!(agree(&mut store, "kim", &[]), counts("approved", 0));
    assert_eq!(waits_in(&store), 0);
    assert_eq!(store.woken, ["turn:acme:t".to_owned()].into());
    assert_eq!(begin(&mut store, "another"), Consent::OtherCall);
    assert_eq!(begin(&mut store, "bound"), given(&["kim"]));
    assert_eq!(begin(&mut store, "bound"), given(&["kim"]), "the same call begins again after a crash");
    assert_eq!(decide_with(&mut store, "ada", &[], Verdict::Deny), DecideResult::Ended("used"));
    assert_eq!(events_of(&store), ["asked", "approved", "used"]);
    assert_eq!(store.parts.len(), 0);
    assert_eq!(store.lifetimes[&key(&tenant(), ID)], Some(999_900 + KEPT_MS));
}

#[test]
fn the_audit_log_records_each_counted_decision() {
    let mut store = asked(vec![demand(2, &[])]);
    agree(&mut store, "kim", &[]);
    assert_eq!(agree(&mut store, "kim", &[]), DecideResult::Again);
    agree(&mut store, "ada", &[]);
    let audits = &store.logs[&crate::keys::audit()];
    let text = |at: usize| String::from_utf8(audits[at][0].1.to_vec()).unwrap();
    assert_eq!(audits.len(), 2);
    assert_eq!(text(0), r#"{"action":"x","meta":{"reason":"","state":"waiting","missing":1}}"#);
    assert_eq!(text(1), r#"{"action":"x","meta":{"reason":"","state":"approved","missing":0}}"#);
}

#[test]
fn approvers_vote_once_by_role_and_never_on_their_own_call() {
    let mut store = asked(vec![demand(2, &["legal"]), demand(1, &["cfo"])]);
    assert_eq!(agree(&mut store, "kelly", &["legal"]), DecideResult::Own);
    assert_eq!(agree(&mut store, "eve", &["sales"]), DecideResult::Role);
    assert_eq!(agree(&mut store, "kim", &["legal", "cfo"]), counts("waiting", 1));
    assert_eq!(agree(&mut store, "kim", &["legal", "cfo"]), DecideResult::Again);
    assert_eq!(agree(&mut store, "ada", &["legal"]), counts("approved", 0));
    assert_eq!(agree(&mut store, "bob", &["legal"]), DecideResult::Ended("approved"));
    assert_eq!(decide_with(&mut store, "bob", &["legal"], Verdict::Deny), counts("denied", 0), "until it begins");
    assert_eq!(begin(&mut store, "bound"), Consent::Denied { by: "bob".into(), reason: "because".into() });
}

#[test]
fn votes_for_other_arguments_do_not_count() {
    let mut store = asked(vec![demand(2, &[])]);
    let narrows = |seen, narrowed| Verdict::Approve { seen, narrowed: Some(narrowed), shown: "" };
    assert_eq!(agree(&mut store, "kim", &[]), counts("waiting", 1));
    assert_eq!(decide_with(&mut store, "ada", &[], narrows(None, "{\"/a\":1}")), counts("waiting", 1));
    assert_eq!(agree(&mut store, "bob", &[]), DecideResult::Changed);
    let seen = Verdict::Approve { seen: Some("{\"/a\":1}"), narrowed: None, shown: "" };
    assert_eq!(decide_with(&mut store, "kim", &[], seen), counts("approved", 0));
    let by = vec!["ada".to_owned(), "kim".to_owned()];
    assert_eq!(begin(&mut store, "bound"), Consent::Given { by, narrowed: Some("{\"/a\":1}".into()) });
}

#[test]
fn an_approval_ends_when_it_expires_or_its_turn_is_gone() {
    let mut store = asked(vec![demand(1, &[])]);
    store.now_ms = 1_100;
    assert_eq!(begin(&mut store, "bound"), Consent::Expired { since_ms: 1_100 });
    assert_eq!(waits_in(&store), 0);
    assert_eq!(agree(&mut store, "kim", &[]), DecideResult::Ended("expired"));
    assert_eq!(begin(&mut store, "bound"), Consent::Expired { since_ms: 1_100 });

    let mut store = asked(vec![demand(1, &[])]);
    agree(&mut store, "kim", &[]);
    store.now_ms = 1_100;
    assert_eq!(begin(&mut store, "bound"), Consent::Expired { since_ms: 1_100 }, "the consent counts as long");

    for gone in [
        None,
        Some(Turn { position: 1, approval: Some(ID.into()), ..turn() }),
        Some(Turn { approval: Some("apr-2".into()), ..turn() }),
        Some(Turn { canceled: Some(String::new()), approval: Some(ID.into()), ..turn() }),
    ] {
        let mut store = asked(vec![demand(1, &[])]);
        match gone {
            None => drop(store.records.remove(&name("t").record())),
            Some(turn) => drop(store.put(&name("t").record(), &turn)),
        }
        assert_eq!(agree(&mut store, "kim", &[]), DecideResult::Gone);
        assert_eq!(agree(&mut store, "kim", &[]), DecideResult::Ended("void"));
        assert_eq!((waits_in(&store), begin(&mut store, "bound")), (0, Consent::Unasked));
    }
    assert_eq!(decide_with(&mut MiniStore::default(), "kim", &[], AGREES), DecideResult::Unknown);
}

#[test]
fn a_changed_call_voids_its_earlier_approval_request() {
    let mut store = asked(vec![demand(1, &[])]);
    let turn: Turn = store.record(&name("t").record()).unwrap();
    let other = AskApproval { id: "apr-2".into(), ..ask(vec![demand(1, &[])]) };
    assert_eq!(park(&mut store, &other, &turn), AskResult::Waits { until_ms: 1_100 });
    assert_eq!(events_of(&store), ["asked", "asked", "void"]);
    assert_eq!((waits_in(&store), agree(&mut store, "kim", &[])), (1, DecideResult::Ended("void")));
    assert_eq!(
        park(&mut store, &ask(vec![demand(1, &[])]), &turn),
        AskResult::Waits { until_ms: 1_100 },
        "it is asked again"
    );
    agree(&mut store, "kim", &[]);
    assert_eq!(park(&mut store, &ask(vec![demand(1, &[])]), &turn), AskResult::Decided);
}

#[test]
fn pending_approvals_are_bounded_per_tenant_and_agent() {
    let mut store = MiniStore::default();
    let one = |id: &str| AskApproval { id: id.into(), early: None, ..ask(vec![demand(1, &[])]) };
    let fran = Turn { head: crate::turn::Head { agent: AgentId::new("fran").unwrap(), ..turn().head }, ..turn() };
    for id in ["apr-1", "apr-2"] {
        assert!(matches!(park(&mut store, &one(id), &turn()), AskResult::Waits { .. }));
    }
    assert_eq!(park(&mut store, &one("apr-3"), &turn()), AskResult::Full { of_agent: true });
    assert!(matches!(park(&mut store, &one("apr-3"), &fran), AskResult::Waits { .. }));
    assert_eq!(park(&mut store, &one("apr-4"), &fran), AskResult::Full { of_agent: false });
}

/// Each request reads the sets before another request commits.
#[test]
fn concurrent_approval_requests_keep_the_bounds() {
    let one = |id: &str, tenant_max, agent_max| AskApproval {
        id: id.into(),
        early: None,
        tenant_max,
        agent_max,
        ..ask(vec![demand(1, &[])])
    };
    for (mutant, tenant_max, agent_max) in
        [("ask_guards_the_bound_of_the_tenant", 1, 9), ("ask_guards_the_bound_of_the_agent", 9, 1)]
    {
        let first = one("apr-1", tenant_max, agent_max);
        let second = one("apr-2", tenant_max, agent_max);
        detects(mutant, || {
            MiniStore::default().refuses_stale(
                |transaction, view, context| second.add_to(transaction, view, context, &tenant(), &turn()),
                |store| _ = park(store, &first, &turn()),
            )
        });
    }
    let second = one("apr-2", 9, 1);
    let mut store = MiniStore::default();
    let mut context = store.context();
    context.conflicts.push(Conflict::Full);
    let view = store.view_for(|view, context| {
        second.add_to(&mut Transaction::new(context.version.clone()), view, context, &tenant(), &turn())
    });
    let mut transaction = Transaction::new(context.version.clone());
    let result = second.add_to(&mut transaction, &view, &context, &tenant(), &turn());
    assert_eq!(result, Ok(AskResult::Full { of_agent: true }), "it is not repeated forever");
    let tenant = tenant();
    let turn = turn();
    let request = RequestApproval { ask: &second, tenant: &tenant, turn: &turn };
    let mut transaction = Transaction::new(context.version.clone());
    request.add_to(&mut transaction, &view, &context).unwrap();
    assert_eq!(store.commit(&transaction), Ok(()));
    assert_eq!(store.due, ["turn:acme:t".to_owned()].into(), "the call is looked at again");
}

#[test]
fn each_guard_of_an_approval_is_needed() {
    let approved = || {
        let mut store = asked(vec![demand(1, &[])]);
        agree(&mut store, "kim", &[]);
        store
    };
    let asks = UseConsent { id: ID.into(), binding: "bound".into() };
    let tenant = tenant();
    let caller = call("t", 0);
    let uses = |transaction: &mut Transaction, view: &View, context: &Context| {
        asks.add_to(transaction, view, context, &tenant, &caller, 1_000_000)
    };
    detects("consent_guards_the_approval", || {
        approved().refuses_stale(uses, |store| _ = decide_with(store, "kim", &[], Verdict::Deny))
    });
    detects("consent_guards_its_time", || approved().refuses_stale(uses, |store| store.now_ms = 1_100));
    let first = ask(vec![demand(1, &[])]);
    detects("ask_guards_the_approval", || {
        MiniStore::default().refuses_stale(
            |transaction, view, context| first.add_to(transaction, view, context, &tenant, &turn()),
            |store| {
                park(store, &first, &turn());
                agree(store, "kim", &[]);
            },
        )
    });
    let voids = VoidApproval { tenant: &tenant, id: ID };
    detects("void_guards_the_approval", || {
        approved().refuses_stale(
            |transaction, view, context| voids.add_to(transaction, view, context),
            |store| drop(begin(store, "bound")),
        )
    });
}

#[test]
fn overdue_approvals_do_not_fill_the_bound() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    for set in [waiting_of(&tenant()), waiting_of_agent(&tenant(), &agent())] {
        store.sets.insert(set, [("lost-1".into(), 50), ("lost-2".into(), 50), ("lost-3".into(), 50)].into());
    }
    assert_eq!(park(&mut store, &ask(vec![demand(1, &[])]), &turn()), AskResult::Full { of_agent: false });
    store.now_ms = 60_050;
    assert!(matches!(park(&mut store, &ask(vec![demand(1, &[])]), &turn()), AskResult::Waits { .. }));
    assert_eq!(store.sets[&waiting_of(&tenant())].keys().map(|id| &**id).collect::<Vec<_>>(), [ID]);
    assert_eq!(store.sets[&waiting_of_agent(&tenant(), &agent())].len(), 1);
}

/// A cancel does not change the turn's record, so the decision must also read the cancel.
#[test]
fn a_canceled_turn_accepts_no_approval_decision() {
    let cancel = |store: &mut MiniStore, admitted_ms| {
        let cancellation = crate::turn::Cancellation { reason: "no".into(), admitted_ms: Some(admitted_ms) };
        store.put(&name("t").cancellation(), &cancellation);
    };
    let mut store = asked(vec![demand(1, &[])]);
    cancel(&mut store, 0);
    assert_eq!(agree(&mut store, "kim", &[]), counts("approved", 0), "the cancel is of an earlier turn with this ID");
    let mut store = asked(vec![demand(1, &[])]);
    cancel(&mut store, 1);
    assert_eq!(agree(&mut store, "kim", &[]), DecideResult::Gone);
    let tenant = tenant();
    let roles = roles(&[]);
    let audit = audit();
    let roles = &roles;
    let audit = &audit;
    let kim = DecideApproval { tenant: &tenant, id: ID, by: "kim", roles, reason: "", verdict: AGREES, audit };
    assert!(asked(vec![demand(1, &[])]).refuses_stale(
        |transaction, view, context| {
            let Step::Commit(decided, result) = kim.decide(view, context)? else { panic!() };
            *transaction = decided;
            Ok(result)
        },
        |store| cancel(store, 1),
    ));
}

#[test]
fn each_guard_of_a_decision_is_needed() {
    let tenant = tenant();
    let roles = roles(&[]);
    let audit = audit();
    let agrees =
        |by| DecideApproval { tenant: &tenant, id: ID, by, roles: &roles, reason: "", verdict: AGREES, audit: &audit };
    let kim = agrees("kim");
    let late = |meanwhile: &dyn Fn(&mut MiniStore)| {
        let mut store = asked(vec![demand(2, &[])]);
        let view = store.view_for(|view, context| kim.decide(view, context));
        let Ok(Step::Commit(transaction, _)) = kim.decide(&view, &store.context()) else { panic!() };
        meanwhile(&mut store);
        store.commit(&transaction).is_err()
    };
    detects("decide_guards_the_approval", || late(&|store| _ = agree(store, "ada", &[])));
    detects("decide_guards_the_turn", || {
        late(&|store| drop(store.put(&name("t").record(), &Turn { position: 1, ..turn() })))
    });
    detects("decide_guards_the_time", || late(&|store| store.now_ms = 1_100));
}

proptest! {
    #[test]
    fn a_call_is_approved_only_when_all_quorums_agree(
        quorums in prop::collection::vec((1..3_u32, 0..3_usize), 1..3),
        votes in prop::collection::vec((0..5_usize, 0..3_usize, prop::option::of(0..2_u8)), 1..12),
    ) {
        const WORDS: [&str; 2] = ["legal", "cfo"];
        let demands = quorums.into_iter().map(|(quorum, role)| demand(quorum, WORDS.get(role..=role).unwrap_or(&[]))).collect();
        let mut store = asked(demands);
        for (who, role, narrows) in votes {
            let before: Approval = store.record(&key(&tenant(), ID)).unwrap();
            let narrowed = narrows.map(|value| format!("{{\"/a\":{value}}}"));
            let seen = before.narrowed.clone();
            let verdict = Verdict::Approve { seen: seen.as_deref(), narrowed: narrowed.as_deref(), shown: "" };
            let by = ["a", "b", "c", "d", "e"][who];
            decide_with(&mut store, by, WORDS.get(role..=role).unwrap_or(&[]), verdict);
            let after: Approval = store.record(&key(&tenant(), ID)).unwrap();
            let is_met = after.demands.iter().all(|demand| {
                after.votes.values().filter(|vote| demand.admits(&vote.roles)).count() >= demand.quorum as usize
            });
            prop_assert_eq!(matches!(after.state, ApprovalState::Approved { .. }), is_met);
            if after.narrowed != before.narrowed {
                prop_assert_eq!(after.votes.len(), 1);
            }
            prop_assert_eq!(waits_in(&store), usize::from(!is_met));
            prop_assert_eq!(Approval::decode(&after.encode()), Ok(after));
        }
    }
}

#[test]
fn a_call_rejected_after_its_approval_keeps_the_approval() {
    let leave = |store: &mut MiniStore| {
        let tenant = tenant();
        let leaves = LeaveApproval { tenant: &tenant, id: ID };
        store.section(|transaction, view, context| leaves.add_to(transaction, view, context)).unwrap();
    };
    let mut store = asked(vec![demand(1, &[])]);
    assert_eq!(agree(&mut store, "kim", &[]), counts("approved", 0));
    let before = events_of(&store);
    leave(&mut store);
    let key = key(&tenant(), ID);
    let approved = ApprovalState::Approved { until_ms: 1_100 };
    assert_eq!(store.record::<Approval>(&key).unwrap().state, approved);
    assert_eq!((waits_in(&store), events_of(&store)), (0, before));
    let mut store = asked(vec![demand(1, &[])]);
    leave(&mut store);
    assert_eq!(store.record::<Approval>(&key).unwrap().state.word(), "void", "nobody can decide about it any more");
    assert_eq!(waits_in(&store), 0);
}
