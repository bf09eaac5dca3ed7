//! The fragments that several scripts share. Each text is put before the scripts that name it in the list of verbs.

/// Key names, clock and epoch, streams: before every script.
pub(crate) const BASE: &str = include_str!("fragments/base.lua");
/// Counters of tenants.
pub(crate) const TENANTS: &str = include_str!("fragments/tenants.lua");
/// The ways in which slices get out and come back; endings.
pub(crate) const SLICE: &str = include_str!("fragments/slice.lua");
/// Budgets of agents.
pub(crate) const BUDGET: &str = include_str!("fragments/budget.lua");
/// Cancels that came before what they cancel.
pub(crate) const EARLY: &str = include_str!("fragments/early.lua");
/// Bounds of inboxes.
pub(crate) const INBOX: &str = include_str!("fragments/inbox.lua");
/// Replies into inboxes.
pub(crate) const REPLY: &str = include_str!("fragments/reply.lua");
/// Replies for what kills its readers.
pub(crate) const POISON: &str = include_str!("fragments/poison.lua");
/// The rule for what may still go out while memory is short.
pub(crate) const PRESSURE: &str = include_str!("fragments/pressure.lua");
