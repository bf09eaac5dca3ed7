//! Invalid settings, syntax and variables.

use super::super::*;
use super::given;

fn settings(text: &str) -> super::TestConfig {
    given().file("tickfleet.yaml", text)
}

#[test]
fn an_unknown_field_error_suggests_the_closest_field() {
    settings("worker:\n  slot: 64\n").assert_refused(
        "tickfleet.yaml:2:3: worker.slot: found the unknown field `slot`; expected one of slots, lease, drain, \
         priorities, tool_timeout, retry_delays, allow_dynamic_registration, workspaces, workspace_ttl, \
         durable, durable_wait, output_bytes_max, breaker_failures, breaker_cooldown, without_sandbox; did you mean `slots`?",
    );
    settings("workers: {}\n").assert_refused(
        "tickfleet.yaml:1:1: workers: found the unknown field `workers`; expected one of redis, caps, worker, \
         scheduler, retention, queues, audit, seal, fairness, loops, permission, http, log, tracing; did you mean `worker`?",
    );
}

#[test]
fn a_value_of_the_wrong_type_is_rejected() {
    settings("worker:\n  slots: many\n")
        .assert_refused("tickfleet.yaml:2:10: worker.slots: found \"many\"; expected a whole number from 1 to 10000");
    settings("worker: 5\n").assert_refused("tickfleet.yaml:1:9: worker: found 5; expected a mapping");
    settings("- worker\n")
        .assert_refused("tickfleet.yaml:1:1: found a list; expected a mapping of sections such as `caps:`");
    settings("audit:\n  log_tool_calls: yes\n")
        .assert_refused("tickfleet.yaml:2:19: audit.log_tool_calls: found \"yes\"; expected true or false");
    settings("audit:\n  redact_keys: iban\n")
        .assert_refused("tickfleet.yaml:2:16: audit.redact_keys: found \"iban\"; expected a list");
    settings("redis:\n  namespace: 5\n")
        .assert_refused("tickfleet.yaml:2:14: redis.namespace: found 5; expected text; put it in quotes");
}

#[test]
fn a_ca_file_for_a_url_without_tls_is_rejected() {
    settings("redis: {url: 'redis://redis', tls_ca: /ca.pem}\n").assert_refused(
        "tickfleet.yaml:1:39: redis.tls_ca: found \"/ca.pem\"; expected no file with this redis.url, which is without TLS; \
         did you mean rediss://?",
    );
    let url = given().variable("TICKFLEET_REDIS_TLS_CA", "/ca.pem").variable("REDIS_URL", "rediss://redis/1");
    assert_eq!(url.load().unwrap().settings.redis.url.expose(), "rediss://redis/1?tls_ca=/ca.pem");
}

#[test]
fn a_setting_without_a_value_is_rejected() {
    settings("worker:\n  slots:\n  lease: 10s\n")
        .assert_refused("tickfleet.yaml:2:3: worker.slots: found nothing; expected a value: `slots` is required");
}

#[test]
fn a_value_out_of_range_is_rejected() {
    settings("worker:\n  slots: 0\n")
        .assert_refused("tickfleet.yaml:2:10: worker.slots: found 0; expected a whole number from 1 to 10000");
    settings("worker:\n  lease: 500ms\n").assert_refused(
        "tickfleet.yaml:2:10: worker.lease: found \"500ms\"; expected a duration from 1s to 10m, such as 250ms, 5s, \
         2m or 1h",
    );
    settings("retention:\n  audit_bytes_max: 1KiB\n").assert_refused(
        "tickfleet.yaml:2:20: retention.audit_bytes_max: found \"1KiB\"; expected a size from 1MiB to 1024GiB, such \
         as 64KiB or 1MiB",
    );
}

#[test]
fn a_duration_without_a_unit_is_rejected() {
    settings("caps:\n  tick: 5\n").assert_refused(
        "tickfleet.yaml:2:9: caps.tick: found 5; expected a duration from 100ms to 1h, such as 250ms, 5s, 2m or 1h",
    );
    settings("worker:\n  retry_delays: [1s, soon]\n").assert_refused(
        "tickfleet.yaml:2:22: worker.retry_delays[1]: found \"soon\"; expected a duration from 1ms to 1h, such as \
         250ms, 5s, 2m or 1h",
    );
}

#[test]
fn unknown_empty_or_duplicate_priorities_are_rejected() {
    settings("worker:\n  priorities: [urgent, hihg]\n").assert_refused(
        "tickfleet.yaml:2:24: worker.priorities[1]: found \"hihg\"; expected one of urgent, high, normal, low; did you \
         mean `high`?",
    );
    settings("worker:\n  priorities: []\n").assert_refused(
        "tickfleet.yaml:2:15: worker.priorities: found a list; expected at least one of urgent, high, normal, low",
    );
    settings("worker:\n  priorities: [low, low]\n")
        .assert_refused("tickfleet.yaml:2:21: worker.priorities[1]: found \"low\"; expected each name once");
}

#[test]
fn an_invalid_choice_error_suggests_the_closest_choice() {
    settings("caps:\n  on_day_cap: deferr\n").assert_refused(
        "tickfleet.yaml:2:15: caps.on_day_cap: found \"deferr\"; expected one of reject, defer; did you mean `defer`?",
    );
    settings("log:\n  level: inof\n").assert_refused(
        "tickfleet.yaml:2:10: log.level: found \"inof\"; expected one of off, error, warn, info, debug, trace; did \
         you mean `info`?",
    );
}

#[test]
fn an_unknown_time_zone_is_rejected() {
    settings("caps:\n  time_zone: Europe/Berln\n").assert_refused(
        "tickfleet.yaml:2:14: caps.time_zone: found \"Europe/Berln\"; expected an IANA time zone such as UTC or \
         America/New_York; did you mean `Europe/Berlin`?",
    );
}

#[test]
fn conflicting_settings_are_reported_at_the_explicit_one() {
    settings("retention:\n  records: 2h\n").assert_refused(
        "tickfleet.yaml:2:12: retention.records: found 2h; expected at most retention.dedupe_for (1h): a repeated id \
         must be known for as long as its result is kept",
    );
    settings("retention:\n  dedupe_for: 30m\n").assert_refused(
        "tickfleet.yaml:2:15: retention.dedupe_for: found 30m; expected at least retention.records (1h): a repeated \
         id must be known for as long as its result is kept",
    );
    settings("worker:\n  drain: 2s\n").assert_refused(
        "tickfleet.yaml:2:10: worker.drain: found 2s; expected at least worker.lease / 4 (2500ms): a draining worker \
         must live to its next heartbeat",
    );
    settings("queues:\n  turns_max: 100\n").assert_refused(
        "tickfleet.yaml:2:14: queues.turns_max: found 100; expected at least queues.tenant_turns_max (20000): the \
         narrower bound would never be reached",
    );
    settings("worker: {lease: 1s}\nscheduler: {reap_every: 5s}\n").assert_refused(
        "tickfleet.yaml:1:17: worker.lease: found 1s; expected at least scheduler.reap_every (5s): dead workers \
         would be found late",
    );
}

#[test]
fn a_duplicate_key_error_reports_both_lines() {
    settings("caps:\n  tick: 5s\n  max_calls_per_tick: 10\n  tick: 1s\n").assert_refused(
        "tickfleet.yaml:4:3: caps.tick: found a second `tick`; expected each key once (the first is on line 2)",
    );
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
    settings("redis: redis://:hunter2@redis\n")
        .assert_refused("tickfleet.yaml:1:8: redis: found \"redis://:***@redis\"; expected a mapping");
    settings("redis:\n  url: http://:hunter2@redis\n")
        .assert_refused(&format!("tickfleet.yaml:2:8: redis.url: {expected}"));
    given()
        .variable("REDIS_URL", "hunter2@redis")
        .assert_refused(&format!("environment variable REDIS_URL: redis.url: {expected}"));
}

#[test]
fn an_invalid_variable_error_names_the_variable() {
    given().variable("MAX_ACTIONS_PER_DAY", "lots").assert_refused(
        "environment variable MAX_ACTIONS_PER_DAY: caps.max_actions_per_day: found \"lots\"; expected a whole number \
         from 0 to 4294967295",
    );
    given().variable("TICKFLEET_WORKER_ALLOW_DYNAMIC_REGISTRATION", "1").assert_refused(
        "environment variable TICKFLEET_WORKER_ALLOW_DYNAMIC_REGISTRATION: worker.allow_dynamic_registration: found \
         \"1\"; expected true or false",
    );
}

#[test]
fn a_misspelled_variable_is_rejected() {
    given().variable("TICKFLEET_LOG_LEVLE", "debug").assert_refused(
        "environment variable TICKFLEET_LOG_LEVLE: found an unknown setting; expected one of TICKFLEET_LOG_FORMAT, \
         TICKFLEET_LOG_LEVEL; did you mean `TICKFLEET_LOG_LEVEL`?",
    );
    given().variable("TICKFLEET_WROKER_SLOTS", "1").assert_refused(
        "environment variable TICKFLEET_WROKER_SLOTS: found an unknown setting; expected \
         TICKFLEET_<SECTION>_<FIELD>; did you mean `TICKFLEET_WORKER_SLOTS`?",
    );
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
