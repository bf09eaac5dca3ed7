//! Announces and finds the `tickfleet dev` of a folder. Commands in this folder need no URL, key or configuration.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tickfleet_store::seam::socket::SCHEME;

use super::socket::DIR;
use crate::failure::Failure;
use crate::global::{Global, environment};

pub(crate) const GRANT_TRIAL_TOOLS: &str = "TICKFLEET_PERMISSION_TRIAL_TOOLS";

/// In the folder of the socket. Clients in Python and TypeScript read this file, too.
const FILE: &str = "dev.json";

/// In the folder of the socket. This page redirects to the console.
const PAGE: &str = "console.html";

const URL_VARIABLES: [&str; 3] = ["REDIS_URL", "TICKFLEET_REDIS_URL", "REDIS_URL_FILE"];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DevHere {
    /// A socket, or `redis://` with a port of this machine.
    pub(crate) redis_url: String,
    /// Absolute path; `None` for the built-in configuration.
    pub(crate) config: Option<PathBuf>,
    pub(crate) trial_tools: bool,
    pub(crate) fleet_url: Option<String>,
    pub(crate) fleet_key: Option<String>,
}

pub(crate) struct Announced(PathBuf);

impl DevHere {
    /// Only this user can read the file, because it contains a key.
    pub(crate) fn announce(&self, dir: &Path) -> Result<Announced, Failure> {
        let text = serde_json::to_vec_pretty(self).map_err(Failure::failed)?;
        Ok(Announced(write_private(&dir.join(FILE), &text)?))
    }

    /// Ignores the file of a killed process.
    pub(crate) fn find() -> Option<Self> {
        let file = std::fs::File::open(Path::new(DIR).join(FILE)).ok()?;
        // In a shared folder, another user's file could name tools that then run as this user.
        if file.metadata().ok()?.uid() != nix::unistd::geteuid().as_raw() {
            return None;
        }
        let here: Self = serde_json::from_reader(std::io::BufReader::new(file)).ok()?;
        here.is_live().then_some(here)
    }

    /// Does nothing if options or variables name a Redis or another configuration.
    pub(crate) fn adopt(mut global: Global) -> Global {
        let environment = environment();
        let is_set = |name: &&str| environment.get(*name).is_some_and(|value| !value.trim().is_empty());
        if global.redis_url.is_some() || URL_VARIABLES.iter().any(is_set) {
            return global;
        }
        let Some(here) = Self::find() else { return global };
        let asked = global.config.as_ref().map(|dir| dir.canonicalize().ok());
        if asked.is_some_and(|dir| dir != here.config) {
            return global;
        }
        global.config = here.config;
        global.redis_url = Some(here.redis_url);
        global.trial_tools |= here.trial_tools;
        global
    }

    fn is_live(&self) -> bool {
        let url = self.redis_url.as_str();
        match url.strip_prefix(SCHEME).or_else(|| url.strip_prefix("unix://")) {
            Some(path) => UnixStream::connect(path).is_ok(),
            None => url
                .strip_prefix("redis://")
                .and_then(|rest| rest.split('/').next())
                .is_some_and(|address| std::net::TcpStream::connect(address).is_ok()),
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Other users can read the arguments of a program, so the browser gets a page instead of the link.
pub(crate) fn open_console(dir: &Path, link: &str) -> Result<Announced, Failure> {
    let page =
        format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={link}\"><title>Tickfleet</title>\n");
    let path = write_private(&dir.join(PAGE), page.as_bytes())?;
    if let Ok(path) = path.canonicalize() {
        let _ = open::that_detached(path);
    }
    Ok(Announced(path))
}

fn write_private(path: &Path, text: &[u8]) -> Result<PathBuf, Failure> {
    // An existing file would keep its mode, so remove the file first.
    let _ = std::fs::remove_file(path);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    written
        .and_then(|mut file| file.write_all(text))
        .map_err(|error| Failure::failed(anyhow::anyhow!("cannot write {} ({error})", path.display())))?;
    Ok(path.to_owned())
}
