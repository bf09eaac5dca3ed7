//! An interpreter in a tool host. A tool host is a separate container, with one interpreter for each connection to its
//! Unix socket. Closing the connection ends the interpreter.

use std::io::{Error, ErrorKind};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::Instant;

/// The pause between attempts to connect. The containers of a pod start at the same time, so the host may be absent at
/// first.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// Dropping this value closes the connection. The host then ends the interpreter.
pub(crate) struct Remote(StdUnixStream);

/// True if no host listens. A killed host leaves a socket file on which nothing listens.
fn is_missing_socket(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

pub(crate) fn is_absent(path: &str) -> bool {
    StdUnixStream::connect(path).is_err_and(|error| is_missing_socket(&error))
}

/// Connects to the host. Waits at most `patience` if no host listens yet.
pub(super) async fn dial(path: &str, patience: Duration) -> Result<(Remote, UnixStream), String> {
    let began = Instant::now();
    let mut reported = false;
    loop {
        let error = match UnixStream::connect(path).await {
            Ok(socket) => return with_closer(socket).map_err(|error| format!("{path}: {error}")),
            Err(error) => error,
        };
        if !is_missing_socket(&error) {
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

/// The second handle can close the connection while the reader and the writer use it.
fn with_closer(socket: UnixStream) -> std::io::Result<(Remote, UnixStream)> {
    let socket = socket.into_std()?;
    Ok((Remote(socket.try_clone()?), UnixStream::from_std(socket)?))
}

impl Remote {
    pub(super) fn close(&self) {
        // `shutdown` fails only if the host has already closed the connection.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
    }
}
