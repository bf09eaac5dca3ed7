//! Who decides about calls beside caps and permission, what operators do, and what is told of it.

mod governed;
mod operators;
mod questions;
