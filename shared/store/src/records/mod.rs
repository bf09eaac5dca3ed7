//! Records of the scripts.

pub mod schema;
pub(crate) mod slice;
