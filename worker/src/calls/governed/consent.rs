//! People's consent to a call, where its tool or a rule demands it: whether it is there, how it is asked for, and what it
//! lets run.
//!
//! A consent is bound to all that the call is (see `tickfleet_model::approval`): the worker reckons anew what that is each
//! time, and one that was given to anything else is not found. The begin of the call uses it, so that a crash in between
//! neither loses it nor lets another have it; and where facts or an equal call stop the call, it stays.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_core::call::approval::{self, Approval, AskApproval, Consent, Demand, Shown, UseConsent, consent};
use tickfleet_core::call::begin::ConsentCheck;
use tickfleet_core::turn::WaitReason;
use tickfleet_core::{Guard, InboxKey, View, keys};
use tickfleet_engine::report;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::approval::{NarrowedValues, expires_ms, may_narrow, narrow};
use tickfleet_model::{ApprovalBinding, ApprovalReason, CallError, Outcome, limits};
use tickfleet_ops::metrics::ApprovalEvent;
use tickfleet_protocol::bounded_output;

use crate::batch::WaitFor;
use crate::calls::guards::{Passed, passed_with};
use crate::calls::messages;
use crate::calls::state::Calls;
use crate::calls::trying::{Disposition, Instead, Trying, Waiting};
use crate::tools::Toolbox;

/// A wait for a point in time is longer by this.
const CLOCK_ERROR: Duration = Duration::from_millis(20);
/// Bytes of the reasons for which a call asks, as people see them.
const WHY_BYTES_MAX: usize = 2 * 1024;

/// The consent that a call needs.
pub(in crate::calls) fn uses(trying: &Trying<'_>, passed: &Passed) -> UseConsent {
    let binding = binding(trying, passed);
    UseConsent { id: ApprovalBinding::id(&binding), binding }
}

impl Calls {
    /// Looks whether people have agreed to a call that has passed all other guards, and have changed its arguments. The view
    /// has the approval. Returns the call as it then runs, if it is another.
    ///
    /// # Errors
    /// What becomes of a call that cannot run with the changed arguments.
    pub(in crate::calls) async fn consented(
        &self,
        trying: &Trying<'_>,
        tools: &Toolbox,
        passed: &Passed,
        uses: &UseConsent,
        view: &View,
    ) -> Result<(ConsentCheck, Option<Passed>), Instead> {
        let (tenant, now_ms) = (&trying.slice.name.tenant, self.store.state().now_ms);
        let given = consent(view, tenant, uses, &trying.name(), now_ms).ok();
        let narrowed = match given {
            Some(Consent::Given { narrowed, .. }) => narrowed,
            // The begin decides what becomes of the call.
            _ => None,
        };
        let again = match &narrowed {
            Some(values) => Some(self.narrowed(trying, tools, passed, values).await?),
            None => None,
        };
        Ok((ConsentCheck { uses: uses.clone(), narrowed }, again))
    }

    /// People have agreed to a call, and it goes on. Each try looks anew; the call is counted once.
    pub(in crate::calls) fn count_agreed(&self, trying: &Trying<'_>) {
        if trying.is_first() {
            self.metrics.approval(ApprovalEvent::Approved);
        }
    }

    /// The end of a call that somebody denied.
    pub(in crate::calls) fn denied_by(&self, trying: &Trying<'_>, id: &str, by: &str, why: &str) -> Disposition {
        let error = denied(&self.redactor.text(by), &self.redactor.text(why), id);
        self.not_agreed(trying, error, ApprovalEvent::Denied)
    }

    /// The end of a call that people did not agree to in time.
    pub(in crate::calls) fn consent_expired(&self, trying: &Trying<'_>, since_ms: i64, id: &str) -> Disposition {
        self.not_agreed(trying, expired(since_ms, id), ApprovalEvent::Expired)
    }

    /// The end of a call that nobody can be asked about.
    pub(in crate::calls) fn cannot_be_asked(&self, trying: &Trying<'_>) -> Disposition {
        self.not_agreed(trying, cannot_be_asked(), ApprovalEvent::NotAsked)
    }

    fn not_agreed(&self, trying: &Trying<'_>, error: CallError, event: ApprovalEvent) -> Disposition {
        self.metrics.approval(event);
        trying.refused(Outcome::ApprovalRefused, error)
    }

    /// The call with the arguments that people have given it: they pass every guard again, and whatever asks about these
    /// had asked about the others.
    async fn narrowed(
        &self,
        trying: &Trying<'_>,
        tools: &Toolbox,
        passed: &Passed,
        values: &str,
    ) -> Result<Passed, Instead> {
        let instead = |disposition| Instead { disposition, counts: false };
        let refused = |problem: &str| instead(self.not_agreed(trying, not_narrowed(problem), ApprovalEvent::Narrowed));
        let begun = self.begun_by_another(trying).await;
        let values: NarrowedValues = serde_json::from_str(values).unwrap_or_default();
        let given = match narrow(passed.arguments.get(), &may_narrow(&passed.asked), &values) {
            Ok(given) => given,
            Err(problem) => return Err(begun.map_or_else(|| refused(&problem.to_string()), instead)),
        };
        let again = match passed_with(trying, tools, &given).await {
            Ok(again) => again,
            Err(ending) => {
                if let Some(begun) = begun {
                    return Err(instead(begun));
                }
                messages::count_rule(&ending.error, &self.metrics);
                let message = format!("A person approved this call with other arguments. {}", ending.error.message);
                return Err(instead(trying.refused(ending.outcome, CallError { message, ..ending.error })));
            }
        };
        let places: BTreeSet<&str> = passed.asked.iter().map(|asked| asked.place.as_str()).collect();
        if let Some(more) = again.asked.iter().find(|asked| !places.contains(asked.place.as_str())) {
            let problem = format!("{} needs an approval of the new ones, and none was requested", more.place);
            return Err(begun.map_or_else(|| refused(&problem), instead));
        }
        Ok(again)
    }

    /// A call that asks people, and waits for them; or its end, if too many calls wait for them already. `before` is the
    /// approval that was asked for an earlier form of the call, with its state.
    pub(in crate::calls) async fn asks(
        &self,
        trying: &Trying<'_>,
        passed: &Passed,
        uses: &UseConsent,
        before: Option<(String, &'static str)>,
    ) -> Disposition {
        let (spec, head) = (&passed.tool.spec, trying.head());
        let (arguments, short) = (passed.arguments.get(), self.short(&passed.arguments));
        let ask = AskApproval {
            id: uses.id.clone(),
            call: trying.name(),
            binding: uses.binding.clone(),
            shown: Shown {
                tool: spec.name.clone(),
                version: spec.version.clone(),
                abridged: short.is_some(),
                arguments: short.unwrap_or_else(|| arguments.to_owned()),
                bytes: arguments.len(),
                why: self.why_asked(&passed.asked, before),
                may_narrow: may_narrow(&passed.asked),
            },
            exact: arguments.to_owned().into(),
            demands: demands(&passed.asked),
            expires_ms: expires_ms(&passed.asked),
            early: early(trying, &uses.id, &spec.name),
            tenant_max: limits::APPROVALS_WAITING_MAX,
            agent_max: limits::APPROVALS_WAITING_OF_AGENT_MAX,
        };
        let tenant = &trying.slice.name.tenant;
        let mut view = View::default();
        let full = self.store.evaluate(&mut view, |view, context| ask.full(view, context, tenant, &head.agent));
        match full.await {
            Ok(Some(of_agent)) => return self.not_agreed(trying, too_many(of_agent), ApprovalEvent::NotAsked),
            Ok(None) => {}
            // The park decides: if it finds no room, the call is looked at again.
            Err(error) => tracing::debug!(%error, call = %trying.id, "failed to count waiting approvals"),
        }
        let at_most = ask.expires_ms.map_or_else(
            || self.store.clock().until(head.deadline_ms),
            |expires_ms| Duration::from_millis(expires_ms.unsigned_abs()),
        );
        let reason = WaitReason::Approval { approval: ask.id.clone() };
        let (wait, waits_while) = (WaitFor::Approval(Box::new(ask)), Vec::new());
        Disposition::WaitsFor(Box::new(Waiting { reason, at_most, wait, waits_while }))
    }

    /// How long a call waits for people who were asked before, and the condition of the wait: nobody has decided since.
    pub(in crate::calls) fn waits_for_people(
        &self,
        trying: &Trying<'_>,
        id: &str,
        view: &View,
    ) -> (Duration, Option<Guard>) {
        let key = approval::key(&trying.slice.name.tenant, id);
        let stored = view.record::<Approval>(&key).ok().flatten();
        let until_ms = stored.as_ref().and_then(|stored| stored.value.state.until_ms());
        let until_ms = until_ms.unwrap_or(trying.head().deadline_ms);
        // The estimated clock may be ahead, and the call would find people deciding still.
        let at_most = self.store.clock().until(until_ms) + CLOCK_ERROR;
        (at_most, stored.map(|stored| Guard::Version(key, stored.version)))
    }

    /// The arguments for lists, notices and whoever may not decide, without secrets and within a bound; none if these are
    /// the exact ones.
    fn short(&self, arguments: &RawValue) -> Option<String> {
        let clean = self.redactor.json(arguments.get()).into_owned();
        let short = match RawValue::from_string(clean) {
            Ok(clean) => bounded_output(clean, limits::APPROVAL_SHORT_BYTES_MAX).get().to_owned(),
            Err(_) => "null".to_owned(),
        };
        (short != arguments.get()).then_some(short)
    }

    /// What asks, as JSON, within a bound.
    fn why_asked(&self, asked: &[ApprovalReason], before: Option<(String, &'static str)>) -> String {
        let again = before.filter(|(_, state)| matches!(*state, "waiting" | "approved")).map(|(before, _)| {
            let why = format!("{before} was asked for before; the call, its tool or what asks has changed since then");
            json!({"place": "asked anew", "why": why})
        });
        let each = asked.iter().map(|asked| json!({"place": asked.place, "why": self.redactor.text(&asked.why)}));
        let mut all: Vec<Value> = again.into_iter().chain(each).collect();
        let asked = all.len();
        while json!(all).to_string().len() > WHY_BYTES_MAX && all.len() > 1 {
            all.pop();
        }
        if all.len() < asked {
            all.push(json!({"place": "…", "why": format!("{} more reasons are not shown", asked - all.len())}));
        }
        json!(all).to_string()
    }
}

/// What the turn's inbox is told at once, where the turn asks for that.
fn early(trying: &Trying<'_>, id: &str, tool: &str) -> Option<(InboxKey, String)> {
    let (name, head) = (&trying.slice.name, trying.head());
    let inbox = head.reply_to.as_ref().filter(|_| head.pending_approval)?;
    let message = report::pending_approval(name, head, (id, &trying.id, tool));
    Some((keys::inbox(&name.tenant, inbox), message))
}

/// The demands of everything that asks, each once.
fn demands(asked: &[ApprovalReason]) -> Vec<Demand> {
    let demand = |asked: &ApprovalReason| Demand {
        quorum: asked.demand.quorum,
        roles: asked.demand.by.iter().cloned().collect(),
    };
    asked.iter().map(demand).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The hash of all that a consent to this call is about.
fn binding(trying: &Trying<'_>, passed: &Passed) -> String {
    let head = trying.head();
    ApprovalBinding {
        tenant: &trying.slice.name.tenant,
        agent: &head.agent,
        turn: &trying.id.turn,
        position: trying.id.position,
        digest: &head.digest,
        times_ms: (head.submitted_ms, head.deadline_ms),
        tool: &passed.tool.spec,
        runs: &passed.tool.runs,
        arguments: &passed.arguments,
        asked: &passed.asked,
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
        "A person had to approve this call by {until}, and no approval that counts was there by then. It was not executed; \
         calling again asks again."
    );
    let error = refusal("expired", message, &json!({ "approval": id, "expired_at": until }));
    CallError { code: "approval_expired".into(), ..error }
}

fn too_many(of_agent: bool) -> CallError {
    let (of, what) = if of_agent {
        ("agent", format!("{} approvals of this agent wait already", limits::APPROVALS_WAITING_OF_AGENT_MAX))
    } else {
        ("tenant", format!("{} approvals of this tenant wait already", limits::APPROVALS_WAITING_MAX))
    };
    let message = format!(
        "A person has to approve this call, and {what}. It was not executed; try again later or use another approach."
    );
    refusal("too_many_waiting", message, &json!({ "bound": of }))
}

fn cannot_be_asked() -> CallError {
    refusal("not_asked", "A person has to approve this call, and no approver can be asked.".to_owned(), &json!({}))
}

fn not_narrowed(problem: &str) -> CallError {
    let message = format!(
        "A person approved this call with other arguments, which cannot be used: {problem}. It was not executed."
    );
    refusal("narrowed", message, &json!({}))
}
