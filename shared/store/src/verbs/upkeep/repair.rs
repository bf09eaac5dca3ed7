//! What does not agree in a shard, thing by thing: looked for, and mended where that is safe.

use tickfleet_model::limits;

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// The list: makes an enum of it whose variants have these words.
macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident: $word:literal),* $(,)?) => {
        /// Something in a shard that does not agree with something else.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault {
            $($(#[$doc])* $variant,)*
        }

        impl Fault {
            /// The word in scripts, reports and the audit log.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

faults! {
    /// A turn that nothing would look at again.
    TurnWithoutTimer: "turn_without_timer",
    /// A record of a turn that says no numbers where there must be some.
    TurnUnreadable: "turn_unreadable",
    /// An id of an accepted turn whose record is gone, without an end: it will have no reply.
    TurnLost: "turn_lost",
    /// A timer of a turn that is gone.
    TimerWithoutTurn: "timer_without_turn",
    /// A lane on which turns wait that nobody will look at.
    LaneWithoutTimer: "lane_without_timer",
    /// A turn that counts as parked and is not.
    ParkedNot: "parked_not",
    /// A slice that no turn is out under.
    EntryStranded: "entry_stranded",
    /// A stream of the shard that nobody can read.
    StreamWithoutGroup: "stream_without_group",
    /// The stream of a runtime outside that nobody can read.
    RuntimeWithoutGroup: "runtime_without_group",
    /// The stream of a runtime outside that nobody would clear away.
    RuntimeUnlisted: "runtime_unlisted",
    /// A lease that ends later than any does: what its holder had would not be taken back.
    LeaseEndless: "lease_endless",
    /// A process that is shown and has no lease.
    NodeWithoutLease: "node_without_lease",
    /// A place of a limit that no call holds.
    PlaceLeaked: "place_leaked",
    /// A place of a limit that a call holds and that is not counted.
    PlaceNotCounted: "place_not_counted",
    /// A limit whose old counters nobody would clear away.
    LimitUnlisted: "limit_unlisted",
    /// A tenant's counters that say something else than the records.
    TenantMiscounted: "tenant_miscounted",
    /// An id that waits for a message that is gone.
    IdWithoutEntry: "id_without_entry",
    /// An id of an ended turn that would be remembered for ever.
    IdEndless: "id_endless",
    /// A claim of an effect whose call is over without a word of its end.
    ClaimWithoutTurn: "claim_without_turn",
    /// A claim of an effect that would never end.
    ClaimEndless: "claim_endless",
    /// An approval that people are asked for and that no list has.
    ApprovalUnlisted: "approval_unlisted",
    /// Budgets of an agent or a tenant, or a counter of a limit, that say no numbers: they count as used up.
    Unreadable: "unreadable",
    /// Something that is none of the fleet's, under a name of the fleet's.
    Foreign: "foreign",
}

/// A fault that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultFound {
    /// What it is.
    pub fault: Fault,
    /// What has it: a turn, a lane, an entry.
    pub item: String,
    /// True if it was mended.
    pub mended: bool,
    /// More about it, or nothing.
    pub more: String,
}

/// The kinds of things that the script looks at, by its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Turn,
    Holder,
    Place,
    Timer,
    Lane,
    Delayed,
    Limit,
    Queued,
    Id,
    Beat,
    Node,
    External,
    Entry,
    Group,
    Effect,
    Approval,
    Budget,
    Counter,
    Key,
    Tenant,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Holder => "holder",
            Self::Place => "place",
            Self::Timer => "timer",
            Self::Lane => "lane",
            Self::Delayed => "delayed",
            Self::Limit => "limit",
            Self::Queued => "queued",
            Self::Id => "id",
            Self::Beat => "beat",
            Self::Node => "node",
            Self::External => "external",
            Self::Entry => "entry",
            Self::Group => "group",
            Self::Effect => "effect",
            Self::Approval => "approval",
            Self::Budget => "budget",
            Self::Counter => "counter",
            Self::Key => "key",
            Self::Tenant => "tenant",
        }
    }

    /// The key that such a thing is, and for a part of one what in it; without the shard's prefix.
    pub(crate) fn key_of(self, item: &str) -> String {
        let within = |key: &str| format!("{key} {item}");
        match self {
            Self::Turn | Self::Holder => format!("turn:{item}"),
            Self::Place => format!("held:{item}"),
            Self::Timer => within("timers"),
            Self::Lane => format!("lane:{item}"),
            Self::Delayed => within("delayed"),
            Self::Limit | Self::Counter => format!("counters:{item}"),
            Self::Queued => within("queued"),
            Self::Id => format!("id:{item}"),
            Self::Beat => within("beats"),
            Self::Node => within("nodes"),
            Self::External | Self::Entry | Self::Group | Self::Key => item.to_owned(),
            Self::Effect => format!("effect:{item}"),
            Self::Approval => format!("approval:{item}"),
            Self::Budget => within("budgets"),
            Self::Tenant => format!("tenant:{item}"),
        }
    }

    /// How many of them one script looks at: an entry may have a mebibyte.
    pub(crate) const fn together(self) -> usize {
        match self {
            Self::Entry => 8,
            // They are counted together, so all in one script.
            Self::Tenant => 1_000,
            _ => 128,
        }
    }
}

impl Store {
    /// Looks at things of one kind, no more than go together, and mends what is wrong with them where there is an audit
    /// entry to say so in. Answers none of tenants where too much is under way to be counted.
    pub(crate) async fn repair(
        &self,
        kind: Kind,
        items: &[String],
        entry: Option<&str>,
    ) -> Result<Option<Vec<FaultFound>>, StoreError> {
        let mut args = self.args();
        let o = &self.options;
        args.flag(entry.is_some()).text(entry.unwrap_or_default()).show(o.dedupe_ms.max(o.retain_ms));
        args.show(self.options.lease_ms).show(limits::LEASE_MS_MAX).show(limits::REPAIR_COUNTED_MAX);
        args.text(kind.as_str());
        for item in items {
            args.text(item.as_str());
        }
        let mut found = Vec::new();
        for (item, value) in items.iter().zip(self.ask(Verb::Repair, args).await?.rest()) {
            let said = text_of(&value).ok_or_else(|| unexpected(Verb::Repair.as_str(), &value))?;
            if said == "NOT_COUNTED" {
                return Ok(None);
            }
            let mut words = said.splitn(3, ' ');
            let (Some(done), Some(word)) = (words.next(), words.next()) else { continue };
            let fault = Fault::parse(word).ok_or_else(|| unexpected(Verb::Repair.as_str(), &value))?;
            let more = words.next().unwrap_or_default().to_owned();
            // People have to look at these: they need the key.
            let is_for_people = matches!(fault, Fault::Foreign | Fault::Unreadable | Fault::TurnUnreadable);
            let item = if is_for_people { kind.key_of(item) } else { item.clone() };
            found.push(FaultFound { fault, item, mended: done == "MENDED", more });
        }
        Ok(Some(found))
    }
}
