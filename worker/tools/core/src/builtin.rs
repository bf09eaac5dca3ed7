//! The tools that come with every worker, for trying out a fleet, for benchmarks and for tests.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::Effect;

use super::{CallContext, ToolError, TypedTool, wording};

const SLEEP_MS_MAX: u64 = 600_000;
/// The maximum length of the task's description in the result of `note`.
const NOTE_BYTES_MAX: usize = 2_000;

/// Returns all built-in tools.
#[must_use]
pub fn all() -> Vec<TypedTool> {
    vec![echo(), sleep(), fail("fail", Effect::Idempotent), fail("fail_once", Effect::Once), note()]
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Echo {
    /// Text to return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Any JSON to return, with every digit preserved.
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
    /// How long to wait, in milliseconds; at most ten minutes.
    #[schemars(range(max = SLEEP_MS_MAX))]
    ms: u64,
}

#[derive(Serialize, JsonSchema)]
struct Slept {
    /// How long the tool waited, in milliseconds.
    slept_ms: u64,
}

fn sleep() -> TypedTool {
    TypedTool::new("sleep", "Waits, then answers.", Effect::Read, |context: CallContext, args: Sleep| async move {
        let ms = args.ms.min(SLEEP_MS_MAX);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(Slept { slept_ms: ms }),
            () = context.cancel.cancelled() => Err(ToolError::Transient("The wait was canceled.".into())),
        }
    })
    .category("diagnostics")
    .timeout(Duration::from_millis(SLEEP_MS_MAX + 1_000))
}

/// The outcome of one attempt of `fail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Try {
    /// Succeeds.
    Ok,
    /// Fails with a transient error; it is unknown whether anything took effect.
    Transient,
    /// Fails with a transient error; nothing took effect.
    TransientNotExecuted,
    /// Fails permanently.
    Permanent,
    /// Fails with an internal error, as for a bug.
    Internal,
    /// Panics.
    Panic,
    /// Never returns, and ignores cancellation.
    Hang,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    /// The outcomes of the first, second … attempt; later attempts repeat the last one. Default: every attempt fails
    /// permanently.
    #[serde(default)]
    #[schemars(length(max = 32))]
    outcomes: Vec<Try>,
    /// The minimum wait before the next attempt that a transient failure requests, in milliseconds.
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct Succeeded {
    /// The number of the attempt, from 1.
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
    /// The description of the task.
    #[serde(alias = "description")]
    description: String,
}

#[derive(Serialize, JsonSchema)]
struct Noted {
    /// Always true.
    acknowledged: bool,
    /// The agent that took the note.
    agent: String,
    /// The description of the task, cut if it is long.
    task_description: String,
}

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
        assert!(matches!(run("fail", 1, json!({})).await, Err(ToolFailure::Ended { .. })));
    }

    #[tokio::test]
    async fn a_canceled_sleep_ends_at_once() {
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
