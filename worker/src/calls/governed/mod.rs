//! What decides about a call beyond its own guards: people's consent (`consent`), the facts of its session (`facts`),
//! loops of its agent (`loops`), and cached results of equal reads (`cache`).

pub(super) mod cache;
pub(in crate::calls) mod consent;
pub(super) mod facts;
pub(crate) mod loops;
