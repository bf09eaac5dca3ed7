//! Where a command finds things, which differs by level.

use std::path::Path;

use crate::spec::Level;

/// Where the command finds what it was given.
pub(super) struct Place<'a> {
    pub(super) workspace: &'a Path,
    pub(super) temporary: &'a Path,
    pub(super) level: Level,
}
