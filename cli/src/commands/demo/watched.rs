//! The console that a demo can be watched in, and looked through afterwards. Where it cannot be had, the demo goes on
//! without.

use tickfleet_ops::shutdown::Shutdown;
use tokio_util::sync::CancellationToken;

use crate::commands::gateway::console::{Console, PORT};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// The console of the act that plays.
pub(super) struct Watched {
    console: Option<Console>,
}

impl Watched {
    /// Serves it, on its own port or on any that is free.
    pub(super) async fn open(setup: &Setup, output: &Output) -> Self {
        let ending = CancellationToken::new();
        let console = match Console::start(setup, PORT, &ending).await {
            Ok(console) => Ok(console),
            // Another console has the port: of a `tickfleet dev`, or of another demo.
            Err(_) => Console::start(setup, 0, &ending).await,
        };
        let watched = Self { console: kept(console, output) };
        if output.json {
            // What is printed on stdout is the report alone.
            output.note(&watched.invitation());
        }
        watched
    }

    /// Where to look, for people.
    pub(super) fn invitation(&self) -> String {
        let link = self.console.as_ref().map(|console| format!("Watch it in a browser: {}", console.link()));
        link.unwrap_or_default()
    }

    /// Another act has another configuration.
    pub(super) async fn go_on(&mut self, setup: &Setup, output: &Output) {
        if let Some(console) = self.console.take() {
            self.console = kept(console.with(setup, &CancellationToken::new()).await, output);
        }
    }

    /// Ends it; if it is to `stay`, after a signal.
    ///
    /// # Errors
    /// The system refuses to tell of signals.
    pub(super) async fn close(self, stay: bool, output: &Output) -> Result<(), Failure> {
        let Some(console) = self.console else { return Ok(()) };
        if stay {
            output.note(&format!("\nThe fleet has ended, its console stays: {}\nCtrl-C ends it.", console.link()));
            Shutdown::on_signals().map_err(Failure::failed)?.draining.cancelled().await;
        }
        console.ended().await;
        Ok(())
    }
}

fn kept(console: Result<Console, Failure>, output: &Output) -> Option<Console> {
    console.map_err(|failure| output.note(&format!("No console: {}", failure.message().unwrap_or_default()))).ok()
}
