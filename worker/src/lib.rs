//! The worker: leases slices, carries their calls out one by one, settles every result.

pub mod tools;
