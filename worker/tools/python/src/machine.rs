//! The machine that interpreters are started on: its environment, and the sandbox that it can hold.

use std::fmt;

use tickfleet_sandbox::{Launcher, Sandbox};
use tickfleet_tools::Environment;
use tokio::sync::OnceCell;

use crate::scratch::Scratch;

/// What all pools of a process share of the machine.
pub(crate) struct Machine {
    /// Secrets, and the few variables that an interpreter inherits, are looked up here.
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
    /// A machine whose sandbox is started by `launcher`. Nothing is looked at yet.
    pub(crate) fn new(environment: Environment, launcher: Launcher) -> Self {
        Self { environment, launcher, sandbox: OnceCell::new() }
    }

    /// The sandbox. The first call finds out what it can hold, which takes some tens of milliseconds.
    ///
    /// # Errors
    /// There is no place to try it in, in words.
    pub(crate) async fn sandbox(&self) -> Result<&Sandbox, String> {
        let probe = async || {
            let scratch =
                Scratch::new().map_err(|error| format!("cannot create a folder for the sandbox ({error})"))?;
            Ok(Sandbox::probe(self.launcher.clone(), None, scratch.path()).await)
        };
        self.sandbox.get_or_try_init(probe).await
    }
}
