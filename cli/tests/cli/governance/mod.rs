//! Who decides about calls beside caps and permission, what operators do, what is told of it, and what another policy would decide.

mod exports;
mod governed;
mod operators;
mod questions;
mod webhooks;
mod whatif;
