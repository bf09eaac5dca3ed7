//! The records that Redis keeps, as types. Only this crate decodes them, by the names of the [`schema`].

pub(crate) mod budgets;
pub(crate) mod finished;
pub(crate) mod node;
pub(crate) mod notes;
pub(crate) mod passages;
pub mod schema;
pub(crate) mod shard;
pub(crate) mod slice;
pub(crate) mod turn;
