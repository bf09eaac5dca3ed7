//! The tools that come with every worker: for trying a fleet out, for benches and for tests.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::Effect;

use super::{CallContext, ToolError, TypedTool, wording};

/// Longest nap of `sleep`, ms.
const SLEEP_MS_MAX: u64 = 600_000;
/// Bytes of a task's description that `note` repeats.
const NOTE_BYTES_MAX: usize = 2_000;

/// All of them: `echo`, `sleep`, `fail`, `fail_once` and `note`.
#[must_use]
pub fn all() -> Vec<TypedTool> {
    vec![echo(), sleep(), fail("fail", Effect::Idempotent), fail("fail_once", Effect::Once), note()]
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Echo {
    /// Text to say back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Any JSON to give back, every digit kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    value: Option<Box<RawValue>>,
}

fn echo() -> TypedTool {
    TypedTool::new("echo", "Gives its arguments back.", Effect::Read, |_, args: Echo| async move { Ok(args) })
        .category("diagnostics")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sleep {
    /// How long, in milliseconds; at most ten minutes.
    #[schemars(range(max = SLEEP_MS_MAX))]
    ms: u64,
}

#[derive(Serialize, JsonSchema)]
struct Slept {
    /// How long, in milliseconds.
    slept_ms: u64,
}

fn sleep() -> TypedTool {
    TypedTool::new("sleep", "Waits, then answers.", Effect::Read, |context: CallContext, args: Sleep| async move {
        let ms = args.ms.min(SLEEP_MS_MAX);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(Slept { slept_ms: ms }),
            () = context.cancel.cancelled() => Err(ToolError::Transient("The wait was cancelled.".into())),
        }
    })
    .category("diagnostics")
    .timeout(Duration::from_millis(SLEEP_MS_MAX + 1_000))
}

/// What one try of `fail` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Try {
    /// Answers.
    Ok,
    /// Fails in a way that may pass; whether something took effect is not known.
    Transient,
    /// Fails in a way that may pass; certainly nothing took effect.
    TransientNotExecuted,
    /// Refuses for good.
    Permanent,
    /// Reports a bug.
    Internal,
    /// Panics.
    Panic,
    /// Never answers, and does not listen to cancellation either.
    Hang,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    /// What the first, second … try does; later tries repeat the last. Default: every try fails for good.
    #[serde(default)]
    #[schemars(length(max = 32))]
    outcomes: Vec<Try>,
    /// The least wait before the next try that a transient failure asks for, in milliseconds.
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct Succeeded {
    /// Which try it was, from 1.
    attempt: u32,
}

fn fail(name: &str, effect: Effect) -> TypedTool {
    TypedTool::new(
        name,
        "Fails as its arguments say, try by try.",
        effect,
        |context: CallContext, args: Fail| async move {
            let at = usize::try_from(context.attempt.saturating_sub(1)).unwrap_or(usize::MAX);
            let this = args.outcomes.get(at).or(args.outcomes.last()).copied().unwrap_or(Try::Permanent);
            let message = format!("Try {} failed as requested.", context.attempt);
            let retry_after = args.retry_after_ms.map(Duration::from_millis);
            match this {
                Try::Ok => Ok(Succeeded { attempt: context.attempt }),
                Try::Transient => Err(ToolError::Transient(message)),
                Try::TransientNotExecuted => Err(ToolError::NotExecuted { message, retry_after }),
                Try::Permanent => Err(ToolError::Permanent(message)),
                Try::Internal => Err(ToolError::Internal(message)),
                Try::Panic => panic_on_request(&message),
                Try::Hang => std::future::pending().await,
            }
        },
    )
    .category("diagnostics")
}

#[allow(clippy::panic, reason = "the tool exists to prove that a panicking handler costs one call and nothing else")]
fn panic_on_request(message: &str) -> ! {
    panic!("{message}")
}

#[derive(Deserialize, JsonSchema)]
struct Note {
    /// What is to be done, in words.
    #[serde(alias = "description")]
    description: String,
}

#[derive(Serialize, JsonSchema)]
struct Noted {
    /// Always true.
    acknowledged: bool,
    /// Who took the note.
    agent: String,
    /// What is to be done, cut if it is long.
    task_description: String,
}

/// The trial handler of tasks: an agent bound to it acknowledges what it was asked to do, and no more.
fn note() -> TypedTool {
    TypedTool::new(
        "note",
        "Acknowledges a task without doing it.",
        Effect::Read,
        |context: CallContext, args: Note| async move {
            let task_description = wording::cut(&args.description, NOTE_BYTES_MAX);
            Ok(Noted { acknowledged: true, agent: context.agent.to_string(), task_description })
        },
    )
    .category("diagnostics")
    .answers_by_agent()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{arguments, context, handler};
    use crate::{ArgumentCheck, ToolFailure, ToolOutput};

    async fn run(name: &str, attempt: u32, args: Value) -> Result<ToolOutput, ToolFailure> {
        let tool = all().into_iter().find(|t| t.spec().name == name).unwrap();
        ArgumentCheck::compile(&tool.spec().input_schema).unwrap().check(&args.to_string()).unwrap();
        handler(tool).call(&context(attempt), &arguments(args)).await
    }

    #[tokio::test]
    async fn echo_keeps_every_digit() {
        let echo = all().remove(0);
        let text = r#"{"text":"hi","value":{"n":123456789012345678901234567890}}"#;
        let checked = ArgumentCheck::compile(&echo.spec().input_schema).unwrap().check(text).unwrap();
        assert_eq!(handler(echo.clone()).call(&context(1), &checked).await.unwrap().json.get(), text);
    }

    #[tokio::test]
    async fn fail_follows_its_script_try_by_try() {
        let script = json!({"outcomes": ["transient", "transient_not_executed", "ok"]});
        let transient = |not: bool, r: Result<ToolOutput, ToolFailure>| match r {
            Err(ToolFailure::Transient { not_executed, .. }) => not_executed == not,
            _ => false,
        };
        assert!(transient(false, run("fail", 1, script.clone()).await));
        assert!(transient(true, run("fail_once", 2, script.clone()).await));
        assert_eq!(run("fail", 3, script.clone()).await.unwrap().json.get(), r#"{"attempt":3}"#);
        assert_eq!(run("fail", 9, script).await.unwrap().json.get(), r#"{"attempt":9}"#);
        assert!(matches!(run("fail", 1, json!({})).await, Err(ToolFailure::Permanent { .. })));
    }

    #[tokio::test]
    async fn a_cancelled_sleep_ends_at_once() {
        let tool = all().into_iter().find(|t| t.spec().name == "sleep").unwrap();
        let context = context(1);
        context.cancel.cancel();
        let ended = handler(tool).call(&context, &arguments(json!({"ms": 600_000}))).await;
        assert!(matches!(ended, Err(ToolFailure::Transient { .. })));
    }

    #[tokio::test]
    async fn note_acknowledges_a_task() {
        let noted = run("note", 1, json!({"description": "Call Bob."})).await.unwrap();
        let expected = r#"{"acknowledged":true,"agent":"kelly","task_description":"Call Bob."}"#;
        assert_eq!(noted.json.get(), expected);
    }
}
