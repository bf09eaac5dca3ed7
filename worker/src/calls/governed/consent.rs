//! People's consent to calls that need approval. A consent is bound to the exact call (see
//! `tickfleet_model::approval`). The decision that begins the call uses the consent, so a crash never loses it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_core::call::approval::{
    self, Approval, ApprovalPreview, AskApproval, Consent, Demand, UseConsent, consent,
};
use tickfleet_core::turn::WaitReason;
use tickfleet_core::{Guard, InboxKey, View, keys};
use tickfleet_engine::report;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::approval::{NarrowedValues, expires_ms, may_narrow, narrow};
use tickfleet_model::{ApprovalBinding, ApprovalReason, CallError, Outcome, Redactor, limits};
use tickfleet_ops::metrics::{ApprovalEvent, Metrics};
use tickfleet_protocol::bounded_output;
use tickfleet_store::Store;

use crate::Common;
use crate::batch::WaitFor;
use crate::calls::call_attempt::{AttemptOutcome, BeginWait, CallAttempt, NotBegun};
use crate::calls::guards::{CheckedCall, passed_with};
use crate::calls::messages;
use crate::tools::Toolbox;

/// Added to a wait that must not end too early: the estimated clock may be ahead.
const CLOCK_ERROR: Duration = Duration::from_millis(20);
const WHY_BYTES_MAX: usize = 2 * 1024;

pub(in crate::calls) fn uses(attempt: &CallAttempt<'_>, passed: &CheckedCall) -> UseConsent {
    let binding = binding(attempt, passed);
    UseConsent { id: ApprovalBinding::id(&binding), binding }
}

pub(in crate::calls) struct Approvals {
    store: Store,
    redactor: Arc<Redactor>,
    metrics: Arc<Metrics>,
}

impl Approvals {
    pub(in crate::calls) fn new(common: &Common, redactor: &Arc<Redactor>) -> Self {
        Self { store: common.store.clone(), redactor: redactor.clone(), metrics: common.metrics.clone() }
    }

    /// The arguments that people changed, as JSON. If the call has no consent, the core's `Begin` decides about it.
    pub(in crate::calls) fn narrowed_values(
        &self,
        attempt: &CallAttempt<'_>,
        uses: &UseConsent,
        view: &View,
    ) -> Option<String> {
        let now_ms = self.store.state().now_ms;
        match consent(view, &attempt.slice.name.tenant, uses, &attempt.name(), now_ms) {
            Ok(Consent::Given { narrowed, .. }) => narrowed,
            _ => None,
        }
    }

    pub(in crate::calls) fn count_approved(&self, attempt: &CallAttempt<'_>) {
        if attempt.is_first() {
            self.metrics.approval(ApprovalEvent::Approved);
        }
    }

    pub(in crate::calls) fn denied_by(
        &self,
        attempt: &CallAttempt<'_>,
        id: &str,
        by: &str,
        why: &str,
    ) -> AttemptOutcome {
        let error = denied(&self.redactor.text(by), &self.redactor.text(why), id);
        self.refuse_approval(attempt, error, ApprovalEvent::Denied)
    }

    pub(in crate::calls) fn consent_expired(
        &self,
        attempt: &CallAttempt<'_>,
        since_ms: i64,
        id: &str,
    ) -> AttemptOutcome {
        self.refuse_approval(attempt, expired(since_ms, id), ApprovalEvent::Expired)
    }

    pub(in crate::calls) fn cannot_be_asked(&self, attempt: &CallAttempt<'_>) -> AttemptOutcome {
        self.refuse_approval(attempt, cannot_be_asked(), ApprovalEvent::NotAsked)
    }

    fn refuse_approval(&self, attempt: &CallAttempt<'_>, error: CallError, event: ApprovalEvent) -> AttemptOutcome {
        self.metrics.approval(event);
        attempt.refused(Outcome::ApprovalRefused, error)
    }

    /// Applies the arguments that people changed. They must not need an approval that the original arguments did not
    /// need. The error is the outcome of a call that cannot run with these arguments: `begun`, if the call began before.
    pub(in crate::calls) async fn narrowed(
        &self,
        attempt: &CallAttempt<'_>,
        tools: &Toolbox,
        passed: &CheckedCall,
        values: &str,
        begun: Option<AttemptOutcome>,
    ) -> Result<CheckedCall, NotBegun> {
        let not_begun = |outcome| NotBegun { outcome, counts: false };
        let refused =
            |problem: &str| not_begun(self.refuse_approval(attempt, not_narrowed(problem), ApprovalEvent::Narrowed));
        let values: NarrowedValues = serde_json::from_str(values).unwrap_or_default();
        let given = match narrow(passed.arguments.get(), &may_narrow(&passed.approvals), &values) {
            Ok(given) => given,
            Err(problem) => return Err(begun.map_or_else(|| refused(&problem.to_string()), not_begun)),
        };
        let again = match passed_with(attempt, tools, &given).await {
            Ok(again) => again,
            Err(ending) => {
                if let Some(begun) = begun {
                    return Err(not_begun(begun));
                }
                messages::count_rule(&ending.error, &self.metrics);
                let message = format!("A person approved this call with other arguments. {}", ending.error.message);
                return Err(not_begun(attempt.refused(ending.outcome, CallError { message, ..ending.error })));
            }
        };
        let places: BTreeSet<&str> = passed.approvals.iter().map(|reason| reason.place.as_str()).collect();
        if let Some(more) = again.approvals.iter().find(|reason| !places.contains(reason.place.as_str())) {
            let problem = format!("{} requires an approval of the new arguments, but none was requested", more.place);
            return Err(begun.map_or_else(|| refused(&problem), not_begun));
        }
        Ok(again)
    }

    /// If too many calls already wait for people, the call ends instead. `before` is the ID and state of an earlier
    /// approval.
    pub(in crate::calls) async fn request_approval(
        &self,
        attempt: &CallAttempt<'_>,
        passed: &CheckedCall,
        uses: &UseConsent,
        before: Option<(String, &'static str)>,
    ) -> AttemptOutcome {
        let spec = &passed.tool.spec;
        let head = attempt.head();
        let arguments = passed.arguments.get();
        let short = self.short(&passed.arguments);
        let ask = AskApproval {
            id: uses.id.clone(),
            call: attempt.name(),
            binding: uses.binding.clone(),
            shown: ApprovalPreview {
                tool: spec.name.clone(),
                version: spec.version.clone(),
                abridged: short.is_some(),
                arguments: short.unwrap_or_else(|| arguments.to_owned()),
                bytes: arguments.len(),
                why: self.approval_reasons(&passed.approvals, before),
                may_narrow: may_narrow(&passed.approvals),
            },
            exact: arguments.to_owned().into(),
            demands: demands(&passed.approvals),
            expires_ms: expires_ms(&passed.approvals),
            early: early(attempt, &uses.id, &spec.name),
            tenant_max: limits::APPROVALS_WAITING_MAX,
            agent_max: limits::APPROVALS_WAITING_OF_AGENT_MAX,
        };
        let tenant = &attempt.slice.name.tenant;
        let mut view = View::default();
        let full = self.store.evaluate(&mut view, |view, context| ask.full(view, context, tenant, &head.agent));
        match full.await {
            Ok(Some(of_agent)) => return self.refuse_approval(attempt, too_many(of_agent), ApprovalEvent::NotAsked),
            Ok(None) => {}
            // The failure is harmless, because parking the call counts the waiting approvals again.
            Err(error) => tracing::debug!(%error, call = %attempt.id, "failed to count waiting approvals"),
        }
        let at_most = ask.expires_ms.map_or_else(
            || self.store.clock().until(head.deadline_ms),
            |expires_ms| Duration::from_millis(expires_ms.unsigned_abs()),
        );
        let reason = WaitReason::Approval { approval: ask.id.clone() };
        let wait = WaitFor::Approval(Box::new(ask));
        let waits_while = Vec::new();
        AttemptOutcome::WaitToBegin(Box::new(BeginWait { reason, at_most, wait, waits_while }))
    }

    /// Returns how long the call waits, and the guard of the wait: the approval's record must stay unchanged.
    pub(in crate::calls) fn approval_wait_bounds(
        &self,
        attempt: &CallAttempt<'_>,
        id: &str,
        view: &View,
    ) -> (Duration, Option<Guard>) {
        let key = approval::key(&attempt.slice.name.tenant, id);
        let stored = view.record::<Approval>(&key).ok().flatten();
        let until_ms = stored.as_ref().and_then(|stored| stored.value.state.until_ms());
        let until_ms = until_ms.unwrap_or(attempt.head().deadline_ms);
        let at_most = self.store.clock().until(until_ms) + CLOCK_ERROR;
        (at_most, stored.map(|stored| Guard::Version(key, stored.version)))
    }

    /// The short form is for lists, notices and people without the right to decide. `None` if the short form equals the
    /// exact arguments.
    fn short(&self, arguments: &RawValue) -> Option<String> {
        let clean = self.redactor.json(arguments.get()).into_owned();
        let short = match RawValue::from_string(clean) {
            Ok(clean) => bounded_output(clean, limits::APPROVAL_SHORT_BYTES_MAX).get().to_owned(),
            Err(_) => "null".to_owned(),
        };
        (short != arguments.get()).then_some(short)
    }

    /// Returns JSON. Reasons beyond [`WHY_BYTES_MAX`] are only counted.
    fn approval_reasons(&self, reasons: &[ApprovalReason], before: Option<(String, &'static str)>) -> String {
        let again = before.filter(|(_, state)| matches!(*state, "waiting" | "approved")).map(|(before, _)| {
            let why =
                format!("{before} was requested before; since then, the call, its tool or the rules have changed");
            json!({"place": "asked again", "why": why})
        });
        let each = reasons.iter().map(|reason| json!({"place": reason.place, "why": self.redactor.text(&reason.why)}));
        let mut all: Vec<Value> = again.into_iter().chain(each).collect();
        let count = all.len();
        while json!(all).to_string().len() > WHY_BYTES_MAX && all.len() > 1 {
            all.pop();
        }
        if all.len() < count {
            all.push(json!({"place": "…", "why": format!("{} more reasons are not shown", count - all.len())}));
        }
        json!(all).to_string()
    }
}

fn early(attempt: &CallAttempt<'_>, id: &str, tool: &str) -> Option<(InboxKey, String)> {
    let name = &attempt.slice.name;
    let head = attempt.head();
    let inbox = head.reply_to.as_ref().filter(|_| head.pending_approval)?;
    let message = report::pending_approval(name, head, id, &attempt.id, tool);
    Some((keys::inbox(&name.tenant, inbox), message))
}

fn demands(reasons: &[ApprovalReason]) -> Vec<Demand> {
    let demand = |reason: &ApprovalReason| Demand {
        quorum: reason.demand.quorum,
        roles: reason.demand.by.iter().cloned().collect(),
    };
    reasons.iter().map(demand).collect::<BTreeSet<_>>().into_iter().collect()
}

fn binding(attempt: &CallAttempt<'_>, passed: &CheckedCall) -> String {
    let head = attempt.head();
    ApprovalBinding {
        tenant: &attempt.slice.name.tenant,
        agent: &head.agent,
        turn: &attempt.id.turn,
        position: attempt.id.position,
        digest: &head.digest,
        times_ms: (head.submitted_ms, head.deadline_ms),
        tool: &passed.tool.spec,
        runs: &passed.tool.runs,
        arguments: &passed.arguments,
        approvals: &passed.approvals,
    }
    .hash()
}

fn refusal(reason: &str, message: String, details: &Value) -> CallError {
    let mut all = json!({ "reason": reason });
    if let (Some(all), Some(details)) = (all.as_object_mut(), details.as_object()) {
        all.extend(details.clone());
    }
    CallError { details: Some(all), ..messages::error(Outcome::ApprovalRefused, message) }
}

fn denied(by: &str, why: &str, id: &str) -> CallError {
    let because = if why.is_empty() { String::new() } else { format!(": {}", why.trim_end_matches('.')) };
    let message = format!("{by} was asked to approve this call and denied it{because}. It was not executed.");
    refusal("denied", message, &json!({ "approval": id, "by": by }))
}

fn expired(since_ms: i64, id: &str) -> CallError {
    let until = rfc3339(since_ms);
    let message = format!(
        "This call needed a person's approval by {until}, and no valid approval arrived in time. It was not executed; \
         call again to request a new approval."
    );
    let error = refusal("expired", message, &json!({ "approval": id, "expired_at": until }));
    CallError { code: "approval_expired".into(), ..error }
}

fn too_many(of_agent: bool) -> CallError {
    let (of, what) = if of_agent {
        ("agent", format!("this agent already has {} pending approvals", limits::APPROVALS_WAITING_OF_AGENT_MAX))
    } else {
        ("tenant", format!("this tenant already has {} pending approvals", limits::APPROVALS_WAITING_MAX))
    };
    let message = format!(
        "This call needs a person's approval, but {what}. It was not executed; try again later or use another approach."
    );
    refusal("too_many_waiting", message, &json!({ "bound": of }))
}

fn cannot_be_asked() -> CallError {
    refusal("not_asked", "This call needs a person's approval, but no approver can be asked.".to_owned(), &json!({}))
}

fn not_narrowed(problem: &str) -> CallError {
    let message = format!(
        "A person approved this call with other arguments, which cannot be used: {problem}. It was not executed."
    );
    refusal("narrowed", message, &json!({}))
}
