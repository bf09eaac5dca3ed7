use std::sync::Arc;

use bytes::Bytes;
use tickfleet_model::{RejectionCode, TenantId};

use crate::bounds::Bounds;
use crate::keys;
use crate::transaction::{Transaction, Write};

pub struct DeadLetter<'a> {
    /// A stream or queue, or `record` for an unreadable record.
    pub from: &'a str,
    /// The stream's entry ID, the queue's member name, or the record's key.
    pub entry: &'a str,
    pub reason: RejectionCode,
    pub raw: Bytes,
    pub tenant: Option<&'a TenantId>,
}

impl DeadLetter<'_> {
    pub fn add_to(self, transaction: &mut Transaction, bounds: &Bounds) {
        let text = |text: &str| Bytes::from(text.to_owned());
        let fields: [(&str, Bytes); 5] = [
            ("from", text(self.from)),
            ("entry", text(self.entry)),
            ("reason", text(self.reason.as_str())),
            ("raw", self.raw),
            ("tenant", text(self.tenant.map_or("", TenantId::as_str))),
        ];
        let fields = fields.into_iter().map(|(name, value)| (Arc::from(name), value)).collect();
        transaction.write(Write::Append { log: keys::dead(), fields, max_entries: bounds.dead_entries_max });
    }
}
