//! Tests Python functions that call other tools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests need more of it")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_model::TurnId;
use tickfleet_tools::inner::{Inner, InnerCalls, InnerResult};
use tickfleet_tools::{Awaited, CallContext, ToolError, ToolFailure};
use tokio::time::timeout;

use support::{Tools, def};

const PATIENCE: Duration = Duration::from_secs(60);

/// The first `ended` calls have ended, and each returns its arguments. Calls of the tool `refused` are denied.
struct ScriptedInnerCalls {
    ended: usize,
    asked: Mutex<Vec<(usize, String, Value)>>,
}

impl ScriptedInnerCalls {
    fn calls(ended: usize) -> Arc<Self> {
        Arc::new(Self { ended, asked: Mutex::default() })
    }
}

#[async_trait]
impl InnerCalls for ScriptedInnerCalls {
    async fn call(
        &self,
        _: &CallContext,
        number: usize,
        tool: &str,
        arguments: Box<RawValue>,
    ) -> Result<InnerResult, ToolError> {
        let value = serde_json::from_str(arguments.get()).unwrap();
        self.asked.lock().push((number, tool.to_owned(), value));
        if number > self.ended {
            return Err(ToolError::Waits { awaits: TurnId::new("t1.0.call-1").ok(), at_most: Duration::from_secs(1) });
        }
        Ok(match tool {
            "refused" => InnerResult { outcome: "denied".into(), output: None, error: Some("Not for you.".into()) },
            _ => InnerResult { outcome: "ok".into(), output: Some(arguments), error: None },
        })
    }
}

async fn call(tools: &Tools, calls: &Arc<ScriptedInnerCalls>, tool: &str, of: &str) -> Result<Value, ToolFailure> {
    let inner = Inner::of(Arc::clone(calls) as Arc<dyn InnerCalls>);
    let ran = tools.call_with(inner, tool, json!({"tool": of, "text": "hi"}));
    timeout(PATIENCE, ran).await.expect("it ends")
}

#[tokio::test]
async fn an_unfinished_inner_call_suspends_its_function() {
    let tools = Tools::of(def());
    for ended in 0..2 {
        let calls = ScriptedInnerCalls::calls(ended);
        let waits = call(&tools, &calls, "relay", "echo").await;
        assert!(matches!(waits, Err(ToolFailure::Waits { awaits: Awaited::Turn(_), .. })), "{waits:?}");
        assert_eq!(calls.asked.lock().len(), ended + 1);
    }
    let calls = ScriptedInnerCalls::calls(2);
    let given = call(&tools, &calls, "relay", "echo").await.unwrap();
    assert_eq!(given, json!({"first": {"text": "hi"}, "second": {"text": "hi again"}, "why": null}));
    assert_eq!(
        *calls.asked.lock(),
        [(1, "echo".into(), json!({"text": "hi"})), (2, "echo".into(), json!({"text": "hi again"}))]
    );
    // The host still runs other calls after a function that made inner calls.
    assert_eq!(tools.call("add", json!({"a": 1})).await.unwrap(), json!({"sum": 3}));
    tools.stop().await;
}

#[tokio::test]
async fn a_blocking_function_releases_its_thread_during_an_inner_call() {
    let mut def = def();
    // If a thread did not end, its process would be killed, and the next call would be lost.
    (def.processes, def.concurrency, def.cancel_grace) = (1, 1, Duration::from_secs(30));
    let tools = Tools::of(def);
    for _ in 0..3 {
        let waits = call(&tools, &ScriptedInnerCalls::calls(0), "relay_blocking", "echo").await;
        assert!(matches!(waits, Err(ToolFailure::Waits { .. })), "{waits:?}");
    }
    let given = call(&tools, &ScriptedInnerCalls::calls(1), "relay_blocking", "echo").await.unwrap();
    assert_eq!(given, json!({"text": "hi"}));
    let denied = call(&tools, &ScriptedInnerCalls::calls(1), "relay_blocking", "refused").await.unwrap();
    assert!(denied.as_str().unwrap().contains("Not for you."), "{denied}");
    tools.stop().await;
}

#[tokio::test]
async fn an_inner_call_without_a_fleet_is_rejected() {
    let tools = Tools::of(def());
    let refused = tools.call("relay", json!({"tool": "echo", "text": "hi"})).await;
    let Err(ToolFailure::Ended { message, .. }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("No other tool can be called from here"), "{message}");
    tools.stop().await;
}
