//! Runs an agent on a real provider, but only on request:
//! `OPENAI_API_KEY=… OPENAI_MODEL=gpt-4.1-mini cargo nextest run -p tickfleet-tests --run-ignored only -E
//! 'test(agents::real)'`

use tickfleet_config::{ModelDef, Prices};

use super::*;

const VARIABLES: [&str; 10] = [
    "LLM_PROVIDER",
    "OPENAI_API_KEY",
    "OPENAI_MODEL",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "CLAUDE_MODEL",
    "ANTHROPIC_BASE_URL",
    "GEMINI_API_KEY",
    "GEMINI_MODEL",
    "GEMINI_BASE_URL",
];

#[tokio::test]
#[ignore = "asks a real provider, with your key: OPENAI_API_KEY and OPENAI_MODEL, or those of another"]
#[allow(clippy::disallowed_methods, reason = "the key is the tester's own")]
async fn a_real_model_calls_a_tool_and_answers_with_its_result() {
    let given = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect();
    let nobody = ScriptedModel::start(|_: &ModelRequest| ModelReply::Status(500, 0)).await;
    let find = TypedTool::new("find_word", "Returns the word of the day.", Effect::Read, |_, _: Value| async {
        Ok::<_, ToolError>(json!({"word": "xylobromine"}))
    });
    let plan = Plan {
        environment: given,
        models: [("default".to_owned(), ModelDef { provider: None, prices: Prices::default() })].into(),
        ..plan(&nobody, vec![find])
    };
    let mut fleet = Fleet::start(plan).await;
    let words = "Find out the word of the day with the tool find_word, and answer with that word alone.";
    enqueue(&fleet, task("job-1", "kelly", words)).await;
    let reply = fleet.reply().await;
    let output = &result(&reply)["output"];
    assert!(output["answer"].as_str().unwrap_or_default().to_lowercase().contains("xylobromine"), "{reply}");
    assert!(output["usage"]["input_tokens"].as_u64() > Some(0), "{reply}");
    println!("{output}");
    fleet.stop().await;
}
