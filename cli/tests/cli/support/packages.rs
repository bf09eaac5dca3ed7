//! The npm packages that tests need. tests/node pins their versions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::documents::REPOSITORY;
use super::node::{Runtime, contents, is_skipped};

/// MCP's conformance suite needs at least this version.
const MAJOR_MIN: u32 = 22;

pub struct Packages {
    runtime: Runtime,
    pub folder: PathBuf,
}

impl Packages {
    pub fn unless_skipped() -> Option<Self> {
        if is_skipped() {
            return None;
        }
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
        let folder = home.join("npm");
        fs::create_dir_all(&folder).unwrap();
        // The lock is released when the file is closed, even if this process dies.
        let lock = File::create(home.join("lock")).unwrap();
        lock.lock().unwrap();
        let packages = Self { runtime: Runtime::find(&home, MAJOR_MIN), folder };
        let from = Path::new(REPOSITORY).join("tests/node");
        let wanted = contents(&from);
        if !fs::read_to_string(home.join("made-of")).is_ok_and(|have| have == wanted) {
            for part in ["package.json", "package-lock.json"] {
                fs::copy(from.join(part), packages.folder.join(part)).unwrap();
            }
            packages.runtime.install(&packages.folder);
            fs::write(home.join("made-of"), wanted).unwrap();
        }
        Some(packages)
    }

    pub fn node(&self) -> Command {
        let mut node = self.runtime.node();
        node.current_dir(REPOSITORY);
        node
    }
}
