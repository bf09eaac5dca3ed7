use std::path::Path;

use crate::spec::Level;

pub(super) struct CommandPaths<'a> {
    pub(super) workspace: &'a Path,
    pub(super) temporary: &'a Path,
    pub(super) level: Level,
}
