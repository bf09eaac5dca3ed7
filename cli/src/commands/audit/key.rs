//! The key that signs seals.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use tickfleet_proof::seal::{Signer, secret_text};

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Print the public key of the signing key, or create a signing key.
#[derive(Debug, Args)]
pub(crate) struct Key {
    /// Create a secret key in this file, which must not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) new: Option<PathBuf>,
}

pub(crate) fn show(setup: &Setup, output: &Output) -> Result<(), Failure> {
    let missing = || Failure::failed(anyhow::anyhow!("no signing key is configured: set seal.key"));
    let signer = setup.signer()?.ok_or_else(missing)?;
    show_key(signer.key_id(), &signer, output)
}

pub(crate) fn make(path: &Path, output: &Output) -> Result<(), Failure> {
    let mut chance = [0; 32];
    let given = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut chance));
    given.context("/dev/urandom").map_err(Failure::failed)?;
    let secret = secret_text(&chance);
    let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written =
        written.and_then(|mut file| file.write_all(format!("{secret}\n").as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| path.display().to_string()).map_err(Failure::failed)?;
    let signer = Signer::new("seal-1", &secret).map_err(Failure::failed)?;
    output.note(&format!(
        "The secret key is in {}. Set seal.key to file:… with this path. The public key:",
        path.display()
    ));
    show_key("seal-1", &signer, output)
}

fn show_key(key_id: &str, signer: &Signer, output: &Output) -> Result<(), Failure> {
    let key = json!({ "key_id": key_id, "public_key": signer.public_key() });
    output.show(&key, |_| format!("{key_id}={}", signer.public_key()))
}
