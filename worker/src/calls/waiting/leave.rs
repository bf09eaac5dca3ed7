//! Whether a call's tool is called at all.

use tickfleet_model::{CallResult, Outcome};
use tickfleet_ops::metrics::BreakerEvent;

use crate::calls::call::Calls;
use crate::calls::messages;
use crate::calls::trying::{Disposition, RestingCall, Trying};
use crate::calls::waiting::breakers::Leave;
use crate::tools::RegisteredTool;

impl Calls {
    /// Leave to call the tool, asked for before people are asked, and before what they have said is used; what becomes of the call if it rests. A task's work is its agent's, which has breakers of its own
    /// for its models; and what has begun work elsewhere goes on.
    pub(in crate::calls) async fn leave<'a>(
        &'a self,
        trying: &'a Trying<'_>,
        tool: &'a RegisteredTool,
    ) -> Result<Leave<'a>, Disposition> {
        let (name, tenant) = (tool.spec.name.as_str(), &trying.slice.name.tenant);
        if trying.slice.meta.is_task || trying.waited {
            return Ok(Leave::always(&self.breakers, name, tenant));
        }
        let resting = match self.breakers.leave(name, tenant, &self.metrics) {
            Ok(leave) => return Ok(leave),
            Err(resting) => resting,
        };
        // Rule 25: it would be told as not sent. What has begun is not begun again, and may be found out about.
        if self.begun_by_another(trying).await.is_some() {
            return Ok(Leave::always(&self.breakers, name, tenant));
        }
        let tries = trying.tries();
        let error = messages::rested(&trying.call.tool, resting.endurance.failures_max, tries);
        let over = CallResult { attempts: tries, ..trying.result(Outcome::Transient, error) };
        Err(Disposition::Rests(Box::new(RestingCall {
            delay: resting.looks_again_after(&trying.id),
            at_most: self.ladder.longest_from(trying.attempt, resting.slowest),
            why: resting.why(name),
            over: Box::new(over),
        })))
    }

    /// A call ends that has rested for as long as it may.
    pub(in crate::calls) fn gave_up_resting(&self, over: &CallResult) {
        self.metrics.breaker(&over.tool, BreakerEvent::GaveUp);
        // What has never run is counted where it is rendered.
        if over.attempts > 0 {
            self.metrics.call_ended(&over.tool, over.outcome, None);
        }
    }
}
