//! `tickfleet init`: a folder to start from.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::output::Output;
use crate::output::invoked::{program, quoted};

/// Write a starter folder: a commented configuration, a tool and an agent, in Python or for Node.js.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet init
  tickfleet init shop                   the same in the folder shop
  tickfleet init shop --language node   with a tool and an agent for Node.js

Existing files are not changed: if one of the files exists, nothing is written.")]
pub(crate) struct Init {
    /// Folder, which is created if it is missing.
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Language of the tool and the agent. Without this option: `node` if the folder has a package.json or if npx runs
    /// this program, otherwise `python`.
    #[arg(long, value_enum)]
    language: Option<Language>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Language {
    Python,
    Node,
}

type File = (&'static str, &'static str);

macro_rules! starter {
    ($name:ident, $source:literal: $($path:literal,)*) => {
        const $name: &[File] = &[$(($path, include_str!(concat!("starter/", $source, "/", $path)))),*];
    };
}

starter! {
    SHARED, "shared":
    "fleet/tickfleet.yaml",
    "fleet/tenants.yaml",
    "fleet/agents.yaml",
    "fleet/permissions.yaml",
    "fleet/limits.yaml",
}

starter! {
    PYTHON, "python":
    "fleet/tools.yaml",
    "fleet/tools/shop.py",
    "agent.py",
}

starter! {
    NODE, "node":
    "fleet/tools.yaml",
    "fleet/tools/shop.mjs",
    "agent.mjs",
}

impl Language {
    fn of_folder(dir: &Path) -> Self {
        let is_node = dir.join("package.json").exists() || program().starts_with("npx ");
        if is_node { Self::Node } else { Self::Python }
    }

    fn files(self) -> &'static [File] {
        match self {
            Self::Python => PYTHON,
            Self::Node => NODE,
        }
    }

    fn agent(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("agent.py", "python agent.py"),
            Self::Node => ("agent.mjs", "node agent.mjs"),
        }
    }
}

pub(crate) fn run(args: &Init, output: &Output) -> Result<(), Failure> {
    let language = args.language.unwrap_or_else(|| Language::of_folder(&args.dir));
    let files = || SHARED.iter().chain(language.files());
    let existing: Vec<String> = files()
        .map(|(path, _)| args.dir.join(path))
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();
    if !existing.is_empty() {
        return Err(Failure::usage(format!("already exists: {}. Name another folder.", existing.join(", "))));
    }
    for (path, text) in files() {
        let path = args.dir.join(path);
        write(&path, text).map_err(|error| Failure::failed(anyhow::anyhow!("{}: {error}", path.display())))?;
    }
    output.print(&next_steps(&args.dir, language))
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

fn next_steps(dir: &Path, language: Language) -> String {
    let (program, (agent, run)) = (program(), language.agent());
    let enter =
        if dir == Path::new(".") { String::new() } else { format!("  cd {}\n", quoted(&dir.display().to_string())) };
    let install = match language {
        Language::Node if !has_package(dir) => "  npm install tickfleet\n",
        Language::Node | Language::Python => "",
    };
    format!(
        "Wrote fleet/, the configuration of a fleet, and {agent}, an agent that uses it.\n\n\
         Start the fleet:\n{enter}{install}  {program} dev --config fleet\n\n\
         In another terminal, in the same folder:\n  {run} 'Refund order A-1001.'\n"
    )
}

/// True if modules in the folder can import the npm package. With npx alone, they cannot.
fn has_package(dir: &Path) -> bool {
    let absolute = std::path::absolute(dir);
    absolute.is_ok_and(|dir| dir.ancestors().any(|above| above.join("node_modules/tickfleet").exists()))
}
