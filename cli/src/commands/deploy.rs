//! `tickfleet scheduler` and `tickfleet worker`.

use tickfleet_ops::shutdown::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::fleet::{self, ProbeAddress, Roles};
use crate::global::Global;
use crate::setup::Setup;

/// A requested drain is not a failure.
pub(crate) async fn run(global: &Global, roles: Roles) -> Result<(), Failure> {
    // A worker must load all tools, including those of modules. A scheduler needs no interpreter.
    let load = || if roles.worker { Setup::load(global) } else { Setup::load_without_modules(global) };
    // Loading the rest of the configuration can wait for a tool host, so the log must start earlier.
    let settings = match Setup::load_settings(global) {
        Ok(settings) => settings,
        Err(failure) => return Err(load().err().unwrap_or(failure)),
    };
    let traces = settings.start_log()?;
    let setup = &load()?;
    // A process with PID 1 ignores termination signals for which it has no handler, so the handlers come first.
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let hangups = signal(SignalKind::hangup()).map_err(Failure::failed)?;
    let address = setup.settings().http.address;
    let fleet = fleet::start(setup, roles, ProbeAddress::On(address), shutdown).await?;
    fleet.follow_configuration(setup, Some(hangups));
    // The log already contains the failure.
    let outcome = fleet.wait().await.map_err(|_| Failure::Reported);
    if let Some(traces) = traces {
        traces.flush().await;
    }
    outcome
}
