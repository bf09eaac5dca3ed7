//! Governed calls: a purchase needs a quote, equal charges happen only once, and people approve some calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::Rng;
use tickfleet_core::audit::AuditAppend;
use tickfleet_core::call::CallName;
use tickfleet_core::call::approval::{
    self, ApprovalPreview, AskApproval, DecideApproval, DecideResult, Demand, RequestApproval, UseConsent, Verdict,
    VoidApproval,
};
use tickfleet_core::call::begin::ConsentCheck;
use tickfleet_core::call::claim::{ClaimEffect, Claimant, EffectEnd, EffectName, EndClaim, WaitForClaim};
use tickfleet_core::call::facts::{
    AppliedFactChange, CheckFacts, Condition, EndCalls, EndedCall, PossibleFactChange, SessionName, WaitForFacts,
};
use tickfleet_core::turn::{Park, ParkReason, ParkResult, Slice, WaitReason};
use tickfleet_core::{Query, Section, Value};
use tickfleet_model::policy::FactTransition;
use tickfleet_model::{Call, TenantId};

use crate::executor::yield_now;
use crate::fleet::{DEADLINE_MS, Process, ProcessEnded, Shared};

pub const TOOLS: [&str; 8] = ["quote", "quote", "buy", "sign", "sign", "charge0", "charge1", "charge2"];
/// For facts and claims; longer than a game.
const KEPT_MS: i64 = 3_600_000;

pub fn tenant() -> TenantId {
    TenantId::new("acme").unwrap()
}

pub struct Governed {
    call: CallName,
    tool: String,
    pub facts: Option<CheckFacts>,
    pub consent: Option<ConsentCheck>,
    pub claim: Option<ClaimEffect>,
}

impl Governed {
    pub fn of(slice: &Slice, position: usize, call: &Call) -> Self {
        let name = CallName::new(slice.name.turn.clone(), position);
        let tool = call.tool.clone();
        let head = &slice.turn.head;
        let mut governed = Self { call: name.clone(), tool: tool.clone(), facts: None, consent: None, claim: None };
        let changes = |sets| vec![PossibleFactChange { fact: "quoted".into(), sets, kept_ms: KEPT_MS }];
        let session = SessionName { tenant: tenant(), session: format!("agent:{}", head.agent) };
        if tool == "quote" {
            governed.facts = Some(CheckFacts { session, conditions: Vec::new(), changes: changes(true) });
        } else if tool == "buy" {
            let quoted = Condition { fact: "quoted".into(), required: true, shadow: false };
            // A retry does not evaluate the conditions again.
            let conditions = if slice.turn.attempts > 0 { Vec::new() } else { vec![quoted] };
            governed.facts = Some(CheckFacts { session, conditions, changes: changes(false) });
        } else if tool == "sign" {
            let uses = UseConsent { id: format!("a.{}.{position}", slice.name.turn), binding: "b".into() };
            governed.consent = Some(ConsentCheck { uses, narrowed: None });
        } else if tool.starts_with("charge") {
            let effect = EffectName { tenant: tenant(), tool: "charge".into(), hash: tool };
            let by = Claimant { call: name, digest: head.digest.clone(), admitted_ms: slice.turn.admitted_ms };
            governed.claim = Some(ClaimEffect { effect, by, window_ms: KEPT_MS, nothing: None });
        }
        governed
    }

    /// `ran` is `None` if it is unknown whether the call ran.
    pub fn ends(&self, slice: &Slice, ran: Option<bool>, result: &str) -> Vec<Box<dyn Section>> {
        let mut sections: Vec<Box<dyn Section>> = Vec::new();
        if let Some(facts) = &self.facts {
            let transition = if self.tool == "quote" { FactTransition::Set } else { FactTransition::Cleared };
            let changed = AppliedFactChange { fact: "quoted".into(), transition, kept_ms: KEPT_MS };
            let changes = ran.map(|ran| if ran { vec![changed] } else { Vec::new() });
            let calls = vec![EndedCall { call: self.call.clone(), changes }];
            sections.push(Box::new(EndCalls { session: facts.session.clone(), calls }));
        }
        if let Some(claim) = &self.claim {
            let end = match ran {
                Some(true) => EffectEnd::Ended(result.to_owned()),
                Some(false) => EffectEnd::Undone,
                None => EffectEnd::Unknown(result.to_owned()),
            };
            let effect = claim.effect.clone();
            let by = claim.by.clone();
            sections.push(Box::new(EndClaim { effect, by, end, window_ms: KEPT_MS }));
        }
        if let Some(approval) = slice.turn.approval.clone() {
            sections.push(Box::new(VoidSection(approval)));
        }
        sections
    }

    fn ask(&self, id: String) -> AskApproval {
        AskApproval {
            id,
            call: self.call.clone(),
            binding: "b".into(),
            shown: ApprovalPreview {
                tool: self.tool.clone(),
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
            tenant_max: 100,
            agent_max: 100,
        }
    }
}

/// For a worker that ends a turn while a call has no reported result.
pub fn unreported(slice: &Slice) -> Vec<Box<dyn Section>> {
    let mut sections: Vec<Box<dyn Section>> = Vec::new();
    if let Some(ends) = EndCalls::unreported(&tenant(), &slice.name.turn, &slice.turn) {
        sections.push(Box::new(ends));
    }
    if let Some(approval) = slice.turn.approval.clone() {
        sections.push(Box::new(VoidSection(approval)));
    }
    sections
}

struct VoidSection(String);

impl Section for VoidSection {
    fn add_to(
        &self,
        transaction: &mut tickfleet_core::Transaction,
        view: &tickfleet_core::View,
        context: &tickfleet_core::Context,
    ) -> Result<(), tickfleet_core::view::Undecided> {
        VoidApproval { tenant: &tenant(), id: &self.0 }.add_to(transaction, view, context)
    }
}

impl Process {
    pub async fn wait(
        &mut self,
        slice: &Slice,
        governed: &Governed,
        reason: WaitReason,
    ) -> Result<ParkResult, ProcessEnded> {
        let own = slice.turn.clone();
        let is_own = matches!(&reason, WaitReason::Fact { turn } if *turn == slice.name.turn);
        let most_ms = match &reason {
            WaitReason::Fact { .. } if is_own => 500,
            // Like `is_own`: if the wait is a deadlock, no other turn wakes the call.
            WaitReason::Fact { .. } => 20_000,
            // Short, because a scheduler that ends a canceled turn does not know its claim. Then nothing wakes the
            // call.
            WaitReason::EqualCall { .. } => 5_000,
            _ => 2 * DEADLINE_MS,
        };
        let tenant = tenant();
        let ask = match &reason {
            WaitReason::Approval { approval } => Some(governed.ask(approval.clone())),
            _ => None,
        };
        let request = ask.as_ref().map(|ask| RequestApproval { ask, tenant: &tenant, turn: &own });
        let facts = governed.facts.as_ref().map(|asks| WaitForFacts { asks, call: &governed.call, own: &own });
        let claim = governed.claim.as_ref().map(WaitForClaim);
        let sections: Vec<&dyn Section> = match &reason {
            WaitReason::Approval { .. } => request.iter().map(|one| one as &dyn Section).collect(),
            WaitReason::Fact { .. } => facts.iter().map(|one| one as &dyn Section).collect(),
            _ => claim.iter().map(|one| one as &dyn Section).collect(),
        };
        let reason = ParkReason::Wait { reason, most_ms, has_begun: false, cause: String::new() };
        let park = Park { slice, reason: &reason, had_parallel_reads: false, waits_while: &[], sections: &sections };
        self.decide(park).await?.ok_or(ProcessEnded)
    }
}

#[derive(Default)]
pub struct ApproverDecisions {
    pub meant: BTreeSet<String>,
    pub denied: BTreeSet<String>,
}

/// Most requests are approved. Sometimes one is denied, even after it was approved.
pub async fn approve(shared: Arc<Shared>, incarnation: u32, seed: u64) {
    let mut process = Process::new(&shared, "a", 0, incarnation, seed);
    loop {
        let _ = process.approve_once().await;
        yield_now().await;
    }
}

impl Process {
    async fn approve_once(&mut self) -> Result<(), ProcessEnded> {
        let tenant = tenant();
        let query = Query::First { set: approval::waiting_of(&tenant), upto: None, count: 4 };
        let Value::Members(mut ids) = self.read(query).await? else { return Ok(()) };
        if let Some(again) = self.shared.oracle.lock().unwrap().people.meant.iter().next_back() {
            ids.push((again.as_str().into(), 0));
        }
        for (id, place) in ids {
            let denies = place == 0 && self.rng.random_range(0..4) == 0 || self.rng.random_range(0..5) == 0;
            if place == 0 && !denies {
                continue;
            }
            if !denies {
                self.shared.oracle.lock().unwrap().people.meant.insert(id.to_string());
            }
            let roles = BTreeSet::new();
            let audit = AuditAppend { text: r#"{"meta":{"reason":"no"}}"#.into(), entries_max: 100 };
            let verdict =
                if denies { Verdict::Deny } else { Verdict::Approve { seen: None, narrowed: None, shown: "" } };
            let decide = DecideApproval {
                tenant: &tenant,
                id: &id,
                by: "kim",
                roles: &roles,
                reason: "no",
                verdict,
                audit: &audit,
            };
            if let Some(DecideResult::Counts { state: "denied", .. }) = self.decide(decide).await? {
                self.shared.oracle.lock().unwrap().people.denied.insert(id.to_string());
            }
        }
        Ok(())
    }
}

/// `executions` are in order: turn, position, tool, agent.
pub fn check(executions: &[(String, usize, String, String)], people: &ApproverDecisions) -> Vec<String> {
    let mut violations = Vec::new();
    let mut charged: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    let mut quotes: BTreeMap<&str, i64> = BTreeMap::new();
    for (turn, position, tool, agent) in executions {
        let left = quotes.entry(agent).or_default();
        match tool.as_str() {
            "quote" => *left += 1,
            "buy" => {
                *left -= 1;
                if *left < 0 {
                    violations.push(format!("{turn}/{position} buys without a quote"));
                }
            }
            "sign" => {
                let id = format!("a.{turn}.{position}");
                if !people.meant.contains(&id) || people.denied.contains(&id) {
                    violations.push(format!("{turn}/{position} signs without consent"));
                }
            }
            _ => charged.entry(tool).or_default().push((turn, *position)),
        }
    }
    for (tool, by) in charged.into_iter().filter(|(tool, by)| tool.starts_with("charge") && by.len() > 1) {
        violations.push(format!("{tool} is charged by {by:?}"));
    }
    violations
}
