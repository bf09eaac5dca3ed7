//! Tests of complete call lifecycles.

use std::collections::BTreeSet;

use serde_json::json;
use tickfleet_model::policy::FactTransition;

use super::approval::{ApprovalPreview, AskApproval, DecideApproval, Demand, RequestApproval, UseConsent, Verdict};
use super::begin::{Begin, BeginResult, ConsentCheck, Started};
use super::claim::{ClaimEffect, Claimant, EffectEnd, EffectName, EndClaim, WaitForClaim};
use super::facts::{
    AppliedFactChange, CheckFacts, Condition, EndCalls, EndedCall, PossibleFactChange, Session, SessionName,
    WaitForFacts,
};
use super::testing::{MiniStore, call, name, tenant, turn};
use crate::bounds::Bounds;
use crate::section::Section;
use crate::turn::end::{RenderedCall, ReplyFrame};
use crate::turn::slice::Slice;
use crate::turn::{Park, ParkReason, ParkResult, Settle, SettleResult, State, Turn, WaitReason};
use crate::view::View;

struct Governed {
    slice: Slice,
    facts: CheckFacts,
    claim: ClaimEffect,
}

impl Governed {
    fn new(store: &mut MiniStore, id: &str) -> Self {
        let session = SessionName { tenant: tenant(), session: "session:s".into() };
        let quoted = Condition { fact: "quoted".into(), required: true, shadow: false };
        let paid = PossibleFactChange { fact: "paid".into(), sets: true, kept_ms: 1_000 };
        let unquoted = PossibleFactChange { fact: "quoted".into(), sets: false, kept_ms: 1_000 };
        let effect = EffectName { tenant: tenant(), tool: "pay".into(), hash: "0a".into() };
        Self {
            slice: store.slice(id, &turn()),
            facts: CheckFacts { session, conditions: vec![quoted], changes: vec![paid, unquoted] },
            claim: ClaimEffect {
                effect,
                by: Claimant { call: call(id, 0), digest: "d0".into(), admitted_ms: 1 },
                window_ms: 1_000,
                nothing: None,
            },
        }
    }

    fn begin(&self, store: &mut MiniStore, view: &mut View, by: &str) -> BeginResult {
        let uses = UseConsent { id: self.approval(), binding: "bound".into() };
        let begin = Begin {
            slice: &self.slice,
            position: 0,
            by,
            once: true,
            is_durable: false,
            epoch: 0,
            lease_ms: 10_000,
            streak: None,
            facts: Some(self.facts.clone()),
            consent: Some(ConsentCheck { uses, narrowed: None }),
            claim: Some(self.claim.clone()),
            cache: None,
        };
        store.run_with(view, &begin)
    }

    fn start(&mut self, store: &mut MiniStore, view: &mut View, by: &str) -> Started {
        let BeginResult::Started(started) = self.begin(store, view, by) else { panic!("it does not begin") };
        (self.slice.version, self.slice.turn) = (started.version.clone(), started.turn.clone());
        *started
    }

    fn approval(&self) -> String {
        format!("apr-{}", self.slice.name.turn)
    }

    fn park(&self, store: &mut MiniStore, reason: WaitReason, section: &dyn Section) {
        let reason = ParkReason::Wait { reason, most_ms: 2_000, has_begun: false, cause: String::new() };
        let park = Park {
            slice: &self.slice,
            reason: &reason,
            had_parallel_reads: false,
            waits_while: &[],
            sections: &[section],
        };
        assert_eq!(store.run(&park), ParkResult::Until(store.now_ms + 2_000));
        let stored: Turn = store.record(&self.slice.name.record()).unwrap();
        assert_eq!(stored.state.word(), "waiting");
    }

    fn resume(&mut self, store: &mut MiniStore) {
        let timer = self.slice.name.timer();
        assert!(store.woken.remove(&timer) || store.due.remove(&timer), "no timer woke it");
        let stored: Turn = store.record(&self.slice.name.record()).unwrap();
        let id = self.slice.name.turn.to_string();
        self.slice = store.slice(&id, &Turn { state: State::Ready { upto: 2 }, ..stored });
    }

    fn ask(&self, store: &mut MiniStore) {
        let ask = AskApproval {
            id: self.approval(),
            call: self.claim.by.call.clone(),
            binding: "bound".into(),
            shown: ApprovalPreview {
                tool: "pay".into(),
                version: "1".into(),
                arguments: "{}".into(),
                abridged: false,
                bytes: 2,
                why: "[]".into(),
                may_narrow: BTreeSet::new(),
            },
            exact: "{}".into(),
            demands: vec![Demand { quorum: 1, roles: BTreeSet::new() }],
            expires_ms: None,
            early: None,
            tenant_max: 9,
            agent_max: 9,
        };
        let tenant = tenant();
        let request = RequestApproval { ask: &ask, tenant: &tenant, turn: &self.slice.turn };
        self.park(store, WaitReason::Approval { approval: self.approval() }, &request);
        let roles = BTreeSet::new();
        let audit = json!({});
        let bounds = Bounds::default();
        let agrees = DecideApproval {
            tenant: &tenant,
            id: &self.approval(),
            by: "kim",
            roles: &roles,
            reason: "",
            verdict: Verdict::Approve { seen: None, narrowed: None, shown: "" },
            audit: &audit,
            bounds: &bounds,
        };
        store.run(&agrees);
    }

    fn settle(&mut self, store: &mut MiniStore, view: &mut View) {
        let changed = |fact: &str, transition| AppliedFactChange { fact: fact.into(), transition, kept_ms: 1_000 };
        let changes = vec![changed("quoted", FactTransition::Cleared), changed("paid", FactTransition::Set)];
        let calls = vec![EndedCall { call: self.claim.by.call.clone(), changes: Some(changes) }];
        let facts = EndCalls { session: self.facts.session.clone(), calls };
        let ClaimEffect { effect, by, window_ms, .. } = self.claim.clone();
        let claim = EndClaim { effect, by, end: EffectEnd::Ended("7".into()), window_ms };
        let results = [RenderedCall { result: "7".into(), ..RenderedCall::default() }];
        let frame = ReplyFrame::default();
        let bounds = Bounds::default();
        let settle = Settle {
            slice: &self.slice,
            results: &results,
            frame: &frame,
            sections: &[&facts, &claim],
            reason: None,
            canceled: None,
            bounds: &bounds,
        };
        let SettleResult::Continues { version, turn } = store.run_with(view, &settle) else {
            panic!("it has one call left")
        };
        self.slice.advance(version, *turn);
        assert_eq!((self.slice.turn.session.as_ref(), self.slice.turn.approval.as_ref()), (None, None));
    }
}

fn quote(store: &mut MiniStore) {
    let key = SessionName { tenant: tenant(), session: "session:s".into() }.key();
    let mut session: Session = store.record(&key).unwrap_or_default();
    let quoted = AppliedFactChange { fact: "quoted".into(), transition: FactTransition::Set, kept_ms: 100_000 };
    session.change(&quoted, &call("q", 0), store.now_ms, store.now_ms);
    store.put(&key, &session);
}

#[test]
fn two_equal_calls_pay_once() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    quote(&mut store);
    let mut one = Governed::new(&mut store, "a");
    let mut other = Governed::new(&mut store, "b");
    for governed in [&mut one, &mut other] {
        assert_eq!(governed.begin(&mut store, &mut View::default(), "n0").word(), "asks");
        governed.ask(&mut store);
        governed.resume(&mut store);
    }
    let mut view = View::default();
    let reads = store.reads;
    let commits = store.commits;
    one.start(&mut store, &mut view, "n1");
    assert_eq!((store.reads - reads, store.commits - commits), (1, 1));
    let BeginResult::Waits(WaitReason::Fact { turn: awaited }) = other.begin(&mut store, &mut View::default(), "n2")
    else {
        panic!("it does not wait")
    };
    assert_eq!(awaited, name("a").turn);
    let own = other.slice.turn.clone();
    let caller = other.claim.by.call.clone();
    let section = WaitForFacts { asks: &other.facts.clone(), call: &caller, own: &own };
    other.park(&mut store, WaitReason::Fact { turn: awaited }, &section);
    // The other call has changed the session's record, so the settle needs two attempts.
    let reads = store.reads;
    let commits = store.commits;
    one.settle(&mut store, &mut view);
    assert_eq!((store.reads - reads, store.commits - commits), (0, 2));
    other.resume(&mut store);
    let refused = other.begin(&mut store, &mut View::default(), "n3");
    assert_eq!(refused.word(), "refused", "the quote is used up");
    quote(&mut store);
    assert_eq!(other.begin(&mut store, &mut View::default(), "n4").word(), "answered");
}

#[test]
fn a_call_parked_for_an_ended_call_resumes_at_once() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    quote(&mut store);
    let mut one = Governed::new(&mut store, "a");
    one.begin(&mut store, &mut View::default(), "n0");
    one.ask(&mut store);
    one.resume(&mut store);
    let mut view = View::default();
    one.start(&mut store, &mut view, "n1");
    let mut other = Governed::new(&mut store, "b");
    let BeginResult::Waits(reason) = other.begin(&mut store, &mut View::default(), "n2") else { panic!() };
    one.settle(&mut store, &mut view);
    let own = other.slice.turn.clone();
    let caller = other.claim.by.call.clone();
    let asks = other.facts.clone();
    other.park(&mut store, reason, &WaitForFacts { asks: &asks, call: &caller, own: &own });
    other.resume(&mut store);
    let claim = other.claim.clone();
    other.park(&mut store, WaitReason::EqualCall { turn: name("a").turn }, &WaitForClaim(&claim));
    other.resume(&mut store);
}
