//! Commands of the binary. Each test has its own Redis.

mod audit;
pub(crate) mod chat;
mod config;
mod demo;
mod explained;
mod first_steps;
mod import;
mod inspect;
mod knowledge;
mod limits;
mod repair;
mod submit;
mod top;
