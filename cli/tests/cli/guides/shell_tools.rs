//! Tests shell tools on a machine without support for their sandbox.

use std::fs;
use std::process::Command;

use crate::support::binary::{CommandOutput, DevFleet, command, submit};
use crate::support::files::short_folder;

/// The PATH in this test has no container engine.
const CONTAINER: &str = "tools:
  look:
    description: Looks around.
    effect: read
    input_schema: {type: object, additionalProperties: false}
    shell: {level: docker, image: busybox, command: [id]}
";

#[test]
fn a_fleet_without_a_sandbox_refuses_to_start_or_rejects_calls() {
    let folder = short_folder();
    let conf = folder.path().join("conf");
    let path = folder.path().join("bin");
    fs::create_dir_all(&conf).unwrap();
    fs::create_dir_all(&path).unwrap();
    for (name, text) in [("tools.yaml", CONTAINER), ("permissions.yaml", "permissions:\n  look: {everyone: true}\n")] {
        fs::write(conf.join(name), text).unwrap();
    }
    // The PATH of the fleet has no program except the Redis that the fleet starts.
    let redis =
        Command::new("sh").args(["-c", "command -v redis-server || command -v valkey-server"]).output().unwrap();
    let redis = String::from_utf8(redis.stdout).unwrap();
    std::os::unix::fs::symlink(redis.trim(), path.join("redis-server")).unwrap();
    let conf = conf.display().to_string();
    let path = path.display().to_string();

    let mut strict = command(&["dev", "--config", &conf]);
    let said = CommandOutput::of(strict.env("PATH", &path).env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0"), "");
    assert!(said.code != 0 && said.stderr.contains("does not support the sandbox level docker"), "{}", said.stderr);

    let variables = [("PATH", path.as_str()), ("TICKFLEET_WORKER_WITHOUT_SANDBOX", "refuse_calls")];
    let fleet = DevFleet::start_in(folder.path(), &["--config", &conf], &variables);
    let result = fleet.run(&submit(&["--call", "look {}", "--wait", "--json"])).json()["results"][0].clone();
    assert_eq!(result["error"]["code"], "not_configured", "{result}");
    assert!(result["error"]["message"].as_str().is_some_and(|why| why.contains("sandbox level docker")), "{result}");
    assert_eq!(fleet.stop(), Some(0));
}
