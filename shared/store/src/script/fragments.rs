//! The fragments that several scripts share. Each text is put before the scripts that name it in the list of verbs.

/// A fragment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fragment {
    /// Its file, below the crate's `src`.
    pub(crate) file: &'static str,
    /// Its text.
    pub(crate) text: &'static str,
}

/// The fragment of this word.
macro_rules! fragment {
    ($word:literal) => {
        Fragment {
            file: concat!("script/fragments/", $word, ".lua"),
            text: include_str!(concat!("fragments/", $word, ".lua")),
        }
    };
}

/// Key names, clock and epoch, streams: before every script.
pub(crate) const BASE: Fragment = fragment!("base");
/// Counters of tenants.
pub(crate) const TENANTS: Fragment = fragment!("tenants");
/// The ways in which slices get out and come back; endings.
pub(crate) const SLICE: Fragment = fragment!("slice");
/// Groups of streams, made where they are missing.
pub(crate) const GROUPS: Fragment = fragment!("groups");
/// Budgets of agents.
pub(crate) const BUDGET: Fragment = fragment!("budget");
/// Limits, as data.
pub(crate) const LIMITS: Fragment = fragment!("limits");
/// Cancels that came before what they cancel.
pub(crate) const EARLY: Fragment = fragment!("early");
/// The end of a turn or task that is asked for.
pub(crate) const CANCEL: Fragment = fragment!("cancel");
/// Bounds of inboxes.
pub(crate) const INBOX: Fragment = fragment!("inbox");
/// Replies into inboxes.
pub(crate) const REPLY: Fragment = fragment!("reply");
/// Facts of sessions.
pub(crate) const FACTS: Fragment = fragment!("facts");
/// Replies for what kills its readers.
pub(crate) const POISON: Fragment = fragment!("poison");
/// The rule for what may still go out while memory is short.
pub(crate) const PRESSURE: Fragment = fragment!("pressure");
