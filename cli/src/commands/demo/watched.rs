//! The console of the demo. If the console cannot be started, the demo continues without it.

use tickfleet_ops::shutdown::Shutdown;
use tokio_util::sync::CancellationToken;

use crate::commands::gateway::console::{Console, PORT};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

pub(super) struct DemoConsole {
    console: Option<Console>,
}

impl DemoConsole {
    pub(super) async fn open(setup: &Setup, output: &Output) -> Self {
        let ending = CancellationToken::new();
        let console = match Console::start(setup, PORT, &ending).await {
            Ok(console) => Ok(console),
            // Another program, for example a `tickfleet dev`, may use the port, so take a free port.
            Err(_) => Console::start(setup, 0, &ending).await,
        };
        let console = console
            .map_err(|failure| output.note(&format!("No console: {}", failure.message().unwrap_or_default())))
            .ok();
        let watched = Self { console };
        if output.json {
            // With `--json`, stdout must contain only the report.
            output.note(&watched.invitation());
        }
        watched
    }

    pub(super) fn invitation(&self) -> String {
        let link = self.console.as_ref().map(|console| format!("Watch it in a browser: {}", console.link()));
        link.unwrap_or_default()
    }

    pub(super) async fn close(self, stay: bool, output: &Output) -> Result<(), Failure> {
        let Some(console) = self.console else { return Ok(()) };
        if stay {
            output.note(&format!("\nThe fleet has ended; its console stays open: {}\nCtrl-C ends it.", console.link()));
            Shutdown::on_signals().map_err(Failure::failed)?.draining.cancelled().await;
        }
        console.ended().await;
        Ok(())
    }
}
