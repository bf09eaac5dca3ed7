//! Models, and the agents that use them.

use std::time::Duration;

use tickfleet_model::AgentId;

use super::*;
use crate::tools::SecretRef;
use crate::{LlmDef, ModelApi, TaskHandlerDef};

fn agent(llm: &str) -> TestConfig {
    given()
        .file("agents.yaml", format!("agents:\n  ada: {{task_handler: {{llm: {llm}}}}}\n"))
        .file("permissions.yaml", "permissions: {echo: {everyone: true}}\n")
        .file("tenants.yaml", "tenants: {acme: {}}\n")
}

fn loaded(given: TestConfig) -> LlmDef {
    let loaded = given.load().unwrap();
    match &loaded.task_handlers[&AgentId::new("ada").unwrap()] {
        TaskHandlerDef::Llm(def) => (**def).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_llm_agent_loads_its_prompt_and_default_limits() {
    let def = loaded(agent("{system: You are ada.}"));
    assert_eq!((def.system.as_str(), def.models.as_slice()), ("You are ada.", &["default".to_owned()][..]));
    assert_eq!((def.max_iterations, def.tokens_max, def.temperature), (10, 2_048, None));
    let def = loaded(agent("{prompt: atlas, max_iterations: 3, temperature: 0.5, timeout_ms: 5000}"));
    assert!(def.system.starts_with("You are Atlas"), "{}", def.system);
    assert_eq!((def.max_iterations, def.temperature, def.timeout), (3, Some(0.5), Duration::from_secs(5)));
    let own = agent("{prompt: ada}").file("prompts/agent.ada.txt", "I am ada.");
    assert_eq!(loaded(own).system, "I am ada.");
}

#[test]
fn an_agent_may_declare_an_answer_schema() {
    let schema = "{type: object, required: [guidance_message], properties: {guidance_message: {type: string}}}";
    let def = loaded(agent(&format!("{{prompt: guidance, answer_schema: {schema}}}")));
    assert!(def.system.contains("guidance_message"), "the built-in prompt names the members");
    assert_eq!(def.answer_schema.unwrap()["required"][0], "guidance_message");
    let errors = agent("{system: x, answer_schema: words}").errors();
    assert!(errors[0].contains("answer_schema"), "{errors:?}");
}

#[test]
fn an_agent_must_reference_existing_models_and_prompts() {
    agent("{system: x, models: [fast]}").assert_refused(
        "agents.yaml:2:50: agents.ada.task_handler.llm.models[0]: found \"fast\"; expected a model of models.yaml: default",
    );
    let errors = agent("{prompt: atlass}").errors();
    assert!(errors[0].ends_with("did you mean `atlas`?"), "{errors:?}");
    let errors = agent("{}").errors();
    assert!(errors[0].contains("exactly one of prompt"), "{errors:?}");
    let errors = agent("{system: x, temperature: 9}").errors();
    assert!(errors[0].contains("a number from 0 to 2"), "{errors:?}");
}

#[test]
fn a_model_needs_the_environment_or_a_full_definition() {
    let own = "models:\n  fast: {api: anthropic, model: small, key: {env: KEY}, base_url: \"${LLM:-http://llm:1}\", \
               prices: {input: 0.25, output: 1.5}}\n  default: {from_environment: true}\n";
    let models = given().file("models.yaml", own).load().unwrap().models;
    let fast = models["fast"].provider.as_ref().unwrap();
    assert_eq!((fast.api, fast.base_url.as_deref()), (ModelApi::Anthropic, Some("http://llm:1")));
    assert_eq!(fast.key, Some(SecretRef::Env("KEY".into())));
    assert_eq!((models["fast"].prices.input, models["fast"].prices.output), (250_000, 1_500_000));
    assert!(models["default"].provider.is_none());
    for (wrong, reported) in [
        ("{api: claude, model: x}", "expected one of openai, openai-responses, anthropic, gemini"),
        ("{api: openai}", "model"),
        ("{api: openai, model: x, key: secret}", "a mapping"),
        ("{api: openai, model: x, prices: {input: -1}}", "an amount such as 0.15"),
        ("{api: openai, model: x, base_url: llm}", "base_url"),
    ] {
        let errors = given().file("models.yaml", format!("models:\n  default: {wrong}\n")).errors();
        assert!(errors[0].contains(reported), "{wrong}: {errors:?}");
    }
}
