//! An interpreter in a tool host: a program in a separate container that listens on a Unix socket and starts one
//! interpreter per connection. The worker has only the connection; closing it ends the interpreter.

use std::io::{Error, ErrorKind};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::Instant;

/// Wait between attempts to reach a host that is not there yet: the containers of a pod start at the same time.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// A connection to a tool host. Dropping it closes the connection, and the host ends the interpreter with everything
/// that it has started.
pub(crate) struct Remote(StdUnixStream);

/// Returns true if the host is absent: it has no socket yet, or it was killed and left a socket on which nothing
/// listens.
fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Returns true if no host listens on `path` now.
pub(crate) fn is_absent(path: &str) -> bool {
    StdUnixStream::connect(path).is_err_and(|error| is_absence(&error))
}

/// Connects to the host that listens on `path`, and waits at most `patience` until one does.
///
/// # Errors
/// The reason why connecting failed.
pub(super) async fn dial(path: &str, patience: Duration) -> Result<(Remote, UnixStream), String> {
    let began = Instant::now();
    let mut reported = false;
    loop {
        let error = match UnixStream::connect(path).await {
            Ok(socket) => return with_closer(socket).map_err(|error| format!("{path}: {error}")),
            Err(error) => error,
        };
        if !is_absence(&error) {
            return Err(format!("the tool host at {path} cannot be reached ({error})"));
        }
        if began.elapsed() + TRY_EVERY > patience {
            return Err(format!("no tool host listens at {path} ({error}) within {} s", patience.as_secs_f32()));
        }
        if !reported {
            tracing::warn!(socket = path, %error, patience_s = patience.as_secs(), "no tool host is listening; waiting for it");
            reported = true;
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Makes a second handle to the connection, which can close it regardless of the reader and the writer.
fn with_closer(socket: UnixStream) -> std::io::Result<(Remote, UnixStream)> {
    let socket = socket.into_std()?;
    Ok((Remote(socket.try_clone()?), UnixStream::from_std(socket)?))
}

impl Remote {
    /// Closes the connection now, also for its reader and writer.
    pub(super) fn close(&self) {
        // This fails if the host has already closed it, which is fine.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
    }
}
