//! `docs/reference/cli.md`: every command with its options, from the definition of the command line.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use super::{anchor, cell, escaped, keep_current, sentence};
use crate::args::Cli;
use crate::failure::{FAILED, REDIS, USAGE};

#[test]
fn the_page_of_commands_is_current() {
    let mut program = Cli::command();
    program.build();
    keep_current("cli.md", "Command line", &page(&program));
}

fn page(program: &Command) -> String {
    let mut page = format!("{}\n\n", sentence(&program.get_about().unwrap_or_default().to_string()));
    page.push_str("| Command | Purpose |\n|---|---|\n");
    for command in visible(program) {
        let name = name(command);
        writeln!(page, "| [`{name}`](#{}) | {} |", anchor(&name), cell(&short(command))).unwrap();
    }
    page.push_str("\n## Global options\n\nEvery command accepts these options.\n\n");
    page.push_str(&options(
        &program.get_arguments().filter(|arg| shown(arg) && arg.is_global_set()).collect::<Vec<_>>(),
    ));
    page.push_str("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n");
    let codes = [
        (0, "The command succeeded."),
        (FAILED, "The command failed, or a check that it made failed."),
        (USAGE, "The command line is invalid."),
        (REDIS, "Redis cannot be reached."),
    ];
    for (code, meaning) in codes {
        writeln!(page, "| `{code}` | {meaning} |").unwrap();
    }
    page.push_str(&variables(program));
    for command in visible(program) {
        page.push_str(&section(command, 2));
    }
    page
}

fn variables(program: &Command) -> String {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut waiting: Vec<&Command> = vec![program];
    while let Some(command) = waiting.pop() {
        for arg in command
            .get_arguments()
            .filter(|arg| shown(arg) && (!arg.is_global_set() || command.get_name() == "tickfleet"))
        {
            if let Some(variable) = arg.get_env() {
                let of = if arg.is_global_set() { "every command".to_owned() } else { format!("`{}`", name(command)) };
                found.insert(variable.to_string_lossy().into_owned(), format!("`{}` of {of}", flag(arg)));
            }
        }
        waiting.extend(visible(command));
    }
    let mut page = "\n## Environment variables\n\nAn option on the command line overrides its variable. Variables for settings are in the \
        [settings reference](settings.md).\n\n| Variable | Option |\n|---|---|\n"
        .to_owned();
    for (variable, option) in found {
        writeln!(page, "| `{variable}` | {option} |").unwrap();
    }
    page
}

fn section(command: &Command, level: usize) -> String {
    let name = name(command);
    let mut page = format!("\n{} `{name}`\n\n{}\n", "#".repeat(level), sentence(&escaped(&about(command))));
    let nested: Vec<&Command> = visible(command).collect();
    let arguments: Vec<&Arg> = command.get_arguments().filter(|arg| shown(arg) && !arg.is_global_set()).collect();
    if nested.is_empty() || !arguments.is_empty() {
        let usage = command.clone().render_usage().to_string();
        write!(page, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ")).unwrap();
    }
    if !arguments.is_empty() {
        page.push('\n');
        page.push_str(&options(&arguments));
    }
    if !nested.is_empty() {
        page.push_str("\n| Subcommand | Purpose |\n|---|---|\n");
        for command in &nested {
            let name = self::name(command);
            writeln!(page, "| [`{name}`](#{}) | {} |", anchor(&name), cell(&short(command))).unwrap();
        }
    }
    page.push_str(&notes(&command.get_after_help().map(ToString::to_string).unwrap_or_default()));
    for command in nested {
        page.push_str(&self::section(command, 3));
    }
    page
}

fn options(arguments: &[&Arg]) -> String {
    let mut page = "| Option | Default | Description |\n|---|---|---|\n".to_owned();
    let mut values = String::new();
    for arg in arguments {
        let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let known = arg.get_possible_values();
        let known: Vec<_> = if arg.get_action().takes_values() { known } else { Vec::new() };
        let mut help = cell(&help);
        if known.iter().any(|value| value.get_help().is_some()) {
            write!(values, "\nValues of `{}`:\n\n", flag(arg)).unwrap();
            for value in &known {
                let means = value.get_help().map(ToString::to_string).unwrap_or_default();
                writeln!(values, "- `{}`: {}", value.get_name(), sentence(&escaped(&means))).unwrap();
            }
        } else if !known.is_empty() {
            let words: Vec<String> = known.iter().map(|value| format!("`{}`", value.get_name())).collect();
            write!(help, " One of {}.", words.join(", ")).unwrap();
        }
        let usage = arg.to_string();
        let short =
            arg.get_short().filter(|_| arg.get_long().is_some()).map(|c| format!("`-{c}`, ")).unwrap_or_default();
        writeln!(page, "| {short}`{}` | {} | {help} |", usage.replace('|', "\\|"), default(arg)).unwrap();
    }
    page + &values
}

fn default(arg: &Arg) -> String {
    if arg.is_required_set() {
        return "required".into();
    }
    let values: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let taken = arg.get_action().takes_values() && values.iter().any(|value| !value.is_empty());
    if taken { format!("`{}`", values.join(",")) } else { String::new() }
}

fn notes(text: &str) -> String {
    let mut page = String::new();
    let mut code: Vec<&str> = Vec::new();
    let mut prose: Vec<&str> = Vec::new();
    let flush = |code: &mut Vec<&str>, prose: &mut Vec<&str>, page: &mut String| {
        if !code.is_empty() {
            write!(page, "\n```text\n{}\n```\n", code.join("\n")).unwrap();
            code.clear();
        }
        if !prose.is_empty() {
            write!(page, "\n{}\n", sentence(&escaped(&prose.join(" ")))).unwrap();
            prose.clear();
        }
    };
    for line in text.lines() {
        if let Some(example) = line.strip_prefix("Example: ") {
            flush(&mut code, &mut prose, &mut page);
            code.push(example);
        } else if let Some(example) = line.strip_prefix("  ") {
            if !prose.is_empty() {
                flush(&mut code, &mut prose, &mut page);
            }
            code.push(example);
        } else if line.trim().is_empty() {
            flush(&mut code, &mut prose, &mut page);
        } else if !line.starts_with("Example") {
            if !code.is_empty() {
                flush(&mut code, &mut prose, &mut page);
            }
            prose.push(line.trim());
        }
    }
    flush(&mut code, &mut prose, &mut page);
    page
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn short(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn about(command: &Command) -> String {
    command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string).unwrap_or_default()
}

fn flag(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.to_string(), |long| format!("--{long}"))
}
