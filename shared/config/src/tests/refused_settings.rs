//! Invalid settings, syntax and variables.

use super::super::*;
use super::given;

pub(super) fn settings(text: &str) -> super::TestConfig {
    given().file("tickfleet.yaml", text)
}

#[test]
fn a_ca_file_for_a_url_without_tls_is_rejected() {
    let url = given().variable("TICKFLEET_REDIS_TLS_CA", "/ca.pem").variable("REDIS_URL", "rediss://redis/1");
    assert_eq!(url.load().unwrap().settings.redis.url.expose(), "rediss://redis/1?tls_ca=/ca.pem");
}

#[test]
fn invalid_yaml_is_rejected_with_its_line() {
    let errors = settings("caps:\n  tick: [5s\nworker: {}\n").errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("tickfleet.yaml:3:") && errors[0].ends_with("; expected valid YAML"), "{errors:?}");
}

#[test]
fn an_invalid_redis_url_error_hides_the_password() {
    let expected = "found something else (not shown); expected a URL such as redis://host:6379/0, \
                    rediss://user:password@host/0, unix:///path, redis+sentinel://host1,host2,host3/name or \
                    redis+cluster://host1,host2,host3";
    settings("redis:\n  url: http://:hunter2@redis\n")
        .assert_refused(&format!("tickfleet.yaml:2:8: redis.url: {expected}"));
    given()
        .variable("REDIS_URL", "hunter2@redis")
        .assert_refused(&format!("environment variable REDIS_URL: redis.url: {expected}"));
}

#[test]
fn two_variables_for_one_setting_must_agree() {
    let with =
        |other| given().variable("MAX_ACTIONS_PER_DAY", "5").variable("TICKFLEET_CAPS_MAX_ACTIONS_PER_DAY", other);
    assert_eq!(with("5").load().unwrap().settings.caps.max_actions_per_day, 5);
    with("6").assert_refused(
        "environment variable TICKFLEET_CAPS_MAX_ACTIONS_PER_DAY: caps.max_actions_per_day: found another value than \
         in MAX_ACTIONS_PER_DAY; expected one of the two variables, or the same value in both",
    );
}

#[test]
fn a_disabled_tool_must_exist() {
    let errors = settings("permission:\n  disabled_tools: [echo, post_to_z]\n").errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = &errors[0];
    assert!(error.starts_with("tickfleet.yaml:2:26: permission.disabled_tools[1]: found \"post_to_z\"; "), "{error}");
    assert!(error.ends_with("did you mean `post_to_x`?"), "{error}");
}

#[test]
fn unknown_config_files_are_rejected() {
    given().file("agents.yml", "agents: {}\n").assert_refused(
        "agents.yml: found a file that nothing reads; expected one of tickfleet.yaml, agents.yaml, tools.yaml, \
         permissions.yaml, tenants.yaml, limits.yaml, models.yaml, mcp.yaml, mcp.lock.yaml; did you mean `agents.yaml`?",
    );
    assert!(given().file("README.md", "notes").file(".hidden.yaml", "").load().is_ok());
}

#[test]
fn a_missing_config_folder_is_rejected() {
    let sources = Sources { dir: Some("/nowhere/at/all".into()), ..Sources::default() };
    let errors = load(&sources).unwrap_err().to_string();
    assert!(errors.contains("/nowhere/at/all: found an unreadable folder (No such file or directory"), "{errors}");
}

#[test]
fn all_errors_are_reported_at_once_by_file_and_line() {
    let errors = settings("worker:\n  slots: 0\n  lease: 1\nredis: {url: x}\n")
        .file("agents.yaml", "agents:\n  kelly: {rolls: [a]}\n")
        .file("permissions.yaml", "permissions:\n  echo: {agents: [fran]}\n")
        .file("tenants.yaml", "tenants: {acme: {time_zone: Mars}}\n")
        .variable("TICKFLEET_CAPS_TICK", "soon")
        .errors();
    let places: Vec<_> = errors.iter().map(|error| error.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        places,
        [
            "tickfleet.yaml:2:10 worker.slots",
            "tickfleet.yaml:3:10 worker.lease",
            "tickfleet.yaml:4:14 redis.url",
            "environment variable TICKFLEET_CAPS_TICK caps.tick",
            "agents.yaml:2:11 agents.kelly.rolls",
            "permissions.yaml:2:19 permissions.echo.agents[0]",
            "tenants.yaml:1:29 tenants.acme.time_zone",
        ]
    );
}

#[test]
fn a_broken_file_causes_no_errors_in_dependent_files() {
    let errors = given().file("agents.yaml", "agents: {kelly: [\n").errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
}
