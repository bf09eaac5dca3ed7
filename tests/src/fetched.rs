//! Third-party data that scripts of `tests/data` fetch into cargo's target folder. The data is never committed.

pub mod npm;

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

#[derive(Debug, Clone, Copy)]
pub struct FetchedData {
    pub script: &'static str,
    /// In cargo's target folder. The name contains the version.
    pub folder: &'static str,
    /// For messages, such as `the PyPI package x 1.0`.
    pub what: &'static str,
    /// If this environment variable is `1`, tests that need the data pass without running.
    pub skip_variable: &'static str,
}

impl FetchedData {
    #[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
    pub fn unless_skipped(&self) -> Result<Option<PathBuf>> {
        if env::var(self.skip_variable).is_ok_and(|value| value == "1") {
            eprintln!("{}=1: not running over {}", self.skip_variable, self.what);
            return Ok(None);
        }
        self.ensure().map(Some)
    }

    /// Processes that call this at the same time wait for each other.
    pub fn ensure(&self) -> Result<PathBuf> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(self.script);
        let dir = target_dir().join(self.folder);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        // The system releases the lock even if this process dies.
        let lock = File::create(dir.join("lock")).with_context(|| format!("locking {}", dir.display()))?;
        lock.lock().with_context(|| format!("locking {}", dir.display()))?;
        let done = match Command::new("python3").arg("-B").arg(&script).arg(&dir).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("python3 is not on the PATH; it fetches {}. {}", self.what, self.hint())
            }
            other => other.context("running python3")?,
        };
        ensure!(done.status.success(), "{}\n{}", String::from_utf8_lossy(&done.stderr).trim(), self.hint());
        Ok(dir)
    }

    fn hint(&self) -> String {
        format!("These tests need {} through pip, once. Set {}=1 to do without them.", self.what, self.skip_variable)
    }
}

/// A relative `CARGO_TARGET_DIR` is relative to the workspace's root.
#[allow(clippy::disallowed_methods, reason = "cargo tells its folder this way")]
#[must_use]
pub fn target_dir() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Cargo rejects an empty variable, but a test can also be started without cargo.
    root.join(env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()).unwrap_or_else(|| "target".into()))
}
