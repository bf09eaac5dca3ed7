//! Bounds of resources that callers share.

#[derive(Debug, Clone, Copy)]
pub(crate) struct PermitBounds {
    pub(crate) all: usize,
    /// Shared by all callers of one tenant.
    pub(crate) tenant: usize,
    pub(crate) caller: usize,
}
