//! Refusal: what cannot be admitted goes to the dead stream, with a reply.

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::verbs::turns::Inbound;
use crate::{Store, StoreError};
use tickfleet_model::{InboxName, TenantId};

/// An inbound entry that cannot be admitted.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The entry.
    pub entry: String,
    /// A stable word.
    pub reason: String,
    /// The message as it came, bounded.
    pub raw: Vec<u8>,
    /// Tenant and inbox of the reply, where they can be read.
    pub reply_to: Option<(TenantId, InboxName)>,
    /// The tenant that the message names, where it is not configured: there is no inbox to reply to, so producers look
    /// for it with [`Store::is_absent`].
    pub absent: Option<TenantId>,
    /// The reply, JSON; empty where there is nobody to tell.
    pub reply: String,
    /// The id that its producer gave, and the digest of its content: it may be sent again. None where they cannot be
    /// read.
    pub given: Option<(TurnName, String)>,
}

impl Store {
    /// Takes entries that cannot be admitted to the dead stream and writes their replies. Answers for each whether it
    /// was ours to reject.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reject(&self, from: Inbound, entries: &[Rejection]) -> Result<Vec<bool>, StoreError> {
        let mut args = self.args();
        let o = &self.options;
        args.show(o.reply_retain_ms).show(o.dead_entries_max).show(o.dedupe_ms.max(o.retain_ms));
        args.text(from.stream().to_string()).show(o.inbox_unread_max).show(o.inboxes_max).show(entries.len());
        for e in entries {
            args.text(e.entry.as_str()).text(e.reason.as_str()).text(e.raw.as_slice());
            args.maybe(e.reply_to.as_ref().map(|(tenant, _)| tenant).or(e.absent.as_ref()))
                .maybe(e.reply_to.as_ref().map(|(_, inbox)| inbox));
            args.text(if e.reply_to.is_some() { e.reply.as_str() } else { "" });
            args.maybe(e.given.as_ref().map(|(name, _)| name)).text(e.given.as_ref().map_or("", |(_, digest)| digest));
        }
        let mut reply = self.ask(Verb::Reject, args).await?;
        Ok(reply.rest().iter().map(|w| text_of(w).as_deref() == Some("OK")).collect())
    }

    /// Returns true if a message for this tenant was refused within the last minute because no such tenant is configured.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_absent(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        let command = redis::cmd("ZSCORE").arg(self.keys.key("absent")).arg(tenant.as_str()).to_owned();
        Ok(self.connection.query::<Option<f64>>(Question::Look, &command).await?.is_some())
    }
}
