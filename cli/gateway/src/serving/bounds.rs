//! Bounds of resources that callers share.

/// Maximum number of units of a resource that are in use at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PermitBounds {
    /// Maximum for all callers together.
    pub(crate) all: usize,
    /// Maximum for the callers of one tenant.
    pub(crate) tenant: usize,
    /// Maximum for one caller.
    pub(crate) caller: usize,
}
