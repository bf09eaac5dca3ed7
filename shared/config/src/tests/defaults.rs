use std::time::Duration;

use super::super::*;
use super::{BUILT_IN, given, set};
use crate::tools::ToolRunner;
use tickfleet_model::policy::{DefaultCaps, TenantPolicy};
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{DayCapAction, Effect, Priority, limits};

#[test]
fn the_built_in_configuration_loads() {
    let s = given().load().unwrap().settings;
    let secs = Duration::from_secs;
    assert_eq!(s.redis.url.expose(), "redis://127.0.0.1:6379/0");
    assert_eq!((s.redis.namespace.as_str(), s.redis.shards), ("tickfleet", 1));
    assert_eq!((s.caps.tick, s.caps.max_calls_per_tick, s.caps.max_actions_per_day), (secs(5), 10, 1_000));
    assert_eq!((s.caps.time_zone.as_str(), s.caps.on_day_cap), ("UTC", DayCapAction::Reject));
    assert_eq!((s.worker.slots, s.worker.lease, s.worker.drain), (32, secs(10), secs(45)));
    assert_eq!((s.worker.tool_timeout, s.worker.retry_delays), (secs(30), RetryDelays::default()));
    assert_eq!(s.worker.output_bytes_max, 64 * 1024);
    assert_eq!((s.worker.breaker_failures, s.worker.breaker_cooldown), (0, secs(10)));
    assert_eq!(s.worker.priorities.as_slice(), Priority::ALL);
    assert_eq!(s.scheduler.tick_poll, Duration::from_millis(50));
    assert_eq!((s.retention.records, s.retention.dedupe_for), (secs(3_600), secs(3_600)));
    assert_eq!((s.retention.replies, s.retention.audit), (secs(24 * 3_600), secs(7 * 24 * 3_600)));
    assert_eq!((s.queues.turns_max, s.queues.turns_bytes_max), (100_000, 256 << 20));
    assert_eq!((s.queues.tenant_turns_max, s.queues.tenant_bytes_max), (20_000, 256 << 20));
    assert!(s.audit.log_tool_calls && s.permission.strict_capabilities && !s.worker.allow_dynamic_registration);
    assert_eq!(s.http.address.to_string(), "0.0.0.0:9090");
    assert_eq!((s.log.format, s.log.level.as_str()), (LogFormat::Pretty, "info"));
    let tracing = (s.tracing.otlp_endpoint.as_str(), s.tracing.sample_ppm, s.tracing.service_name.as_str());
    assert_eq!(tracing, ("", 1_000_000, "tickfleet"));
}

#[test]
fn the_models_defaults_match_the_built_in_configuration() {
    let configuration = given().load().unwrap();
    assert_eq!(configuration.policy.defaults, DefaultCaps::default());
    assert_eq!(configuration.settings.audit.result_chars, limits::AUDIT_RESULT_CHARS);
    assert_eq!(configuration.settings.scheduler.batch, limits::BATCH_TURNS_USUAL);
}

#[test]
fn a_process_without_a_folder_uses_the_built_in_configuration() {
    let sources = Sources { built_in_tools: set(&BUILT_IN), built_in_handlers: set(&["note"]), ..Sources::default() };
    assert_eq!(load(&sources).unwrap().digest, given().load().unwrap().digest);
}

#[test]
fn built_in_tools_have_their_documented_endpoints_and_effects() {
    let tools = given().load().unwrap().tools.tools;
    let telegram = &tools["send_telegram_message"];
    let Some(ToolRunner::Http(http)) = &telegram.runner else { panic!("it is declared") };
    assert_eq!((telegram.effect, http.method.as_str()), (Some(Effect::Once), "POST"));
    assert_eq!(http.base_url, "https://api.telegram.org");
    assert_eq!(
        (http.path.as_str(), http.result.as_deref()),
        ("/bot${TELEGRAM_BOT_TOKEN}/sendMessage", Some("/result"))
    );
    assert!(http.allow_private.is_empty());

    let post = &tools["post_to_x"];
    assert_eq!(
        (post.effect, post.input_schema.as_ref().unwrap()["properties"]["content"]["maxLength"].as_u64()),
        (Some(Effect::Once), Some(280))
    );
    assert!(post.runner.is_none() && post.timeout_ms == Some(40_000), "it comes with the worker");
    let search = &tools["search_x"];
    assert!(search.runner.is_none() && search.effect == Some(Effect::Read));

    for name in ["search_atlasux_knowledge", "search_my_memories", "get_subscription_info", "get_team_members"] {
        assert!(tools[name].runner.is_none() && tools[name].effect == Some(Effect::Read), "{name}");
    }
}

#[test]
fn every_declared_tool_and_parameter_has_a_description() {
    for (name, tool) in given().load().unwrap().tools.tools {
        assert!(tool.description.unwrap().len() > 80, "{name}");
        let input = tool.input_schema.unwrap();
        for (parameter, schema) in input["properties"].as_object().unwrap() {
            assert!(schema["description"].as_str().is_some_and(|text| text.len() > 20), "{name}.{parameter}");
        }
        assert_eq!(input["additionalProperties"], false, "{name}");
    }
}

#[test]
fn agents_are_bound_to_task_handlers() {
    let configuration = given().load().unwrap();
    let handler = |name: &str| configuration.task_handlers.get(&AgentId::new(name).unwrap());
    assert!(matches!(handler("kelly"), Some(TaskHandlerDef::Llm(def)) if def.system.starts_with("You are Kelly")));
    assert!(matches!(handler("archy"), Some(TaskHandlerDef::External { lease }) if lease.as_secs() == 60));
    assert!(matches!(handler("atlas"), Some(TaskHandlerDef::Llm(_))));
    assert!(handler("tina").is_none());
    assert_eq!(configuration.policy.agents.len(), 18);
}

#[test]
fn tenants_have_their_own_zone_and_caps() {
    let policy = given().load().unwrap().policy;
    let tenant = |name: &str| policy.tenants.iter().find(|(id, _)| id.as_str() == name).unwrap().1.clone();
    assert_eq!(tenant("atlas-ux").time_zone.as_deref(), Some("America/New_York"));
    let TenantPolicy { time_zone, max_actions_per_day, .. } = tenant("demo");
    assert_eq!((time_zone.as_deref(), max_actions_per_day), (Some("UTC"), Some(500)));
}
