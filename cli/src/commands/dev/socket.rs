//! The sockets of `tickfleet dev`.

use std::path::Path;

use tickfleet_store::seam::socket::{SCHEME, SocketServer};

use crate::failure::Failure;

pub(crate) const DIR: &str = ".tickfleet";

/// Lends the in-memory fleet of this process to other commands, over a socket in `dir`.
pub(crate) fn listen_in(dir: &Path) -> Result<(SocketServer, String), Failure> {
    let dir = dir.canonicalize().map_err(|error| cannot(dir, &error))?;
    let path = dir.join("dev.sock");
    let lender = SocketServer::bind(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::failed(anyhow::anyhow!(
            "another tickfleet dev runs in {}: stop it, or name another folder with --dir",
            dir.display()
        )),
        _ => cannot(&path, &error),
    })?;
    Ok((lender, url_of(SCHEME, &path)))
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(anyhow::anyhow!("cannot use {} ({error}): name another folder with --dir", path.display()))
}

fn url_of(scheme: &str, path: &Path) -> String {
    format!("{scheme}{}", path.display())
}
