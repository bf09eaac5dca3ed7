//! Layers of defaults, files and the environment.

use std::time::Duration;

use super::super::*;
use super::given;
use crate::document::tree::Value;
use crate::document::yaml;
use crate::settings::read;
use crate::tools::ToolRunner;
use tickfleet_model::Priority;
use tickfleet_model::retry::RetryDelays;

#[test]
fn a_file_overrides_only_the_settings_it_names() {
    let file = "worker:\n  slots: 64\ncaps:\n";
    let s = given().file("tickfleet.yaml", file).load().unwrap().settings;
    let defaults = given().load().unwrap().settings;
    assert_eq!(s.worker.slots, 64);
    assert_eq!(s.worker.lease, defaults.worker.lease);
    assert_eq!(s.caps, defaults.caps);
}

#[test]
fn without_samples_a_missing_file_is_empty() {
    let with = given().load().unwrap();
    assert!(!with.policy.agents.is_empty() && with.samples().len() == 4);

    let by_file = given().file("tickfleet.yaml", "permission: {samples: false}").load().unwrap();
    let by_variable = given().variable("TICKFLEET_PERMISSION_SAMPLES", "false").load().unwrap();
    for without in [by_file, by_variable] {
        assert!(without.samples().is_empty(), "{:?}", without.samples());
        assert!(without.policy.agents.is_empty() && without.policy.tenants.is_empty());
        assert!(without.policy.permissions.matrix.is_empty() && without.tools.tools.is_empty());
    }

    // A file in the folder does not enable the samples again.
    let one = given()
        .file("tickfleet.yaml", "permission: {samples: false, trial_tools: true}")
        .file("agents.yaml", "agents: {bot: {}}")
        .load()
        .unwrap();
    assert_eq!(one.policy.agents.len(), 1);
    assert!(one.policy.permissions.matrix.is_empty());
    given()
        .file("tickfleet.yaml", "permission: {samples: 'false'}")
        .assert_refused("tickfleet.yaml:1:23: permission.samples: found \"false\"; expected true or false");
}

#[test]
fn written_files_override_built_in_files_but_not_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let written = [
        ("tickfleet.yaml", "worker: {slots: 3, lease: 3s}\npermission: {samples: false}"),
        ("agents.yaml", "agents: {me: {}}"),
        ("tenants.yaml", "tenants: {local: {}}"),
    ];
    let written = written.into_iter().map(|(name, text)| (name, text.to_owned())).collect();
    let sources = Sources { dir: Some(dir.path().to_owned()), written, ..Sources::default() };
    let loaded = load(&sources).unwrap();
    assert_eq!((loaded.settings.worker.slots, loaded.settings.worker.lease), (3, Duration::from_secs(3)));
    assert_eq!((loaded.policy.agents.len(), loaded.policy.tenants.len()), (1, 1));
    std::fs::write(dir.path().join("tickfleet.yaml"), "worker: {slots: 4}").unwrap();
    std::fs::write(dir.path().join("agents.yaml"), "agents: {a: {}, b: {}}").unwrap();
    let loaded = load(&sources).unwrap();
    assert_eq!((loaded.settings.worker.slots, loaded.settings.worker.lease), (4, Duration::from_secs(3)));
    assert_eq!((loaded.policy.agents.len(), loaded.policy.tenants.len()), (2, 1));
}

#[test]
fn a_part_of_the_configuration_loads_despite_broken_other_files() {
    let folder = || {
        let settings = "redis: {namespace: shop}\nretention: {records: 30m}\n";
        given()
            .file("tickfleet.yaml", settings)
            .file("tools.yaml", "tools: [")
            .file("agent.yaml", "")
            .file("prompts/x", "")
    };
    assert!(folder().load().is_err());
    let part = |given: super::TestConfig, part| given.part(part).load();
    let settings = part(folder(), Part::Settings).unwrap();
    assert_eq!(settings.settings.redis.namespace, "shop");
    assert_eq!(settings.settings.retention.records, Duration::from_secs(1_800));
    assert!(settings.policy.agents.is_empty() && settings.samples().is_empty());

    let broken = || given().file("tickfleet.yaml", "redis: {namespace: shop}\ncaps: {tick: soon}\n");
    assert!(part(broken(), Part::Settings).is_err());
    assert_eq!(part(broken(), Part::Redis).unwrap().settings.redis.namespace, "shop");
}

#[test]
fn a_prompt_replaces_the_built_in_one_and_must_show_the_tools() {
    let load = |name, text| given().file("tickfleet.yaml", "").file(name, text).load();
    let reported = |name, text| load(name, text).unwrap().prompts.describe(&[]);
    assert_eq!(reported("prompts/no_tools.txt", "None."), "None.");
    assert!(reported("prompts/tool.txt", "{name}{arguments}").contains("no tools"));
    for (name, text, found) in [
        ("prompts/tools.txt", "Here they are.", "no {tools} in the prompt"),
        ("prompts/tool.md", "x", "a file that nothing reads"),
        ("prompts/agent.txt", "x", "a file that nothing reads"),
    ] {
        let errors = load(name, text).unwrap_err().to_string();
        assert!(errors.contains(found) && errors.contains(name), "{errors}");
    }
}

#[test]
fn the_environment_overrides_the_file() {
    let s = given()
        .file("tickfleet.yaml", "worker: {slots: 64, drain: 20s}\ncaps: {max_actions_per_day: 50}\n")
        .variable("TICKFLEET_WORKER_SLOTS", "128")
        .variable("TICKFLEET_WORKER_RETRY_DELAYS", "100ms, 1s")
        .variable("TICKFLEET_WORKER_PRIORITIES", "low,urgent")
        .variable("TICKFLEET_WORKER_ALLOW_DYNAMIC_REGISTRATION", "true")
        .variable("TICKFLEET_HTTP_ADDRESS", "[::]:8080")
        .variable("TICKFLEET_RETENTION_AUDIT_BYTES_MAX", "2GiB")
        .variable("MAX_ACTIONS_PER_DAY", "75")
        .variable("REDIS_URL", "rediss://:hunter2@redis/1")
        .load()
        .unwrap()
        .settings;
    assert_eq!((s.worker.slots, s.worker.drain), (128, Duration::from_secs(20)));
    let waits = vec![Duration::from_millis(100), Duration::from_secs(1)];
    assert_eq!(s.worker.retry_delays, RetryDelays::new(waits));
    assert_eq!(s.worker.priorities.as_slice(), [Priority::Urgent, Priority::Low]);
    assert!(s.worker.allow_dynamic_registration);
    assert_eq!((s.http.address.port(), s.retention.audit_bytes_max), (8080, 2 << 30));
    assert_eq!(s.caps.max_actions_per_day, 75);
    assert_eq!(s.redis.url.expose(), "rediss://:hunter2@redis/1");
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let s = given().variable("REDIS_URL", "").variable("TICKFLEET_WORKER_SLOTS", " ").load().unwrap().settings;
    assert_eq!((s.redis.url.expose(), s.worker.slots), ("redis://127.0.0.1:6379/0", 32));
}

#[test]
fn every_setting_has_a_variable() {
    let configuration = given().load().unwrap();
    for section in configuration.trees.settings.as_ref().unwrap().entries() {
        for field in section.node.entries() {
            let name = format!("TICKFLEET_{}_{}", section.key, field.key).to_uppercase();
            let leaked: &'static str = Box::leak(name.clone().into_boxed_str());
            // No setting accepts this text.
            let errors = given().variable(leaked, "\u{1}").load();
            let takes_text = matches!(name.as_str(), "TICKFLEET_AUDIT_REDACT_KEYS" | "TICKFLEET_LOOPS_EXCEPT");
            assert_eq!(errors.is_ok(), takes_text, "{name}");
            let place = ConfigLocation::Environment(name.as_str().into());
            assert!(takes_text || errors.unwrap_err().as_slice().iter().all(|e| e.place == place), "{name}");
        }
    }
}

#[test]
fn variables_of_kubernetes_and_of_other_commands_are_ignored() {
    let with = given()
        .variable("TICKFLEET_WORKER_SERVICE_HOST", "10.0.0.1")
        .variable("TICKFLEET_REDIS_PORT", "tcp://10.0.0.1:6379")
        .variable("TICKFLEET_REDIS_PORT_6379_TCP_ADDR", "10.0.0.1")
        .variable("TICKFLEET_REDIS_SERVER", "valkey-server")
        .variable("TICKFLEET_CONFIG", "/etc/tickfleet");
    assert!(with.load().is_ok());
}

#[test]
fn an_agents_file_replaces_the_built_in_one() {
    let agents = "agents:\n  ada: {roles: [engineer], calls_per_tick: 3}\n";
    let configuration = given()
        .file("agents.yaml", agents)
        .file("permissions.yaml", "permissions:\n  echo: {roles: [engineer], deny_agents: [ada]}\n")
        .file("tenants.yaml", "tenants:\n  acme: {agents: [ada]}\n")
        .load()
        .unwrap();
    let ada = AgentId::new("ada").unwrap();
    assert_eq!(configuration.policy.agents.keys().collect::<Vec<_>>(), [&ada]);
    assert_eq!(configuration.policy.agents[&ada].calls_per_tick, Some(3));
    assert_eq!(configuration.policy.permissions.matrix.len(), 1);
    assert!(configuration.policy.permissions.matrix["echo"].deny_agents.contains(&ada));
}

#[test]
fn base_urls_and_private_hosts_read_the_environment() {
    let tools = given()
        .variable("TELEGRAM_BASE_URL", "http://127.0.0.1:8081/")
        .variable("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1:8081, 10.0.0.0/8,")
        .load()
        .unwrap()
        .tools
        .tools;
    let Some(ToolRunner::Http(http)) = &tools["send_telegram_message"].runner else { panic!("it is declared") };
    assert_eq!(http.base_url, "http://127.0.0.1:8081");
    assert_eq!(http.allow_private.iter().collect::<Vec<_>>(), ["10.0.0.0/8", "127.0.0.1:8081"]);
}

#[test]
fn the_digest_changes_only_with_the_policy() {
    let digest = |given: super::TestConfig| given.load().unwrap().digest;
    let base = digest(given());
    assert_eq!(base.len(), 64);
    assert_eq!(base, digest(given().variable("TICKFLEET_WORKER_SLOTS", "64")));
    assert_eq!(base, digest(given().variable("REDIS_URL", "redis://other")));
    assert_eq!(base, digest(given().variable("TELEGRAM_BASE_URL", "http://127.0.0.1:1")));
    assert_ne!(base, digest(given().variable("MAX_ACTIONS_PER_DAY", "999")));
    assert_ne!(base, digest(given().variable("TICKFLEET_PERMISSION_DISABLED_TOOLS", "echo")));
    assert_ne!(base, digest(given().file("tenants.yaml", "tenants: {acme: {}}\n")));
    assert_ne!(base, digest(given().file("permissions.yaml", "permissions: {}\n")));
    let reordered = "permissions:\n  echo: {agents: [atlas, tina]}\n";
    let same = "permissions:\n  echo: {agents: [tina, atlas], everyone: false}\n";
    assert_eq!(digest(given().file("permissions.yaml", reordered)), digest(given().file("permissions.yaml", same)));
}

#[test]
fn printing_shows_values_and_origins_and_hides_secrets() {
    let configuration = given()
        .file("tickfleet.yaml", "# mine\nworker:\n  slots: 64\n")
        .variable("REDIS_URL", "redis://ada:hunter2@redis:6379/0")
        .load()
        .unwrap();
    let printed = print(&configuration);
    let line = |start: &str| printed.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
    let words = |start: &str| line(start).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words("url:"), "url: \"redis://ada:***@redis:6379/0\" # REDIS_URL (environment)");
    assert_eq!(words("lease:"), "lease: 10s # default");
    assert!(words("slots:").starts_with("slots: 64 # /") && words("slots:").ends_with("/tickfleet.yaml:3"));
    assert_eq!(words("retry_delays:"), "retry_delays: [1s, 3s, 9s] # default");
    assert!(!printed.contains("hunter2") && !format!("{configuration:?}").contains("hunter2"));
}

#[test]
fn literal_secrets_in_headers_are_not_printed() {
    let tools = "tools:\n  call:\n    description: Calls.\n    input_schema: {type: object}\n    http:\n      \
                 method: GET\n      base_url: https://a.example\n      path: /\n      headers:\n        \
                 X-Api-Key: hunter2\n        Accept: text/plain\n";
    let permissions = "permissions: {call: {everyone: true}}\n";
    let printed = print(&given().file("tools.yaml", tools).file("permissions.yaml", permissions).load().unwrap());
    assert!(printed.contains("X-Api-Key: \"***\"") && printed.contains("Accept: text/plain"));
    assert!(!printed.contains("hunter2"));
}

#[test]
fn the_printed_configuration_loads_with_the_same_values() {
    let configuration = given().load().unwrap();
    let errors = Errors::default();
    let tree = yaml::parse(&print(&configuration), yaml::Origin::File("printed"), &errors).unwrap();
    assert_eq!(errors.len(), 0);
    let mut settings = tree.clone();
    let Value::Mapping(entries) = &mut settings.value else { panic!("a mapping") };
    entries.retain(|entry| !["agents", "tools", "permissions", "tenants"].contains(&entry.key.as_str()));
    let again = read::settings(&settings, &errors);
    assert_eq!(again.as_ref(), Some(&configuration.settings));
    for (key, whole) in [("tools", &configuration.trees.tools), ("agents", &configuration.trees.agents)] {
        let whole = whole.as_ref().unwrap().get(key).unwrap();
        assert_eq!(tree.get(key).unwrap().to_json(), whole.to_json(), "{key}");
    }
}

#[test]
fn no_literal_secret_is_printed_from_any_field() {
    let tools = r#"
tools:
  notify:
    description: "Posts. Sign in with password=hunter2 first."
    effect: once
    input_schema: {type: object, properties: {text: {type: string}}, required: [text]}
    http:
      method: POST
      base_url: https://hooks.example.com
      path: /services/T024BE7LD/B02AB3CDE/hunter2Qw7Lk3mN5xZr1tYb4d
      query: {sig: hunter2, plain: hunter2}
      headers: {X-Custom: hunter2, Authorization: Bearer hunter2, Accept: application/json}
      body: {pin: hunter2, nested: [{deep: hunter2}], number: 5, text: "{{text}}"}
      secrets: {SECRET: {env: CLIENT_SECRET}}
  sign:
    description: Signs in first.
    effect: once
    input_schema: {type: object}
    http:
      method: POST
      base_url: https://sign.example.com
      path: /
      oauth2: {grant: client_credentials, token_url: "https://id.example.com/t", client_id: shop,
        client_secret: "${SECRET}", scope: hunter2}
      secrets: {SECRET: {env: CLIENT_SECRET}}
  report:
    description: Reports.
    effect: read
    input_schema: {type: object, properties: {text: {type: string}}, required: [text]}
    shell:
      level: basic
      command: [/usr/bin/report, --as, hunter2, -phunter2, "--password=hunter2", "{{text}}"]
      stdin: "hunter2 and {{text}}"
"#;
    let permissions = "permissions: {notify: {everyone: true}, sign: {everyone: true}, report: {everyone: true}}";
    let settings = "tracing: {otlp_endpoint: \"https://c.example.com/?key=hunter2\"}\n";
    let configuration = given()
        .file("tools.yaml", tools)
        .file("permissions.yaml", permissions)
        .file("tickfleet.yaml", settings)
        .variable("REDIS_URL", "redis://:hunter2@redis/0")
        .load()
        .unwrap();
    let printed = print(&configuration);
    let parts = format!("{:?}", crate::printed_parts(&configuration));
    for shown in [&printed, &parts] {
        let lines: Vec<&str> = shown.lines().filter(|line| line.contains("hunter2")).collect();
        assert!(lines.is_empty(), "{lines:#?}");
        for plain in
            ["hooks.example.com", "T024BE7LD", "application/json", "{{text}}", "CLIENT_SECRET", "/usr/bin/report"]
        {
            assert!(shown.contains(plain), "{plain} is no secret:\n{shown}");
        }
    }
}

#[test]
fn an_error_masks_literals_of_fields_that_may_hold_a_secret() {
    let tool = |shell: &str| {
        let tools = format!(
            "tools:\n  report:\n    description: Reports.\n    effect: read\n    input_schema: {{type: object}}\n    \
             shell: {{level: basic, {shell}}}\n"
        );
        let given =
            given().file("tools.yaml", tools).file("permissions.yaml", "permissions: {report: {everyone: true}}");
        given.load().unwrap_err().to_string()
    };
    for shell in [
        "command: [report, \"hunter2 {{text\"]",
        "command: report --password hunter2",
        "command: [report], stdin: \"hunter2 {{text\"",
        "command: [report], environment: {A: \"hunter2 {{text}}\"}",
    ] {
        let refused = tool(shell);
        assert!(refused.contains("tools.report.shell.") && refused.contains("***"), "{shell}: {refused}");
        assert!(!refused.contains("hunter2"), "{shell}: {refused}");
    }
}

#[test]
fn the_log_format_is_read_even_from_a_broken_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let variable = |format: &str| [("TICKFLEET_LOG_FORMAT".to_owned(), format.to_owned())].into();
    for (settings, expected) in [
        ("log: {format: json}", true),
        ("log:\n  format: json\nredis: 5\nnonsense: [\"\n", true),
        ("log: {format: json, level: 5}\nwoker: {}", true),
        ("log: {format: pretty}", false),
        ("redis: {shards: 2}", false),
    ] {
        std::fs::write(dir.path().join("tickfleet.yaml"), settings).unwrap();
        assert_eq!(wants_json_log(Some(dir.path()), &Environment::new()), expected, "{settings}");
        assert!(!wants_json_log(Some(dir.path()), &variable("pretty")), "a variable comes first");
    }
    assert!(wants_json_log(None, &variable("json")));
}
