//! Who decides about calls beside caps and permission, what operators do, what is told of it, and what another policy would decide.

mod governed;
mod operators;
mod questions;
mod whatif;
