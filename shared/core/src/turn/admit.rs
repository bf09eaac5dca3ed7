//! Admits an inbound turn: creates its record, then dispatches, throttles or ends its first calls.

use bytes::Bytes;
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{Call, Priority, RejectionCode};

use super::advance::{AdvanceResult, Candidate};
use super::end::{GivenId, GivenState, Render, waiter};
use super::limit::Policy;
use super::state::{Destination, EndReason, Head, State, Turn};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName, limits};
use crate::mutant;
use crate::record::Record;
use crate::recovery::epoch::recovered_calls;
use crate::recovery::inbound::TakenInbound;
use crate::task::cancel::{cancel_of, take_early};
use crate::transaction::{ConditionalDebit, Conflict, CounterKey, EntryId, Guard, Transaction, Write};
use crate::view::{Query, Undecided, View};

pub struct Admit<'a> {
    pub entry: TakenInbound,
    /// The message's first entry decides the turn's place in throttle queues.
    pub origin: EntryId,
    pub name: TurnName,
    pub given: bool,
    pub head: Head,
    pub priority: Priority,
    pub calls: &'a [Call],
    pub policy: &'a dyn Policy,
    pub render: &'a dyn Render,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmitResult {
    Advanced(AdvanceResult),
    /// The entry is acknowledged.
    Duplicate,
    /// Another scheduler has the entry, or the store has restarted. Nothing was written.
    NotHeld,
    /// Nothing was written. The caller must reject the turn ([`super::reject::Reject`]).
    Refused(AdmitRefusal),
    /// The policy or the run-time settings are outdated. Nothing was written.
    PolicyStale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitRefusal {
    /// The ID was accepted before with other content.
    Conflict,
    UnknownAgent,
    UnknownTask,
    /// The tenant's declaration at run time cannot be read.
    UnreadableTenant,
    TenantQueueFull,
    InboxFull,
    TooManyInboxes,
}

impl AdmitRefusal {
    #[must_use]
    pub const fn code(self) -> RejectionCode {
        match self {
            Self::Conflict => RejectionCode::Conflict,
            Self::UnknownAgent => RejectionCode::UnknownAgent,
            Self::UnknownTask => RejectionCode::UnknownTask,
            Self::UnreadableTenant => RejectionCode::UnreadableTenant,
            Self::TenantQueueFull => RejectionCode::TenantQueueFull,
            Self::InboxFull => RejectionCode::InboxFull,
            Self::TooManyInboxes => RejectionCode::TooManyInboxes,
        }
    }
}

/// Returns the score in throttle queues: smaller for earlier entries.
#[must_use]
pub fn place_of(entry: &EntryId) -> u64 {
    const SEQUENCES: u64 = 4_096;
    let (ms, sequence) = entry.as_str().split_once('-').unwrap_or((entry.as_str(), "0"));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    number(ms).saturating_mul(SEQUENCES).saturating_add(number(sequence).min(SEQUENCES - 1)).min(1 << 53)
}

enum Known {
    New,
    /// The producer chose the ID. The guard fails if the ID's record changes.
    Queued(Guard),
    Admitted,
    Taken,
}

impl Decision for Admit<'_> {
    type Output = AdmitResult;

    fn reads(&self) -> Vec<Query> {
        let task = self.task().map(|task| task.record());
        self.given.then(|| self.name.given()).into_iter().chain(task).map(Query::Record).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<AdmitResult>, Undecided> {
        if self.entry.is_lost(context) {
            return Ok(Step::Return(AdmitResult::NotHeld));
        }
        let mut transaction = Transaction::new(context.version.clone());
        match self.known(view, context)? {
            Known::Taken => return Ok(Step::Return(AdmitResult::Refused(AdmitRefusal::Conflict))),
            Known::Admitted => {
                self.entry.acknowledge(keys::turns(), &mut transaction);
                return Ok(Step::Commit(transaction, AdmitResult::Duplicate));
            }
            Known::Queued(guard) => {
                transaction.guard(guard);
            }
            Known::New if self.given => {
                transaction.guard(Guard::Absent(self.name.given()));
            }
            Known::New => {}
        }
        let refused = refusal(context);
        if let Some(code) = refused
            && !self.has_begun(view, context)?
        {
            return Ok(Step::Return(AdmitResult::Refused(code)));
        }
        if context.failed(|conflict| matches!(conflict, Conflict::Generation { .. })) {
            return Ok(Step::Return(AdmitResult::PolicyStale));
        }
        let mut budget = None;
        let mut ends = None;
        match self.budget(&mut transaction, view)? {
            Budget::Granted(granted) => budget = Some(granted),
            Budget::Unlimited => {}
            Budget::Unknown if self.has_begun(view, context)? => ends = Some(Ends::canceled(TASK_HAS_ENDED.to_owned())),
            Budget::Unknown => return Ok(Step::Return(AdmitResult::Refused(AdmitRefusal::UnknownTask))),
        }
        let plan = AdmissionPlan { budget, ends, is_bounded: refused.is_none() };
        self.admit(plan, transaction, view, context)
    }
}

const TASK_HAS_ENDED: &str = "the task that it ran under has ended";

struct AdmissionPlan {
    budget: Option<u64>,
    ends: Option<Ends>,
    /// True if the tenant's maxima are checked. False if calls of the turn may have run before a restart of the store:
    /// the first admission has checked the maxima.
    is_bounded: bool,
}

enum Budget {
    Unlimited,
    /// Includes the calls of subtasks.
    Granted(u64),
    Unknown,
}

impl Admit<'_> {
    fn admit(
        &self,
        plan: AdmissionPlan,
        mut transaction: Transaction,
        view: &View,
        context: &Context,
    ) -> Result<Step<AdmitResult>, Undecided> {
        transaction.dedupe_record = Some(self.name.record());
        transaction.guard(Guard::Absent(self.name.record()));
        let AdmissionPlan { budget, ends, is_bounded } = plan;
        let ends = ends.or(self.ends(&mut transaction, view, context)?);
        if let Some(inbox) = self.head.reply_to.as_ref().filter(|_| is_bounded) {
            let unread_max = self.bounds.inbox_unread_max;
            let inboxes_max = self.bounds.inboxes_max;
            let inbox = keys::inbox(&self.name.tenant, inbox);
            transaction.guard(Guard::Inbox { inbox, unread_max, inboxes_max });
        }
        let mut candidate = self.candidate(budget, context);
        let bytes = candidate.turn.bytes;
        if self.given {
            let given = GivenId { digest: self.head.digest.clone(), state: GivenState::Admitted };
            transaction.put(&self.name.given(), &given);
        }
        let mut advanced = match ends {
            _ if self.calls.is_empty() => candidate.finish(Vec::new(), None, &mut transaction, view, context)?,
            Some(reason) => {
                candidate.turn.canceled = reason.canceled;
                candidate.end(reason.reason, &mut transaction, view, context)?
            }
            None => candidate.advance(&mut transaction, view, context)?,
        };
        if advanced == AdvanceResult::AgentRemoved && self.has_begun(view, context)? {
            let candidate = self.candidate(budget, context);
            candidate.guard_policy(&mut transaction);
            advanced = candidate.end(EndReason::AgentRemoved, &mut transaction, view, context)?;
        }
        match &advanced {
            AdvanceResult::AgentRemoved => return Ok(Step::Return(AdmitResult::Refused(AdmitRefusal::UnknownAgent))),
            AdvanceResult::Withheld => return Ok(Step::Return(AdmitResult::Refused(AdmitRefusal::UnreadableTenant))),
            AdvanceResult::Dispatched { .. } | AdvanceResult::Throttled { .. } => self.join_above(&mut transaction),
            AdvanceResult::Ended { .. } | AdvanceResult::Stays { .. } => {}
        }
        self.count(bytes, is_bounded, &mut transaction);
        if !mutant!("admit_holds_the_entry") {
            self.entry.acknowledge(keys::turns(), &mut transaction);
        }
        Ok(Step::Commit(transaction, AdmitResult::Advanced(advanced)))
    }

    fn known(&self, view: &View, context: &Context) -> Result<Known, Undecided> {
        let is_there = |conflict: &Conflict| matches!(conflict, Conflict::Record { key, stored: Some(_) } if *key == self.name.record());
        let record_exists = context.failed(is_there);
        if !self.given {
            // An admission of this turn would have acknowledged its entry, so the record belongs to another turn.
            return Ok(if record_exists { Known::Taken } else { Known::New });
        }
        let Some(given) = view.record::<GivenId>(&self.name.given())? else {
            return Ok(if record_exists { Known::Taken } else { Known::New });
        };
        Ok(match given.value.state {
            _ if given.value.digest != self.head.digest => Known::Taken,
            GivenState::Queued if record_exists => Known::Taken,
            GivenState::Queued => Known::Queued(Guard::Version(self.name.given(), given.version)),
            GivenState::Admitted | GivenState::Ended => Known::Admitted,
        })
    }

    fn task(&self) -> Option<TurnName> {
        let (task, _) = self.head.task.as_ref()?;
        Some(TurnName::task(&self.name.tenant, task))
    }

    /// Guards that the task is not canceled. A runtime keeps a canceled task for up to one lease, but must not begin
    /// new work.
    fn budget(&self, transaction: &mut Transaction, view: &View) -> Result<Budget, Undecided> {
        let Some(name) = self.task() else { return Ok(Budget::Unlimited) };
        let task = view.record::<Turn>(&name.record())?.map(|task| task.value);
        let is_active = |task: &Turn| task.head.agent == self.head.agent && !matches!(task.state, State::Ending { .. });
        let Some(task) = task.filter(is_active) else { return Ok(Budget::Unknown) };
        let Some(part) = &task.task else { return Ok(Budget::Unknown) };
        let cancel = cancel_of(view, &name, task.admitted_ms)?;
        if cancel.reason.is_some() && !mutant!("admit_knows_the_cancel_of_the_task") {
            return Ok(Budget::Unknown);
        }
        transaction.guard(cancel.guard).guard(Guard::Present(name.record()));
        Ok(Budget::Granted(part.budget))
    }

    fn ends(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<Option<Ends>, Undecided> {
        let cancel = cancel_of(view, &self.name, context.now_ms)?;
        if !mutant!("admit_knows_the_cancel") {
            transaction.guard(cancel.guard);
        }
        if let Some(reason) = cancel.reason {
            take_early(transaction, &self.name);
            return Ok(Some(Ends::canceled(reason)));
        }
        if let Some(outer) = outer_turn(&self.name.turn) {
            let outer = TurnName { tenant: self.name.tenant.clone(), turn: outer }.record();
            if context.failed(|it| matches!(it, Conflict::Record { key, stored: None } if *key == outer)) {
                transaction.guard(Guard::Absent(outer));
                return Ok(Some(Ends::canceled("the call that started it has ended".to_owned())));
            }
            transaction.guard(Guard::Present(outer));
        }
        if self.head.deadline_ms <= context.now_ms {
            transaction.guard(Guard::Since(self.head.deadline_ms));
            return Ok(Some(Ends { reason: EndReason::Expired, canceled: None }));
        }
        Ok(None)
    }

    fn candidate(&self, budget: Option<u64>, context: &Context) -> Candidate<'_> {
        let json = |call: &Call| serde_json::to_vec(call).map(Bytes::from).unwrap_or_default();
        let texts: Vec<Bytes> = self.calls.iter().map(json).collect();
        let head = Head { calls: self.calls.len(), ..self.head.clone() };
        // Placeholder until the turn is dispatched, throttled or ended.
        let state = State::Ending { reason: EndReason::Expired, due_ms: 0 };
        let mut turn = Turn {
            place: place_of(&self.origin),
            given: self.given,
            ..Turn::new(head, Destination::Workers(self.priority), state, context.now_ms)
        };
        let size = turn.encode().len() + texts.iter().map(Bytes::len).sum::<usize>();
        turn.bytes = u64::try_from(size).unwrap_or(u64::MAX);
        let calls = self.calls.to_vec();
        let name = &self.name;
        let policy = self.policy;
        let render = self.render;
        let bounds = self.bounds;
        Candidate { name, turn, calls, texts, budget, is_new: true, policy, render, sections: &[], bounds }
    }

    fn join_above(&self, transaction: &mut Transaction) {
        if let Some(above) = waiter(&self.name, &self.head, false) {
            let above = TurnName { tenant: self.name.tenant.clone(), turn: above };
            let member = self.name.turn.as_str().into();
            let place = place_of(&self.origin);
            transaction.write(Write::AddMember { set: above.descendants(), member, score: place, queue_of: None });
        }
    }

    /// A refusal would report that no call has run, so a turn with reported calls is never refused.
    fn has_begun(&self, view: &View, context: &Context) -> Result<bool, Undecided> {
        if mutant!("refusals_read_recovered_calls") {
            return Ok(false);
        }
        Ok(!recovered_calls(view, context, &self.name, &self.head.digest, 0..self.calls.len())?.calls.is_empty())
    }

    fn count(&self, bytes: u64, is_bounded: bool, transaction: &mut Transaction) {
        let bounds = [
            (limits::UNFINISHED, 1, self.bounds.tenant_turns_max),
            (limits::BYTES, bytes, self.bounds.tenant_bytes_max),
        ];
        for (limit, amount, max) in bounds {
            if !is_bounded {
                let counter = CounterKey::new(limit, self.name.tenant.as_str());
                let amount = i64::try_from(amount).unwrap_or(i64::MAX);
                transaction.write(Write::Add { counter, amount, ends_ms: None });
                continue;
            }
            if !mutant!("admit_bounds_the_tenant") {
                transaction.guard(tenant_room(limit, self.name.tenant.as_str(), amount, max));
            }
        }
    }
}

struct Ends {
    reason: EndReason,
    canceled: Option<String>,
}

impl Ends {
    const fn canceled(why: String) -> Self {
        Self { reason: EndReason::Canceled, canceled: Some(why) }
    }
}

pub(super) fn tenant_room(limit: &str, tenant: &str, amount: u64, max: u64) -> Guard {
    Guard::Debit(ConditionalDebit::total(CounterKey::new(limit, tenant), amount, max))
}

/// Returns a refusal if an earlier attempt failed on a full inbox or on a maximum of the tenant.
fn refusal(context: &Context) -> Option<AdmitRefusal> {
    context.conflicts.iter().find_map(|conflict| match conflict {
        Conflict::InboxFull => Some(AdmitRefusal::InboxFull),
        Conflict::TooManyInboxes => Some(AdmitRefusal::TooManyInboxes),
        Conflict::LimitReached { counter, .. } if matches!(&*counter.limit, limits::UNFINISHED | limits::BYTES) => {
            Some(AdmitRefusal::TenantQueueFull)
        }
        _ => None,
    })
}
