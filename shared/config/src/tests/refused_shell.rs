use super::{TestConfig, given};
use crate::tools::ToolRunner;

/// `lines` begin on line 7 of the file, in the section `shell:`.
pub(super) fn tool(lines: &str) -> TestConfig {
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
