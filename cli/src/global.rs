//! The options of every command, and the environment of the process.

use std::path::{Path, PathBuf};

use clap::Args;
use tickfleet_config::Environment;

use crate::fleet::extensions::Extensions;

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Configuration folder, with tickfleet.yaml and the other configuration files, each optional. If missing, the
    /// built-in configuration.
    #[arg(long, global = true, value_name = "DIR", env = "TICKFLEET_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Redis URL: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://. Overrides the configuration
    /// and the variable REDIS_URL.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) redis_url: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// True if every agent has the trial tools. Not an option: the `tickfleet dev` of the current folder sets it.
    #[arg(skip)]
    pub(crate) trial_tools: bool,
    /// Tools and task handlers that the program adds. They are not an option.
    #[arg(skip)]
    pub(crate) extensions: Extensions,
}

/// Skips variables that are not UTF-8. Programs of the Python virtual environment around this program come first in
/// `PATH`, so that Python tools find their packages.
#[allow(clippy::disallowed_methods, reason = "the edge: what the environment says goes from here into configuration")]
pub(crate) fn environment() -> Environment {
    let mut environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    if let Some(programs) = std::env::current_exe().ok().as_deref().and_then(programs_of_virtual_environment) {
        let others = environment.get("PATH").map(|path| format!(":{path}")).unwrap_or_default();
        environment.insert("PATH".to_owned(), format!("{programs}{others}"));
    }
    environment
}

fn programs_of_virtual_environment(program: &Path) -> Option<String> {
    let programs = program.parent()?;
    programs.parent()?.join("pyvenv.cfg").is_file().then(|| programs.display().to_string())
}

pub(crate) fn tool_environment(environment: &Environment) -> tickfleet_tools::Environment {
    let variables = environment.clone();
    tickfleet_tools::Environment::new(move |name| variables.get(name).cloned())
}
