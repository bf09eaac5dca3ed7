//! Decisions about a call after its guards: consent, facts of the session, loops of the agent and cached results.

pub(super) mod cache;
pub(in crate::calls) mod consent;
pub(super) mod facts;
pub(crate) mod loops;
