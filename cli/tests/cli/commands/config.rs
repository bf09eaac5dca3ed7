//! `config` and `tools`: configurations are accepted, rejected and printed.

use std::path::Path;

use crate::support::binary::{CommandOutput, DevFleet, command, tickfleet};
use crate::support::documents;
use crate::support::files::short_folder;

#[test]
fn the_minimal_configuration_runs_and_dev_suggests_valid_commands() {
    let folder = short_folder();
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    let snippets = Path::new(documents::REPOSITORY).join("docs/snippets/smallest");
    for name in ["agents.yaml", "tenants.yaml", "permissions.yaml"] {
        std::fs::copy(snippets.join(name), conf.join(name)).unwrap();
    }
    let conf = conf.to_str().unwrap();
    let check = tickfleet(&["config", "check", "--config", conf]).exits(0);
    check.says("valid: 1 tenant, 1 agent, 8 declared tools").says("built-in samples in use: tools.yaml");
    tickfleet(&[
        "tools",
        "--config",
        conf,
        "--tenant",
        "nope",
        "--agent",
        "bot",
        "--redis-url",
        "redis://127.0.0.1:1/",
    ])
    .exits(3)
    .prints_error("the configuration has no tenant \"nope\"");

    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let next: Vec<&String> = fleet.welcome.iter().filter(|line| line.starts_with("  tickfleet ")).collect();
    assert_eq!(next.len(), 3, "{:?}", fleet.welcome);
    for command in next {
        let said = CommandOutput::of(documents::with_binary(&mut fleet.shell(command)).current_dir(folder.path()), "");
        assert_eq!(said.code, 0, "{command}: {}{}", said.stdout, said.stderr);
    }
    let ignored = std::fs::read_to_string(folder.path().join(".tickfleet/.gitignore"));
    assert_eq!(ignored.unwrap(), "*\n");
    assert_eq!(fleet.stop(), Some(0));
}

/// A cache must not return one agent's notes, tasks and files to other agents of the tenant.
#[test]
fn agent_specific_results_require_a_per_agent_cache() {
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().to_str().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("agents.yaml", "agents: {kelly: {}, ben: {}}\n");
    write("tenants.yaml", "tenants: {acme: {}}\n");
    write("permissions.yaml", "permissions: {get_subscription_info: {everyone: true}, read_file: {everyone: true}}\n");
    let own = [
        "search_my_memories",
        "check_task",
        "fetch_result",
        "list_tools",
        "get_subscription_info",
        "read_file",
        "count",
    ];
    let tools = |per: &str| {
        let tool = |name: &&str| {
            let shell = if *name == "count" { ", shell: {level: basic, command: [wc]}" } else { "" };
            let schema = "description: Looks., effect: read, input_schema: {type: object}";
            format!("  {name}: {{{schema}, cache: {{ttl: 1h{per}}}{shell}}}\n")
        };
        format!("tools:\n{}", own.iter().map(tool).collect::<String>())
    };
    write("tools.yaml", &tools(""));
    let refused = tickfleet(&["config", "check", "--config", conf]).exits(1);
    for name in own {
        let reported = format!("tool '{name}': its result depends on the agent that asks: set `per: agent`");
        assert!(refused.stderr.contains(&reported), "{reported}: {}", refused.stderr);
    }
    write("tools.yaml", &tools(", per: agent"));
    tickfleet(&["config", "check", "--config", conf]).exits(0);
}

#[test]
fn a_misspelled_rule_argument_is_reported_before_any_call() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let tools = |closed: &str| {
        let properties = "properties: {amount: {type: number}}";
        write(
            "tools.yaml",
            &format!(
                "tools:\n  pay:\n    description: Pays.\n    input_schema: {{type: object, {properties}{closed}}}\n"
            ),
        );
    };
    write("agents.yaml", "agents: {kelly: {}}\n");
    write("tenants.yaml", "tenants: {acme: {}}\n");
    let row = "everyone: true\n    rules:";
    write("permissions.yaml", &format!("permissions:\n  pay:\n    {row}\n      - require: args.amont <= 5\n"));
    tools("");
    let check = ["config", "check", "--config", dir];
    let said = tickfleet(&check).exits(0);
    said.says("permissions.yaml:5:18: permissions.pay.rules[0].require: pay does not declare `args.amont`");
    said.says("(did you mean `args.amount`?), though calls may have it; it declares args.amount");
    tools(", additionalProperties: false");
    let said = tickfleet(&check).exits(1);
    said.says(
        "permissions.yaml:5:18: permissions.pay.rules[0].require: found \"args.amont <= 5\", which names the unknown",
    );
    said.says("expected a field of calls of pay: args.amount; did you mean `args.amount`?");
    let report = tickfleet(&["config", "check", "--config", dir, "--json"]).exits(1).json();
    assert_eq!(report["errors"][0]["suggestion"], "args.amount", "{report}");
    for role in ["worker", "scheduler"] {
        tickfleet(&[role, "--config", dir]).exits(1).prints_error("did you mean `args.amount`?");
    }
    let echo = "echo:\n    {row}\n      - {require: args.valeu == 1, message: \"{args.vlaue}\"}\n";
    write("permissions.yaml", &format!("permissions:\n  {}", echo.replace("{row}", row)));
    let said = tickfleet(&check).exits(1);
    said.says("permissions.echo.rules[0].require: found \"args.valeu == 1\", which names the unknown `args.valeu`");
    said.says("permissions.echo.rules[0].message: found \"{args.vlaue}\", which names the unknown `args.vlaue`");
}

#[test]
fn configuration_errors_show_their_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    tickfleet(&["config", "check", "--config", dir]).exits(0).says("is valid");
    std::fs::write(folder.path().join("tickfleet.yaml"), "caps:\n  tick: 5 weeks\n  max_cals: 3\n").unwrap();
    let said = tickfleet(&["config", "check", "--config", dir]).exits(1);
    said.says("tickfleet.yaml:2:9").says("caps.tick").says("2 errors");
    let report = tickfleet(&["config", "check", "--config", dir, "--json"]).exits(1).json();
    assert_eq!((report["valid"].as_bool(), report["errors"].as_array().unwrap().len()), (Some(false), 2));
    for role in ["worker", "scheduler"] {
        tickfleet(&[role, "--config", dir]).exits(1).prints_error("caps.tick");
    }
}

#[test]
fn config_print_shows_origins_and_hides_passwords() {
    let url = "redis://fleet:s3cret@127.0.0.1:1/";
    let said = tickfleet(&["config", "print", "--redis-url", url]).exits(0);
    said.says("***").says("max_calls_per_tick: 10").says("# default");
    assert!(!said.stdout.contains("s3cret"), "{}", said.stdout);
    let away = tickfleet(&["doctor", "--redis-url", url]).exits(3);
    assert!(!away.stderr.contains("s3cret"), "{}", away.stderr);
}

#[test]
fn tools_are_listed_and_defined_for_a_model() {
    tickfleet(&["tools"]).exits(0).says("post_to_x").says("atlas, kelly, sunday").says("everyone");
    let of =
        |agent, format| tickfleet(&["tools", "--tenant", "atlas-ux", "--agent", agent, "--format", format]).exits(0);
    let names = |agent| {
        let defined = of(agent, "openai").json();
        let name = |tool: &serde_json::Value| tool["function"]["name"].as_str().unwrap().to_owned();
        defined.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert!(names("kelly").contains(&"post_to_x".to_owned()));
    assert!(!names("fran").contains(&"post_to_x".to_owned()));
    assert!(of("kelly", "anthropic").json()[0]["input_schema"].is_object());
    of("kelly", "text").says("Arguments (JSON Schema)").says("{\"tool\": ");
    assert!(of("kelly", "mcp").json()[0]["annotations"]["readOnlyHint"].is_boolean());
    assert_eq!(of("kelly", "openai-responses").json()[0]["strict"], false);
    let strict = ["tools", "--tenant", "atlas-ux", "--agent", "kelly", "--strict", "--format"];
    let defined = tickfleet(&[&strict[..], &["openai"]].concat()).exits(0).json();
    let defined = defined.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == "post_to_x").unwrap();
    assert_eq!(
        (&defined["function"]["strict"], &defined["function"]["parameters"]["additionalProperties"]),
        (&true.into(), &false.into())
    );
    tickfleet(&[&strict[..], &["mcp"]].concat()).exits(2).prints_error("--strict requires");
    tickfleet(&["tools", "--tenant", "atlas-ux", "--agent", "fran"])
        .exits(0)
        .says("no row in permissions.yaml allows it");
}

#[test]
fn every_role_rejects_an_invalid_schema_with_its_location() {
    let folder = tempfile::tempdir().unwrap();
    let tools = "tools:
  look:
    description: Looks.
    effect: read
    input_schema:
      type: object
      properties:
        kind: {type: strnig, description: Which.}
  find:
    description: Finds.
    effect: read
    input_schema:
      type: object
      properties:
        name: {type: string, description: Whose.}
    output_schema:
      properties: {area: {minimum: low}}
";
    std::fs::write(folder.path().join("tools.yaml"), tools).unwrap();
    std::fs::write(folder.path().join("permissions.yaml"), "permissions: {look: {everyone: true}}").unwrap();
    let conf = folder.path().to_str().unwrap();
    for role in [&["config", "check"][..], &["scheduler"], &["worker"]] {
        let said = tickfleet(&[role, &["--config", conf, "--redis-url", "redis://127.0.0.1:1"]].concat()).exits(1);
        let reported = said.stdout + &said.stderr;
        for (place, why) in [
            ("tools.yaml:8:22: tools.look.input_schema.properties.kind.type: found \"strnig\"", "is valid"),
            ("tools.yaml:17:36: tools.find.output_schema.properties.area.minimum: found \"low\"", "type number"),
        ] {
            let line = reported.lines().find(|line| line.contains(place));
            assert!(line.is_some_and(|line| line.contains(why)), "{role:?}: {place}: {reported}");
        }
    }
}

#[test]
fn trial_tools_exist_only_if_they_are_enabled() {
    let listed = tickfleet(&["tools"]).exits(0).stdout;
    let defined =
        tickfleet(&["tools", "--tenant", "atlas-ux", "--agent", "kelly", "--format", "openai"]).exits(0).stdout;
    for trial in ["echo", "sleep", "fail", "fail_once"] {
        assert!(!listed.lines().any(|line| line.starts_with(trial)) && !defined.contains(&format!("\"{trial}\"")));
    }
    let with = CommandOutput::of(command(&["tools"]).env("TICKFLEET_PERMISSION_TRIAL_TOOLS", "true"), "").exits(0);
    with.says("echo").says("fail_once");
}
