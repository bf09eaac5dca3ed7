//! Bounds of resources that callers share.

/// Maximum number of units of a resource that are in use at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PermitBounds {
    /// By all callers together.
    pub(crate) all: usize,
    /// By the callers of one tenant.
    pub(crate) tenant: usize,
    /// By one caller.
    pub(crate) caller: usize,
}
