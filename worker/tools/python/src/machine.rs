//! The machine on which interpreters are started: its environment, and the sandboxes that it supports.

use std::fmt;

use tickfleet_sandbox::{Launcher, Sandbox};
use tickfleet_tools::Environment;
use tokio::sync::OnceCell;

use crate::scratch::Scratch;

pub(crate) struct Machine {
    pub(crate) environment: Environment,
    launcher: Launcher,
    sandbox: OnceCell<Sandbox>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine(..)")
    }
}

impl Machine {
    pub(crate) fn new(environment: Environment, launcher: Launcher) -> Self {
        Self { environment, launcher, sandbox: OnceCell::new() }
    }

    /// The first call probes the sandboxes, which takes some tens of milliseconds.
    pub(crate) async fn sandbox(&self) -> Result<&Sandbox, String> {
        let probe = async || {
            let scratch =
                Scratch::new().map_err(|error| format!("cannot create a folder for the sandbox ({error})"))?;
            Ok(Sandbox::probe(self.launcher.clone(), None, scratch.path()).await)
        };
        self.sandbox.get_or_try_init(probe).await
    }
}
