//! Invalid input, crashes, and a Redis that fails.

mod bad_input;
mod cluster;
mod crashes;
mod damage;
mod durable;
mod dying;
mod fact_turns;
mod failover;
mod games;
mod gone;
mod phantoms;
mod reconcile;
mod refused;
mod sentinel;
mod survival;
