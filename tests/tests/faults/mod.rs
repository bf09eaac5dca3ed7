//! Bad input, crashes, and a Redis that fails.

mod approval_steps;
mod bad_input;
mod chaos;
mod cluster;
mod composed_steps;
mod crashes;
mod durable;
mod dying;
mod effect_steps;
mod fact_turns;
mod failover;
mod gone;
mod reconcile;
mod sentinel;
mod steps;
mod survival;
