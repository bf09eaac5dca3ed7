//! `tickfleet config`: checks the configuration, or prints the settings in force.

use clap::{Args, Subcommand};
use serde::Serialize;
use tickfleet_config::{self as configuration, ConfigErrors, ConfigWarning};

use crate::commands::config_warnings::{arguments_of_two_types, missing_secrets};
use crate::failure::Failure;
use crate::fleet::modules;
use crate::global::Global;
use crate::output::{Output, StatusColor, plural};
use crate::setup::{self, Setup};

/// Check the configuration, or print the settings in force.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet config check --config /etc/tickfleet
  tickfleet config print | grep max_actions_per_day")]
pub(crate) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Report every error with file, line and field. Exit code 1 if there is any.
    Check,
    /// Print every setting with its source. Secrets are masked.
    Print,
}

#[derive(Serialize)]
struct CheckReport<'a> {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_digest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    built_in: Option<Vec<&'static str>>,
    errors: Vec<InvalidConfiguration>,
    warnings: Vec<Warning>,
}

#[derive(Serialize)]
struct Warning {
    place: String,
    field: String,
    message: String,
}

#[derive(Serialize)]
struct InvalidConfiguration {
    place: String,
    field: String,
    found: String,
    expected: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<String>,
}

pub(crate) fn run(args: &Config, global: &Global, output: &Output) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::Check => check(global, output),
        ConfigCommand::Print => {
            let setup = Setup::with_text(&setup::sources(global)?, &global.extensions, None)?;
            if output.json {
                return Err(Failure::usage("config print prints YAML only: omit --json"));
            }
            output.print(&configuration::print(&setup.configuration))
        }
    }
}

fn check(global: &Global, output: &Output) -> Result<(), Failure> {
    let sources = setup::sources(global)?;
    let pools = modules::inspection_pools(&sources);
    if let Err(errors) = configuration::load(&modules::with_modules(&sources, Some(&pools))?) {
        return refused(&errors, output);
    }
    // The next checks need the built tools.
    let setup = Setup::of(&sources, &global.extensions, Some(&pools))?;
    let of_rules = match setup.check_rules()? {
        Ok(warnings) => warnings,
        Err(errors) => return refused(&errors, output),
    };
    setup.check_tools()?;
    let configuration = &setup.configuration;
    let warnings = warnings(&setup, &of_rules);
    let digest = Some(&*configuration.digest);
    let built_in = Some(configuration.samples().to_vec());
    let report = CheckReport { valid: true, policy_digest: digest, built_in, errors: Vec::new(), warnings };
    output.show(&report, |report| {
        let policy = &configuration.policy;
        let ok = output.paint(StatusColor::Good, "valid");
        let mut text = format!(
            "The configuration is {ok}: {}, {}, {}, policy {}",
            plural(policy.tenants.len(), "tenant"),
            plural(policy.agents.len(), "agent"),
            plural(configuration.tools.tools.len(), "declared tool"),
            configuration.digest.get(..12).unwrap_or_default()
        );
        let word = output.paint(StatusColor::Doubtful, "warning");
        for Warning { place, field, message } in &report.warnings {
            text.push_str(&format!("\n{word}: {place}: {field}: {message}"));
        }
        if let (Some(_), Some(samples)) = (&global.config, report.built_in.as_ref().filter(|files| !files.is_empty())) {
            text.push_str(&format!("\nbuilt-in samples in use: {}", samples.join(", ")));
        }
        text
    })
}

fn refused(errors: &ConfigErrors, output: &Output) -> Result<(), Failure> {
    let errors_shown = wrong(errors);
    let warnings = Vec::new();
    let report = CheckReport { valid: false, policy_digest: None, built_in: None, errors: errors_shown, warnings };
    output.show(&report, |_| errors.to_string())?;
    Err(Failure::Reported)
}

fn warnings(setup: &Setup, of_rules: &[ConfigWarning]) -> Vec<Warning> {
    let written = setup.configuration.warnings.iter().chain(of_rules).map(|warning| Warning {
        place: warning.place.to_string(),
        field: warning.path.clone(),
        message: warning.message.clone(),
    });
    let extensions = setup.extensions.tools.iter().flat_map(|tool| {
        let name = tool.spec().name.clone();
        tool.undescribed().into_iter().map(move |field| Warning {
            place: format!("the tool {name}"),
            field,
            message: "it has no doc comment: models see only its name and type".into(),
        })
    });
    let hosts = setup.pools.iter().flat_map(|pools| pools.left_out()).map(|name| Warning {
        place: "tools.yaml".into(),
        field: format!("{name}.host"),
        message: "no tool host listens there, so its tools and their permission rows were not checked".into(),
    });
    let nobody = setup.configuration.policy.agents.is_empty().then(|| Warning {
        place: "agents.yaml".into(),
        field: "agents".into(),
        message: "no agent is configured: every turn is rejected".into(),
    });
    let homeless = setup.configuration.policy.tenants.is_empty().then(|| Warning {
        place: "tenants.yaml".into(),
        field: "tenants".into(),
        message: "no tenants configured: every turn is rejected, except for tenants that `tickfleet tenant set` adds"
            .into(),
    });
    let configuration = &setup.configuration;
    let environment = setup.tool_environment();
    let looked = missing_secrets(configuration, &environment).into_iter().chain(arguments_of_two_types(configuration));
    let looked = looked.map(|(file, field, message)| Warning { place: file.to_owned(), field, message });
    written.chain(extensions).chain(hosts).chain(nobody).chain(homeless).chain(looked).collect()
}

fn wrong(errors: &ConfigErrors) -> Vec<InvalidConfiguration> {
    let wrong = |error: &configuration::ConfigError| InvalidConfiguration {
        place: error.place.to_string(),
        field: error.path.clone(),
        found: error.found.clone(),
        expected: error.expected.clone(),
        suggestion: error.suggestion.clone(),
    };
    errors.as_slice().iter().map(wrong).collect()
}
