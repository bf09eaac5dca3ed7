//! Shell tools in a whole fleet: the tutorial as it stands there, with a real Redis and a worker that executes itself to
//! confine commands.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::binary::{DevFleet, Said, command, submit};
use crate::support::documents::{agrees, files, shown, with_binary};

const TUTORIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tools-shell.md");
/// What a worker says that cannot hold what a tool demands.
const REFUSED: &str = "this machine does not support the sandbox level basic";

#[test]
fn every_step_of_the_shell_tutorial_does_what_it_says() {
    let text = fs::read_to_string(TUTORIAL).unwrap();
    // A socket's path is short; that of the system's folder for temporary files may not be.
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    fs::set_permissions(folder.path(), mode).unwrap();
    let workspaces = folder.path().join("workspaces").display().to_string();
    for (name, text) in files(&text, "yaml") {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }
    let variables = [("TICKFLEET_WORKER_WORKSPACES", workspaces.as_str())];
    if let Some(why) = refused(folder.path(), &variables) {
        // Then it must not have been run bare.
        println!("skipped but for the refusal: {why}");
        return;
    }
    let (mut fleet, mut steps) = (None::<DevFleet>, 0);
    for step in shown(&text) {
        steps += 1;
        if let Some((_, arguments)) = step.command.split_once("tickfleet dev") {
            let arguments: Vec<&str> = arguments.split_whitespace().collect();
            fleet = Some(DevFleet::start_in(folder.path(), &arguments, &variables));
            continue;
        }
        let mut shell = match &fleet {
            Some(fleet) => fleet.shell(&step.command),
            None => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &step.command]).env_remove("TICKFLEET_CONFIG");
                shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                shell
            }
        };
        let said = Said::of(with_binary(&mut shell).current_dir(folder.path()), "");
        let place = format!("docs/tools-shell.md:{}: `{}`", step.line, step.command);
        assert!(agrees(&step.output, &said.stdout), "{place} printed something else:\n{}{}", said.stdout, said.stderr);
        assert_eq!(said.code, i32::from(said.stdout.contains("permanent")), "{place}");
    }
    assert_eq!(steps, 6);
}

/// Tries one of the tools on this machine; answers the refusal, where there is one.
fn refused(folder: &std::path::Path, variables: &[(&str, &str)]) -> Option<String> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "tickfleet tools try count_words '{\"text\":\"a b\"}' --agent kelly --tenant demo --config conf"]);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.envs(variables.iter().copied()).env_remove("TICKFLEET_CONFIG");
    let said = Said::of(with_binary(&mut shell).current_dir(folder), "");
    said.stderr.contains(REFUSED).then_some(said.stderr)
}

/// A tool that wants a container, on a machine whose PATH has no engine.
const CONTAINER: &str = "tools:
  look:
    description: Looks around.
    effect: read
    input_schema: {type: object, additionalProperties: false}
    shell: {level: docker, image: busybox, command: [id]}
";

#[test]
fn a_machine_without_the_sandbox_refuses_to_start_or_refuses_the_calls() {
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    let (conf, path) = (folder.path().join("conf"), folder.path().join("bin"));
    fs::create_dir_all(&conf).unwrap();
    fs::create_dir_all(&path).unwrap();
    for (name, text) in [("tools.yaml", CONTAINER), ("permissions.yaml", "permissions:\n  look: {everyone: true}\n")] {
        fs::write(conf.join(name), text).unwrap();
    }
    // Of programs, the fleet finds its Redis, and nothing else.
    let redis =
        Command::new("sh").args(["-c", "command -v redis-server || command -v valkey-server"]).output().unwrap();
    let redis = String::from_utf8(redis.stdout).unwrap();
    std::os::unix::fs::symlink(redis.trim(), path.join("redis-server")).unwrap();
    let (conf, path) = (conf.display().to_string(), path.display().to_string());

    let mut strict = command(&["dev", "--config", &conf]);
    let said = Said::of(strict.env("PATH", &path).env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0"), "");
    assert!(said.code != 0 && said.stderr.contains("does not support the sandbox level docker"), "{}", said.stderr);

    let variables = [("PATH", path.as_str()), ("TICKFLEET_WORKER_WITHOUT_SANDBOX", "refuse_calls")];
    let fleet = DevFleet::start_in(folder.path(), &["--config", &conf], &variables);
    let result = fleet.run(&submit(&["--call", "look {}", "--wait", "--json"])).json()["results"][0].clone();
    assert_eq!(result["error"]["code"], "not_configured", "{result}");
    assert!(result["error"]["message"].as_str().is_some_and(|why| why.contains("sandbox level docker")), "{result}");
    assert_eq!(fleet.stop(), Some(0));
}
