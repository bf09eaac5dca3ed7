//! `tickfleet scheduler` and `tickfleet worker`: one process of a deployed fleet.

use shared::ops::shutdown::Shutdown;

use crate::failure::Failure;
use crate::fleet::{self, Answer, Roles};
use crate::setup::Setup;

/// Log, signals, start, wait for the drain.
///
/// # Errors
/// What keeps the process from starting or ended it; a drain that was asked for is none.
pub(crate) async fn run(setup: &Setup, roles: Roles) -> Result<(), Failure> {
    setup.start_log()?;
    // Before anything starts: as PID 1, a process without handlers ignores the signals that should end it.
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let address = setup.settings().http.address;
    fleet::start(setup, roles, Answer::On(address), shutdown).await?.wait().await
}
