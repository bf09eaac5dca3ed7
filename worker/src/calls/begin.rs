//! The begin of a call that must not happen twice: it is written down, and where that has to be durable, it is waited for,
//! before the call runs; and what its handler gets to know of it.

use std::time::Duration;

use tickfleet_engine::report;
use tickfleet_model::outcome::Approved;
use tickfleet_model::{CallResult, Durability, Outcome, idempotency_key};
use tickfleet_store::{ASKS, Begin, Begun, Confirmed};
use tokio::time::Instant;

use crate::calls::call::Calls;
use crate::calls::messages;
use crate::calls::trying::{Disposition, Stopped, Trying};
use crate::tools::inner::Inner;
use crate::tools::{CallContext, ToolSecrets, Toolbox};

/// The time between two begins of a Redis that has just restarted.
const HOLD: Duration = Duration::from_millis(500);

impl Calls {
    /// Asks whether somebody has begun a call that will not run. Answers how it ends, if somebody has.
    pub(super) async fn ask(&self, trying: &Trying<'_>) -> Option<Disposition> {
        loop {
            match self.begin(trying, None).await {
                Ok(()) => return None,
                Err(Stopped::Ends(stopped)) => return Some(stopped),
                Err(Stopped::Held) => {}
            }
        }
    }

    /// Records the intent of a call whose effect must not happen twice, so that what `runs` names knows of it; where it
    /// will not run, only asks whether somebody has begun it.
    ///
    /// # Errors
    /// How the call ends instead; or that it is to be asked again.
    pub(super) async fn begin(&self, trying: &Trying<'_>, runs: Option<Durability>) -> Result<(), Stopped> {
        let fresh = |_| format!("{}.{}", trying.slice.fence, self.lease_clock.sending());
        let nonce = runs.map_or_else(|| ASKS.to_owned(), fresh);
        let durability = runs.unwrap_or_default();
        let (name, position) = (&trying.slice.name, trying.id.position);
        let rounds = self.claims.rounds();
        let begin = Begin {
            name: trying.slice.name.clone(),
            fence: trying.slice.fence.clone(),
            position: trying.id.position,
            nonce: Some(nonce.clone()),
            digest: trying.slice.meta.digest.clone(),
            knows: self.claims.told_to(),
        };
        let asked = Instant::now();
        let answer = self.outbox.begin_durably(begin, durability, self.durable.1).await;
        let (begun, confirmed) = answer.map_or((None, Confirmed::Yes), |(begun, confirmed)| (Some(begun), confirmed));
        Err(Stopped::Ends(match begun {
            Some(Begun::Ok) if runs.is_none() => return Ok(()),
            Some(Begun::Ok) => {
                let meta = &trying.slice.meta;
                self.claims.begun(name, position, &meta.digest, &nonce, meta.deadline_ms);
                if self.claims.rounds() != rounds && !self.claims.begun_for_sure(name, position).await {
                    self.metrics.fenced("begin");
                    // Nothing of it was sent, so no other Redis has to hear of it. What this one may have heard is not taken back:
                    // the call is another's there, or nobody answers any more.
                    drop(self.claims.undone(name, position));
                    Disposition::Lost
                } else {
                    return self.confirmed(trying, durability, confirmed, asked.elapsed()).map_err(Stopped::Ends);
                }
            }
            Some(Begun::Kept(result)) => Disposition::Kept(result),
            Some(Begun::Unknown) => {
                // Whoever began it was lost, or could not write its result: both are true of what is said.
                let what = "This call was begun before, and no result of it was recorded.";
                let error = messages::outcome_unknown(&trying.call.tool, what);
                let approval = self.consent_before(trying).await;
                let unknown = CallResult { approval, ..trying.result(Outcome::OutcomeUnknown, error) };
                Disposition::Ended(Box::new(unknown), Vec::new())
            }
            Some(over @ (Begun::Cancelled | Begun::Expired)) => self.over_before(trying, over).await,
            // Redis restarted; what it lost may include another's begin of this very call.
            Some(Begun::Hold) => tokio::select! {
                () = self.now.cancelled() => Disposition::HandBack(false),
                () = tokio::time::sleep(HOLD) => return Err(Stopped::Held),
            },
            Some(Begun::Stale | Begun::Done) | None => {
                self.metrics.fenced("begin");
                Disposition::Lost
            }
        }))
    }

    /// The consent that somebody who is gone had to a call that they have begun.
    async fn consent_before(&self, trying: &Trying<'_>) -> Option<Approved> {
        let consent = self.store.used_consent(&trying.slice.name).await.unwrap_or_else(|error| {
            tracing::warn!(%error, call = %trying.id, "failed to read the approval of a call that began earlier");
            None
        });
        let consent = consent.filter(|consent| consent.position == trying.id.position);
        consent.map(|consent| report::approved(&consent, &trying.call.arguments))
    }

    /// A call that has begun runs only if that would survive what its tool is to survive. Else nothing of it is sent: it
    /// failed at this try, and certainly did nothing.
    fn confirmed(
        &self,
        trying: &Trying<'_>,
        durability: Durability,
        confirmed: Confirmed,
        took: Duration,
    ) -> Result<(), Disposition> {
        if durability == Durability::None {
            return Ok(());
        }
        self.metrics.begun_durably(durability, confirmed == Confirmed::Yes, took);
        let message = match confirmed {
            Confirmed::Yes => return Ok(()),
            Confirmed::NotInTime => messages::not_durable(durability, self.durable.1),
            Confirmed::CannotTell(why) => {
                let durable = durability.as_str();
                tracing::error!(call = %trying.id, durable, why, "Redis cannot confirm that the begin is durable; call not executed");
                messages::cannot_be_durable(durability)
            }
        };
        Err(self.try_again(trying, &message, None, messages::NOT_DURABLE))
    }

    /// What a handler gets to know of the call.
    pub(super) fn context(&self, trying: &Trying<'_>, tools: Toolbox, inner: Inner) -> CallContext {
        let meta = &trying.slice.meta;
        CallContext {
            tenant: trying.slice.name.tenant.clone(),
            agent: meta.agent.clone(),
            call: trying.id.clone(),
            idempotency_key: idempotency_key(
                &trying.slice.name.tenant,
                &trying.id.turn,
                &meta.digest,
                trying.id.position,
            ),
            deadline_ms: meta.deadline_ms,
            attempt: trying.attempt,
            context: trying.context.clone(),
            task: meta.task.clone(),
            tools,
            reply_to: meta.reply_to.clone(),
            secrets: ToolSecrets::default(),
            fence: trying.slice.fence.clone(),
            waited: trying.waited,
            may_be_forgotten: self.may_be_forgotten(trying),
            inner,
            cancel: trying.hold.cancel.child_token(),
        }
    }
}
