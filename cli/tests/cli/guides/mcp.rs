//! The tutorial on MCP tools, step by step as it stands there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::binary::{DevFleet, Said, tickfleet};
use crate::support::documents::{agrees, files, shown, with_binary};

const TUTORIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tools-mcp.md");

#[test]
fn every_step_of_the_mcp_tutorial_does_what_it_says() {
    let text = fs::read_to_string(TUTORIAL).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let written = [files(&text, "yaml"), files(&text, "python")].concat();
    assert_eq!(written.len(), 3, "the server, its entry, its permissions");
    for (path, text) in written {
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text + "\n").unwrap();
    }
    let (mut fleet, mut steps) = (None::<DevFleet>, 0);
    for step in shown(&text) {
        steps += 1;
        if let Some(arguments) = step.command.strip_prefix("tickfleet dev") {
            if let Some(running) = fleet.take() {
                assert_eq!(running.stop(), Some(0), "Ctrl-C drains");
            }
            let arguments: Vec<&str> = arguments.split_whitespace().collect();
            fleet = Some(DevFleet::start_in(folder.path(), &arguments, &[]));
            continue;
        }
        let mut command = match &fleet {
            Some(fleet) => fleet.shell(&step.command),
            None => shell(&step.command),
        };
        let said = Said::of(with_binary(&mut command).current_dir(folder.path()), "");
        let place = format!("docs/tools-mcp.md:{}: `{}`", step.line, step.command);
        assert!(agrees(&step.output, &said.stdout), "{place} printed something else:\n{}{}", said.stdout, said.stderr);
        let fails = step.command.starts_with("tickfleet mcp check")
            || said.stdout.contains("permanent")
            || said.stdout.contains("invalid_arguments");
        assert_eq!(said.code, i32::from(fails), "{place}");
    }
    assert_eq!(steps, 11);
    let running = fleet.unwrap();
    let doctor =
        Said::of(with_binary(&mut running.shell("tickfleet doctor --config conf")).current_dir(folder.path()), "");
    doctor.says("notes: its imported tools match the pinned definitions");
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn a_server_that_cannot_be_asked_is_told_of_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mcp = "servers:\n  gone: {command: a-program-that-is-not-there}\n";
    fs::write(folder.path().join("mcp.yaml"), mcp).unwrap();
    let config = folder.path().to_str().unwrap();
    let said = tickfleet(&["mcp", "pin", "--config", config]).exits(1);
    said.says("gone: failed: 'a-program-that-is-not-there' could not be started").says("Nothing was written.");
    assert!(!Path::new(config).join("mcp.lock.yaml").exists());
    tickfleet(&["mcp", "pin", "god", "--config", config]).exits(2).complains("it has: gone");
    let said = tickfleet(&["config", "check", "--config", config]).exits(1);
    said.says("mcp.yaml:2:9: servers.gone: found a server without pinned tools").says("tickfleet mcp pin gone");
    tickfleet(&["mcp", "pin"]).exits(0).says("mcp.yaml has no servers.");
}

fn shell(line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.env_remove("TICKFLEET_CONFIG");
    shell
}
