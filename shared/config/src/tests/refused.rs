//! Each invalid input of refused.txt has one error. A case is the kind of input in brackets, the input, and `=> ERROR` or `=~ PART OF THE ERROR`.

use super::refused_policy::{agents, permissions};
use super::{TestConfig, given, refused_limits, refused_mcp, refused_settings, refused_shell, refused_tools};

fn config(kind: &str, input: &'static str) -> TestConfig {
    let text = format!("{input}\n");
    let within = |indent: &str| input.replace('\n', &format!("\n{indent}"));
    match kind {
        "settings" => refused_settings::settings(&text),
        "agents" => agents(&text),
        "permissions" => permissions(&text),
        "tenants" => agents("agents: {}\n").file("tenants.yaml", text),
        "tools" => refused_tools::tools(&text),
        "tool" => refused_tools::tool(&within("      ")),
        "http" => refused_tools::http(&within("      ")),
        "paying" => refused_tools::paying(&format!("    {}", within("    "))),
        "limits" => refused_limits::limits(&format!("    {}\n", within("    "))),
        "server" => refused_mcp::server(input),
        "shell" => refused_shell::tool(&within("      ")),
        "variable" => {
            let (name, value) = input.split_once('=').unwrap();
            given().variable(name, value)
        }
        other => panic!("{other} is no kind of input"),
    }
}

#[test]
fn each_invalid_input_has_its_error() {
    let mut wrong = Vec::new();
    for case in include_str!("refused.txt").split("\n[").skip(1) {
        let (kind, rest) = case.split_once("]\n").unwrap();
        let (input, rest) = rest.split_once("\n=").unwrap();
        let (is_whole, expected) = (rest.starts_with("> "), &rest.lines().next().unwrap()[2..]);
        let errors = config(kind, input).errors();
        let is_expected = |error: &String| if is_whole { error == expected } else { error.contains(expected) };
        if errors.len() != 1 || !errors.iter().all(is_expected) {
            wrong.push(format!("[{kind}]\n{input}\nexpected: {expected}\nfound: {errors:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
