//! Redelivers inbound messages of a crashed scheduler. A message that repeatedly crashes its readers goes to the dead
//! letters without being parsed.
//!
//! The first crash counts against all messages that the scheduler held. These messages become suspects. Schedulers then
//! handle them one by one. A scheduler records the name of a suspect before it reads the message ([`NameSuspect`]). So
//! the next crash counts only against this message.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, InboxName, RejectionCode, TenantId, TurnId};

use super::lease::Lease;
use super::reap::{HeldEntry, ReapResult, dead_letter};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::{Record, Stored};
use crate::transaction::{Conflict, EntryId, Guard, RecordKey, SetKey, StreamKey, Transaction, Write};
use crate::turn::end::{GivenId, GivenState};
use crate::view::{Fields, Undecided, View};

pub mod fields {
    pub const TURN: &str = "turn";
    pub const TASK: &str = "task";
    /// The producer's ID, `<tenant>:<id>`.
    pub const GIVEN: &str = "i";
    /// The message's first entry. A message without a producer's ID has an ID from this entry.
    pub const ORIGIN: &str = "o";
    pub const CRASHES: &str = "x";
}

/// No guarantee depends on this limit.
const REDELIVERED_WITHIN_MS: i64 = 5_000;

/// The score is a time (ms): entries up to this time may be redeliveries.
#[must_use]
pub fn redelivered() -> SetKey {
    SetKey::new("redelivered")
}

const FIELDS_MAX: usize = 16;
const INSPECTED_BYTES: usize = 65_536;
const POISON: &str = "The processes that read this message crashed repeatedly. It was not carried out.";

/// A scheduler handles this suspect alone, without other entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSuspect {
    #[serde(rename = "e")]
    pub entry: EntryId,
}

impl Record for NamedSuspect {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn suspect_of(stream: &StreamKey, consumer: &str) -> RecordKey {
    RecordKey::new(format!("suspect:{stream}:{consumer}"))
}

#[must_use]
pub fn crashes(fields: &Fields) -> u32 {
    let field = fields.iter().find(|(name, _)| &**name == fields::CRASHES);
    field.and_then(|(_, text)| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0)
}

#[must_use]
pub fn origin(entry: &HeldEntry) -> EntryId {
    entry.text(fields::ORIGIN).map_or_else(|| entry.entry.clone(), EntryId::new)
}

/// Must be committed before the scheduler reads the entry.
#[derive(Debug, Clone)]
pub struct NameSuspect {
    pub stream: StreamKey,
    pub consumer: Arc<str>,
    /// `None` clears the record.
    pub entry: Option<EntryId>,
    pub keep_ms: i64,
}

impl Decision for NameSuspect {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let (key, mut transaction) =
            (suspect_of(&self.stream, &self.consumer), Transaction::new(context.version.clone()));
        match &self.entry {
            Some(entry) => {
                transaction.put_for(&key, &NamedSuspect { entry: entry.clone() }, self.keep_ms);
            }
            None => {
                transaction.write(Write::Delete(key));
            }
        }
        Ok(Step::Commit(transaction, ()))
    }
}

/// After a restart of the store, the scheduler no longer holds the entry: the store may have given the entry's ID to
/// another message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenInbound {
    pub id: EntryId,
    /// The restart epoch before the scheduler took the entry.
    pub epoch: u64,
}

impl TakenInbound {
    pub(crate) fn is_lost(&self, context: &Context) -> bool {
        context.failed(|conflict| match conflict {
            Conflict::NotHeld => true,
            Conflict::Epoch { number, .. } => *number != self.epoch,
            _ => false,
        })
    }

    /// Call this function after all other guards: [`Guard::Held`] must be the last guard.
    pub(crate) fn acknowledge(&self, stream: StreamKey, transaction: &mut Transaction) {
        if !mutant!("an_inbound_entry_is_of_its_epoch") {
            transaction.guard(Guard::Epoch { number: self.epoch, lease_ms: 0 });
        }
        transaction.guard(Guard::Held(stream, self.id.clone()));
    }
}

#[derive(Debug, Clone)]
pub struct AcknowledgeInbound {
    pub stream: StreamKey,
    pub entry: TakenInbound,
}

impl Decision for AcknowledgeInbound {
    /// False if another scheduler has taken over the entry.
    type Output = bool;

    fn decide(&self, _: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if self.entry.is_lost(context) {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        self.entry.acknowledge(self.stream.clone(), &mut transaction);
        Ok(Step::Commit(transaction, true))
    }
}

/// The stop of a scheduler does not count as a crash.
#[derive(Debug)]
pub struct ReturnInbound {
    pub entry: HeldEntry,
}

impl Decision for ReturnInbound {
    type Output = bool;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if context.failed(|conflict| *conflict == Conflict::NotHeld) {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        if !self.entry.fields.is_empty() {
            enqueue_again(&self.entry, crashes(&self.entry.fields), &mut transaction, view, context.now_ms)?;
        }
        transaction.guard(Guard::Held(self.entry.queue.clone(), self.entry.entry.clone()));
        Ok(Step::Commit(transaction, true))
    }
}

fn enqueue_again(
    entry: &HeldEntry,
    crashes: u32,
    transaction: &mut Transaction,
    view: &View,
    now_ms: i64,
) -> Result<(), Undecided> {
    let given = given(entry, view)?;
    let is_ours = |name: &str| name == fields::CRASHES || name == fields::ORIGIN;
    let kept = entry.fields.iter().filter(|(name, _)| !is_ours(name)).take(FIELDS_MAX).cloned();
    let ours = [
        (fields::CRASHES.into(), Bytes::from(crashes.to_string())),
        (fields::ORIGIN.into(), Bytes::from(origin(entry).as_str().to_owned())),
    ];
    transaction.write(Write::Enqueue(entry.queue.clone(), kept.chain(ours).collect()));
    // The record of a producer's ID names the entry, so write it with the new entry.
    if let Some((name, known)) = given
        && known.entry.as_ref() == Some(&entry.entry)
    {
        transaction.guard(Guard::Version(name.given(), known.version));
        transaction.put(&name.given(), &known.value);
    }
    transaction.join(redelivered(), entry.queue.as_str(), now_ms + REDELIVERED_WITHIN_MS);
    Ok(())
}

/// `None` if the record is absent or unreadable, or if the message was already admitted or rejected.
fn given(entry: &HeldEntry, view: &View) -> Result<Option<(TurnName, Stored<GivenId>)>, Undecided> {
    let Some(name) = entry.text(fields::GIVEN).and_then(TurnName::parse) else { return Ok(None) };
    let known = match view.record::<GivenId>(&name.given()) {
        // An unreadable record must not block the message.
        Err(Undecided::Unreadable { .. }) => None,
        known => known?,
    };
    Ok(known.filter(|known| known.value.state == GivenState::Queued).map(|known| (name, known)))
}

pub struct ReapInbound<'a> {
    pub consumer: Arc<str>,
    pub lease: Lease,
    pub entry: HeldEntry,
    pub bounds: &'a Bounds,
    /// The message was not validated, so its tenant may not exist.
    pub is_tenant: &'a (dyn Fn(&TenantId) -> bool + Sync),
}

impl Decision for ReapInbound<'_> {
    type Output = ReapResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ReapResult>, Undecided> {
        if let Some(refusal) = self.lease.refusal(context) {
            return Ok(Step::Return(refusal));
        }
        let mut transaction = Transaction::new(context.version.clone());
        self.lease.guard(&mut transaction, context, self.bounds.lease_ms);
        let named = view.record::<NamedSuspect>(&suspect_of(&self.entry.queue, &self.consumer))?;
        let before = crashes(&self.entry.fields);
        let counts = before == 0 || named.is_some_and(|named| named.value.entry == self.entry.entry);
        let crashes = before + u32::from(counts);
        let reaped = if self.entry.fields.is_empty() {
            ReapResult::Removed { dead: 0 }
        } else if crashes >= self.bounds.crashes_max {
            self.quarantine(&mut transaction, view, context)?;
            ReapResult::Removed { dead: 1 }
        } else {
            enqueue_again(&self.entry, crashes, &mut transaction, view, context.now_ms)?;
            ReapResult::Redelivered(Vec::new())
        };
        if !mutant!("reap_acknowledges_the_old_message") {
            transaction.guard(Guard::Held(self.entry.queue.clone(), self.entry.entry.clone()));
        }
        Ok(Step::Commit(transaction, reaped))
    }
}

impl ReapInbound<'_> {
    /// A reply needs exactly one tenant and one inbox in the text.
    fn quarantine(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let message = Message::of(&self.entry);
        let first = HeldEntry { entry: origin(&self.entry), ..self.entry.clone() };
        dead_letter(transaction, &first, RejectionCode::Poison, &message.unread(), self.bounds);
        if let Some((name, known)) = given(&self.entry, view)? {
            let ended = GivenId { digest: known.value.digest, state: GivenState::Ended };
            transaction.guard(Guard::Version(name.given(), known.version));
            transaction.put_for(&name.given(), &ended, self.bounds.dedupe_ms);
        }
        let has_no_inbox = |conflict: &Conflict| matches!(conflict, Conflict::TooManyInboxes | Conflict::InboxFull);
        if context.failed(has_no_inbox) {
            return Ok(());
        }
        let Some((tenant, inbox)) = message.inbox() else { return Ok(()) };
        if !(self.is_tenant)(&tenant) {
            return Ok(());
        }
        if let Some(id) = message.id() {
            // If this ID already has a turn, the turn sends the reply.
            let name = TurnName { tenant: tenant.clone(), turn: id };
            for key in [name.record(), name.finished()] {
                if !matches!(view.get(&crate::Query::Record(key.clone()))?, crate::Value::Record(None)) {
                    return Ok(());
                }
                transaction.guard(Guard::Absent(key));
            }
        }
        let inbox = keys::inbox(&tenant, &inbox);
        let unread_max = self.bounds.inbox_unread_max * 2;
        let inboxes_max = self.bounds.inboxes_max;
        transaction.guard(Guard::Inbox { inbox: inbox.clone(), unread_max, inboxes_max });
        transaction.write(Write::Reply(inbox, message.rejection(&tenant)));
        Ok(())
    }
}

/// The text is only searched for plain values, and not parsed.
struct Message<'a> {
    text: &'a str,
    bytes: usize,
    is_turn: bool,
    minted: String,
}

impl<'a> Message<'a> {
    fn of(entry: &'a HeldEntry) -> Self {
        let is_turn = entry.text(fields::TURN).is_some();
        let text = entry.text(fields::TURN).or_else(|| entry.text(fields::TASK)).unwrap_or_default();
        let upto = (0..=INSPECTED_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let minted = format!("{}{}", if is_turn { 't' } else { 'k' }, origin(entry));
        Self { text: text.get(..upto).unwrap_or_default(), bytes: text.len(), is_turn, minted }
    }

    /// Returns `None` for a name that occurs several times, because the name may belong to a nested object.
    fn only_value(&self, name: &str) -> Option<&'a str> {
        let quoted = format!("\"{name}\"");
        let mut found = self.text.match_indices(&quoted);
        let ((at, _), None) = (found.next()?, found.next()) else { return None };
        let value =
            self.text.get(at + quoted.len()..)?.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        let value = value.split_once('"')?.0;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        (!value.is_empty() && value.chars().all(is_plain)).then_some(value)
    }

    const fn id_name(&self) -> &'static str {
        if self.is_turn { "turn_id" } else { "task_id" }
    }

    fn id(&self) -> Option<TurnId> {
        TurnId::new(self.only_value(self.id_name()).unwrap_or(&self.minted)).ok()
    }

    fn inbox(&self) -> Option<(TenantId, InboxName)> {
        let tenant = TenantId::new(self.only_value("tenant")?).ok()?;
        Some((tenant, InboxName::new(self.only_value("reply_to")?).ok()?))
    }

    /// Content other than plain IDs may be secret.
    fn unread(&self) -> String {
        let ids = ["turn_id", "task_id", "tenant", "agent"].into_iter();
        let ids = ids.filter_map(|name| Some(format!("\"{name}\":\"{}\",", self.only_value(name)?)));
        format!("{{{}\"unread_bytes\":{}}}", ids.collect::<String>(), self.bytes)
    }

    fn rejection(&self, tenant: &TenantId) -> Bytes {
        let agent = self.only_value(if self.is_turn { "agent" } else { "target_agent" });
        let agent = agent.and_then(|agent| AgentId::new(agent).ok());
        let id = self.id().map(|id| format!("\"{}\":\"{id}\",", self.id_name())).unwrap_or_default();
        let agent = agent.as_ref().map_or("", AgentId::as_str);
        let text = format!(
            "{{{id}\"tenant\":\"{tenant}\",\"agent\":\"{agent}\",\"status\":\"rejected\",\"dialect\":\"raw\",\
             \"results\":[],\"error\":{{\"code\":\"poison\",\"message\":\"{POISON}\"}}}}"
        );
        text.into()
    }
}
