//! Bounds of resources that callers share.

/// How many units of a resource may be in use at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PermitBounds {
    pub(crate) all: usize,
    /// Shared by all callers of one tenant.
    pub(crate) tenant: usize,
    pub(crate) caller: usize,
}
