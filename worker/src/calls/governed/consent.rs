//! People's consent to a call, where its tool or a rule demands it: whether it is there, how it is asked for, and what it
//! lets run.
//!
//! A consent is bound to all that the call is (see `tickfleet_model::approval`): the worker reckons anew what that is each
//! time, and one that was given to anything else is not found. It is taken before the call begins, under the call's fence,
//! so that a crash in between neither loses it nor lets another have it; and where facts or an equal call may still stop the
//! call, after these.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_engine::report;
use tickfleet_engine::time::rfc3339;
use tickfleet_model::approval::{Narrowed, demands_text, expires_ms, may_narrow, narrow};
use tickfleet_model::outcome::Approved;
use tickfleet_model::{ApprovalBinding, AskedBy, CallError, InboxName, Outcome, limits};
use tickfleet_ops::metrics::ApprovalEvent;
use tickfleet_protocol::bounded_output;
use tickfleet_store::{ApprovalsFull, AskApproval, Consent, UseApproval};

use crate::calls::call::{Calls, passed_with};
use crate::calls::governed::facts::{self, LetIn};
use crate::calls::guards::{Admitted, Passed};
use crate::calls::messages;
use crate::calls::trying::{Disposition, Stopped, Trying};
use crate::tools::Toolbox;

/// Bytes of the reasons for which a call asks, as people see them.
const WHY_BYTES_MAX: usize = 2 * 1024;

impl Calls {
    /// A call that passed every guard, and that facts and people let begin. Facts are asked before people are, and before what
    /// they have said is used up; and once more where it begins, which may be days later.
    ///
    /// # Errors
    /// What becomes of the call instead: it waits, or ends.
    pub(in crate::calls) async fn let_in(
        &self,
        trying: &Trying<'_>,
        tools: &Toolbox,
        passed: Passed,
    ) -> Result<Admitted, Disposition> {
        let (mut passed, approved, taken_later) = if passed.asked.is_empty() {
            (passed, None, None)
        } else {
            Box::pin(self.facts_allow(trying, &passed, tools)).await?;
            Box::pin(self.consented(trying, tools, passed)).await?
        };
        let changed = approved.as_ref().and_then(|approved| approved.arguments.as_deref());
        let entered_ms = match self.enter(trying, &passed.tool, changed, tools).await {
            Ok(LetIn { shadow, entered_ms }) => {
                passed.shadow.extend(shadow);
                entered_ms
            }
            Err(instead) => return Err(*instead),
        };
        let consent = match taken_later {
            // It may have to wait for an equal call yet.
            Some(question) if passed.tool.spec.effect_key.is_some() => Some(question),
            Some(question) => {
                self.take(trying, question).await?;
                self.count_agreed(trying);
                None
            }
            None => None,
        };
        Ok(Admitted { passed, approved, entered_ms, consent })
    }

    /// Looks whether people have agreed to a call that has passed all other guards. Answers the call as it may run: with
    /// other arguments, if they have changed some; and, where facts or an equal call may still stop it, how their consent is
    /// taken after that.
    ///
    /// # Errors
    /// What becomes of the call instead: it asks and waits, or ends.
    async fn consented(
        &self,
        trying: &Trying<'_>,
        tools: &Toolbox,
        passed: Passed,
    ) -> Result<(Passed, Option<Approved>, Option<UseApproval>), Disposition> {
        let binding = binding(trying, &passed);
        let id = ApprovalBinding::id(&binding);
        let question = UseApproval {
            name: trying.slice.name.clone(),
            fence: trying.slice.fence.clone(),
            position: trying.id.position,
            id: id.clone(),
            binding: binding.clone(),
            // A call that facts deny leaves its consent as it was, and so does one that waits for an equal call.
            takes: facts::row_of(trying.config, trying.slice, &trying.call.tool).is_none()
                && passed.tool.spec.effect_key.is_none(),
            agent: trying.slice.meta.agent.clone(),
        };
        match self.outbox.use_approval(question.clone()).await {
            Some(Consent::Given { narrowed, by }) => {
                if question.takes {
                    self.count_agreed(trying);
                }
                let approved = Approved { id, by, arguments: None };
                let taken_later = (!question.takes).then_some(UseApproval { takes: true, ..question });
                let (passed, approved) = match narrowed {
                    None => (passed, approved),
                    Some(values) => self.narrowed(trying, tools, passed, (approved, &values)).await?,
                };
                Ok((passed, Some(approved), taken_later))
            }
            Some(Consent::Waits) => Err(self.asks(trying, &passed, (id, binding), None).await),
            Some(Consent::None(before)) => Err(self.asks(trying, &passed, (id, binding), before).await),
            Some(Consent::Denied { by, why }) => Err(self.denied_by(trying, &id, &by, &why).await),
            Some(Consent::Expired(since_ms)) => {
                Err(self.refused(trying, expired(since_ms, &id), ApprovalEvent::Expired).await)
            }
            Some(Consent::Full(bound)) => Err(self.refused(trying, too_many(bound), ApprovalEvent::NotAsked).await),
            Some(Consent::Others) => {
                tracing::error!(call = %trying.id, approval = id, "approval id belongs to another call; ending the call");
                Err(self.refused(trying, cannot_be_asked(), ApprovalEvent::NotAsked).await)
            }
            Some(Consent::Stale) | None => {
                self.metrics.fenced("use_approval");
                Err(Disposition::Lost)
            }
        }
    }

    /// Takes the consent to a call that nothing else stops any more.
    ///
    /// # Errors
    /// What becomes of the call instead: the consent was withdrawn, or its time has come.
    async fn take(&self, trying: &Trying<'_>, question: UseApproval) -> Result<(), Disposition> {
        let id = question.id.clone();
        Err(match self.outbox.use_approval(question).await {
            Some(Consent::Given { .. }) => return Ok(()),
            Some(Consent::Denied { by, why }) => self.denied_by(trying, &id, &by, &why).await,
            Some(Consent::Expired(since_ms)) => {
                self.refused(trying, expired(since_ms, &id), ApprovalEvent::Expired).await
            }
            // Redis has lost it meanwhile: whoever leases the call next asks anew.
            Some(Consent::Waits | Consent::None(_) | Consent::Full(_) | Consent::Others) => {
                Disposition::HandBack(false)
            }
            Some(Consent::Stale) | None => {
                self.metrics.fenced("use_approval");
                Disposition::Lost
            }
        })
    }

    /// Begins a call that must not run twice, and that nothing but people stops any more: their consent is taken before, where
    /// that is still to be done.
    ///
    /// # Errors
    /// What becomes of the call instead, or that it is to be asked again.
    pub(in crate::calls) async fn begin_agreed(&self, trying: &Trying<'_>, admitted: &Admitted) -> Result<(), Stopped> {
        if let Some(question) = &admitted.consent {
            self.take(trying, question.clone()).await.map_err(Stopped::Ends)?;
        }
        let durability = admitted.passed.tool.spec.durable.unwrap_or(self.durable.0);
        self.begin(trying, Some(durability)).await?;
        if admitted.consent.is_some() {
            self.count_agreed(trying);
        }
        Ok(())
    }

    /// People have agreed to a call, and it goes on. Each try takes their consent anew; the call is counted once.
    fn count_agreed(&self, trying: &Trying<'_>) {
        if trying.attempt == 1 && !trying.waited {
            self.metrics.approval(ApprovalEvent::Approved);
        }
    }

    async fn denied_by(&self, trying: &Trying<'_>, id: &str, by: &str, why: &str) -> Disposition {
        let error = denied(&self.redactor.text(by), &self.redactor.text(why), id);
        self.refused(trying, error, ApprovalEvent::Denied).await
    }

    /// The call with the arguments that people have given it: they pass every guard again, and whatever asks about these
    /// had asked about the others.
    async fn narrowed(
        &self,
        trying: &Trying<'_>,
        tools: &Toolbox,
        passed: Passed,
        (approved, values): (Approved, &str),
    ) -> Result<(Passed, Approved), Disposition> {
        let values: Narrowed = serde_json::from_str(values).unwrap_or_default();
        let given = match narrow(passed.arguments.get(), &may_narrow(&passed.asked), &values) {
            Ok(given) => given,
            Err(problem) => {
                return Err(self.refused(trying, not_narrowed(&problem.to_string()), ApprovalEvent::Narrowed).await);
            }
        };
        let again = match passed_with(trying, tools, &given).await {
            Ok(again) => again,
            Err(ending) => {
                if let Some(begun) = self.begun_by_another(trying).await {
                    return Err(begun);
                }
                messages::count_rule(&ending.error, &self.metrics);
                let message = format!("A person approved this call with other arguments. {}", ending.error.message);
                return Err(trying.refused(ending.outcome, CallError { message, ..ending.error }));
            }
        };
        let places: BTreeSet<&str> = passed.asked.iter().map(|asked| asked.place.as_str()).collect();
        if let Some(more) = again.asked.iter().find(|asked| !places.contains(asked.place.as_str())) {
            let problem = format!("{} needs an approval of the new ones, and none was requested", more.place);
            return Err(self.refused(trying, not_narrowed(&problem), ApprovalEvent::Narrowed).await);
        }
        let approved = Approved { arguments: Some(again.arguments.clone()), ..approved };
        Ok((again, approved))
    }

    /// The end of a call that people did not agree to; unless somebody who is gone has begun it when they did.
    async fn refused(&self, trying: &Trying<'_>, error: CallError, event: ApprovalEvent) -> Disposition {
        if let Some(begun) = self.begun_by_another(trying).await {
            return begun;
        }
        self.metrics.approval(event);
        trying.refused(Outcome::ApprovalRefused, error)
    }

    /// People are asked, and the call waits.
    async fn asks(
        &self,
        trying: &Trying<'_>,
        passed: &Passed,
        (id, binding): (String, String),
        before: Option<(String, String)>,
    ) -> Disposition {
        // What somebody who is gone has begun may have happened: nobody needs to agree to it any more.
        if let Some(begun) = self.begun_by_another(trying).await {
            return begun;
        }
        let (meta, spec) = (&trying.slice.meta, &passed.tool.spec);
        let ask = AskApproval {
            name: trying.slice.name.clone(),
            fence: trying.slice.fence.clone(),
            queue: trying.slice.queue.clone(),
            position: trying.id.position,
            expires_ms: expires_ms(&passed.asked),
            agent: meta.agent.clone(),
            tool: (spec.name.clone(), spec.version.clone()),
            arguments: passed.arguments.get().to_owned(),
            short: self.short(&passed.arguments),
            why: self.why_asked(&passed.asked, before),
            demands: demands_text(&passed.asked),
            may_narrow: json!(may_narrow(&passed.asked)).to_string(),
            early: early(trying, &id, &spec.name),
            beside: false,
            id,
            binding,
        };
        Disposition::Asks(Box::new(ask))
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
    fn why_asked(&self, asked: &[AskedBy], before: Option<(String, String)>) -> String {
        let again = before.filter(|(_, state)| state == "waiting" || state == "approved").map(|(before, _)| {
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
fn early(trying: &Trying<'_>, id: &str, tool: &str) -> Option<(InboxName, String)> {
    let (name, meta) = (&trying.slice.name, &trying.slice.meta);
    let inbox = meta.reply_to.clone().filter(|_| meta.pending_approval)?;
    Some((inbox, report::pending_approval(name, meta, (id, &trying.id, tool))))
}

/// The hash of all that a consent to this call is about.
fn binding(trying: &Trying<'_>, passed: &Passed) -> String {
    let meta = &trying.slice.meta;
    ApprovalBinding {
        tenant: &trying.slice.name.tenant,
        agent: &meta.agent,
        turn: &trying.id.turn,
        position: trying.id.position,
        digest: &meta.digest,
        times_ms: (meta.submitted_ms, meta.deadline_ms),
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

fn too_many(bound: ApprovalsFull) -> CallError {
    let (of, what) = match bound {
        ApprovalsFull::Tenant => {
            ("tenant", format!("{} approvals of this tenant wait already", limits::APPROVALS_WAITING_MAX))
        }
        ApprovalsFull::Agent => {
            ("agent", format!("{} approvals of this agent wait already", limits::APPROVALS_WAITING_OF_AGENT_MAX))
        }
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
