//! Who acts in an interleaving: producers, schedulers, workers, and hands in Redis.

pub mod endings;
pub mod hands;
pub mod producers;
pub mod recovery;
pub mod scheduler;
pub mod worker;
