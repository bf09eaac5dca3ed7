//! `tickfleet init`: a folder to start from.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::output::invoked::{program, quoted};

/// Write a starter folder: a commented configuration, a Python tool and an agent.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet init
  tickfleet init shop      the same in the folder shop

Existing files are not changed: if one of the files exists, nothing is written.")]
pub(crate) struct Init {
    /// Folder, which is created if it is missing.
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

macro_rules! starter {
    ($($path:literal,)*) => {
        /// The files, by their paths in the folder.
        const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("starter/", $path)))),*];
    };
}

starter! {
    "fleet/tickfleet.yaml",
    "fleet/tenants.yaml",
    "fleet/agents.yaml",
    "fleet/permissions.yaml",
    "fleet/limits.yaml",
    "fleet/tools.yaml",
    "fleet/tools/shop.py",
    "agent.py",
}

/// # Errors
/// A file exists, or cannot be written.
pub(crate) fn run(args: &Init, output: &Output) -> Result<(), Failure> {
    let existing: Vec<String> = FILES
        .iter()
        .map(|(path, _)| args.dir.join(path))
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();
    if !existing.is_empty() {
        return Err(Failure::usage(format!("already exists: {}. Name another folder.", existing.join(", "))));
    }
    for (path, text) in FILES {
        let path = args.dir.join(path);
        write(&path, text).map_err(|error| Failure::failed(anyhow::anyhow!("{}: {error}", path.display())))?;
    }
    output.print(&next_steps(&args.dir))
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

fn next_steps(dir: &Path) -> String {
    let program = program();
    let enter =
        if dir == Path::new(".") { String::new() } else { format!("  cd {}\n", quoted(&dir.display().to_string())) };
    format!(
        "Wrote fleet/, the configuration of a fleet, and agent.py, an agent that uses it.\n\n\
         Start the fleet:\n{enter}  {program} dev --config fleet\n\n\
         In another terminal, in the same folder:\n  python agent.py 'Refund order A-1001.'\n"
    )
}
