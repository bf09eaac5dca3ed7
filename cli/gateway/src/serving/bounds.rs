//! The bounds of what callers share.

/// How many may be taken at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// By everybody together.
    pub(crate) all: usize,
    /// By callers of one tenant.
    pub(crate) tenant: usize,
    /// By one caller.
    pub(crate) caller: usize,
}
