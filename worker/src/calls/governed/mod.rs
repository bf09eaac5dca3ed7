//! The conditions of a call beyond its own guards, and the state of similar calls: people's consent (`consent`), the
//! facts of its session (`facts`), agents in loops (`loops`), cached results of reads (`cache`).

pub(super) mod cache;
pub(in crate::calls) mod consent;
pub(super) mod facts;
pub(crate) mod loops;
