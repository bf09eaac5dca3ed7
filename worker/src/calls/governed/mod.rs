//! What a call has to meet beyond its own guards, and what is known of others like it: people's consent (`consent`), what
//! has happened in its session (`facts`), agents that go in circles (`loops`), kept answers of reads (`cache`).

pub(super) mod cache;
pub(in crate::calls) mod consent;
pub(super) mod facts;
pub(crate) mod loops;
