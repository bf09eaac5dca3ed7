use super::{TestConfig, given};
use crate::tools::ToolRunner;

/// `lines` begin on line 7 of the file, in the section `shell:`.
fn tool(lines: &str) -> TestConfig {
    let text = format!(
        "tools:\n  call:\n    description: Calls.\n    input_schema: {{type: object, properties: {{text: {{type: string, \
         description: A text.}}}}}}\n    effect: read\n    shell:\n      {lines}\n"
    );
    given().file("tools.yaml", &text).file("permissions.yaml", "permissions: {call: {everyone: true}}\n")
}

#[test]
fn a_valid_shell_tool_is_accepted() {
    let lines = "level: basic\n      command: [wc, -w, \"{{text}}\"]\n      stdin: \"{{text}}\"\n      paths: [{path: \
                 /srv/data}]\n      tcp_ports: [443]\n      limits: {memory_bytes: 1GiB, wall_ms: 1000}\n      \
                 transient_exits: [75]\n      environment: {A_B: c}";
    let loaded = tool(lines).load().unwrap_or_else(|errors| panic!("{errors}"));
    let Some(ToolRunner::Shell(def)) = &loaded.tools.tools["call"].runner else { panic!("it is declared") };
    assert_eq!((def.limits.memory_bytes, def.limits.wall_ms, def.limits.cpu_ms), (Some(1 << 30), Some(1_000), None));
    assert!(def.tcp_ports.contains(&443) && def.transient_exits.contains(&75) && !def.paths[0].write);
}

#[test]
fn a_command_needs_known_arguments_and_a_fixed_program() {
    tool("level: basic\n      command: [echo, \"{{txt}}\"]").assert_refused(
        "tools.yaml:8:23: tools.call.shell.command[1]: found {{txt}}; expected an argument of \
         input_schema.properties: text; did you mean `text`?",
    );
    tool("level: basic\n      command: [\"{{text}}\"]").assert_refused(
        "tools.yaml:8:17: tools.call.shell.command[0]: found \"{{text}}\"; expected a program without {{argument}}: a \
         call does not choose what is executed",
    );
}

#[test]
fn invalid_sandbox_paths_and_levels_are_rejected() {
    tool("level: basic\n      command: [ls]\n      paths: [{path: ../data}]").assert_refused(
        "tools.yaml:9:22: tools.call.shell.paths[0].path: found \"../data\"; expected an absolute path without ..",
    );
    tool("level: loose\n      command: [ls]").assert_refused(
        "tools.yaml:7:14: tools.call.shell.level: found \"loose\"; expected one of basic, strict, docker",
    );
    tool("level: docker\n      command: [ls]").assert_refused(
        "tools.yaml:7:7: tools.call.shell: found a mapping; expected an `image` beside the level docker: the \
         command runs in it",
    );
}
