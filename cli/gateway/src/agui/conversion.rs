//! Converts the events of a task to AG-UI events. An event without an AG-UI counterpart becomes a CUSTOM event.

use std::collections::VecDeque;

use axum::response::sse::Event;
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use tickfleet_client::tasks::PlannedCall;
use tickfleet_client::{Exchange, StoreError, TaskEvent};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct RunIds {
    pub(super) thread: String,
    pub(super) id: String,
}

struct RunConverter {
    run: RunIds,
    task: String,
    plans: usize,
    /// The ids of the last response's calls that have no result yet.
    calls: VecDeque<String>,
    results: usize,
    ready: VecDeque<Value>,
    over: bool,
}

pub(super) fn events(
    run: RunIds,
    exchange: Exchange,
    draining: CancellationToken,
) -> impl Stream<Item = Event> + Send + 'static {
    let converter = RunConverter::start(run, exchange.task().as_str());
    stream::unfold((exchange, converter, draining), |(mut exchange, mut converter, draining)| async {
        loop {
            if let Some(event) = converter.ready.pop_front() {
                let event = Event::default().json_data(event).unwrap_or_default();
                return Some((event, (exchange, converter, draining)));
            }
            if converter.over {
                return None;
            }
            match draining.run_until_cancelled(exchange.next()).await {
                Some(Ok(Some(progress))) => converter.convert(progress.event),
                Some(Ok(None)) => converter.end_interrupted("its end was reported"),
                Some(Err(error)) => converter.end_unreachable(&error),
                None => converter.end_interrupted("this gateway stops"),
            }
        }
    })
}

impl RunConverter {
    fn start(run: RunIds, task: &str) -> Self {
        let started = json!({"type": "RUN_STARTED", "threadId": run.thread, "runId": run.id});
        let about = custom("tickfleet.task", json!({"task_id": task}));
        let calls = VecDeque::new();
        let ready = [started, about].into();
        Self { run, task: task.to_owned(), plans: 0, calls, results: 0, ready, over: false }
    }

    fn convert(&mut self, event: TaskEvent) {
        match event {
            // Front ends do not show which agent and turn execute the task, so these events are left out.
            TaskEvent::Accepted { .. } | TaskEvent::Execute { .. } => {}
            TaskEvent::Plan { text, calls, .. } => self.plan(&text, &calls),
            TaskEvent::Result { content, .. } => self.result(&content),
            TaskEvent::Note { text } => self.ready.push_back(custom("tickfleet.note", json!({"text": text}))),
            TaskEvent::AgentMessage { from, text } => {
                self.ready.push_back(custom("tickfleet.agent_message", json!({"from": from, "text": text})));
            }
            TaskEvent::Waiting { what, until_ms } => {
                self.ready.push_back(custom("tickfleet.waiting", json!({"for": what, "until_ms": until_ms})));
            }
            TaskEvent::Capped { limit, until_ms } => {
                self.ready.push_back(custom("tickfleet.capped", json!({"limit": limit, "until_ms": until_ms})));
            }
            TaskEvent::Answer { answer, output } => {
                self.message(&format!("{}.answer", self.task), &answer);
                let RunIds { thread, id } = &self.run;
                self.end(json!({"type": "RUN_FINISHED", "threadId": thread, "runId": id, "result": output}));
            }
            TaskEvent::Failed { outcome, message } => {
                self.end(json!({"type": "RUN_ERROR", "code": outcome, "message": message}));
            }
        }
    }

    /// A response without calls adds nothing: the answer follows as a separate event.
    fn plan(&mut self, text: &str, calls: &[PlannedCall]) {
        self.plans += 1;
        if calls.is_empty() {
            return;
        }
        let message = format!("{}.step-{}", self.task, self.plans);
        if !text.is_empty() {
            self.message(&message, text);
        }
        self.calls.clear();
        for (position, call) in calls.iter().enumerate() {
            // `explain` and the audit log show the same call id.
            let id = format!("{message}/{position}");
            self.ready.extend([
                json!({"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": call.tool, "parentMessageId": message}),
                json!({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": call.arguments}),
                json!({"type": "TOOL_CALL_END", "toolCallId": id}),
            ]);
            self.calls.push_back(id);
        }
    }

    /// Results arrive in the order of the calls, so a result belongs to the first call without one.
    fn result(&mut self, content: &str) {
        let Some(call) = self.calls.pop_front() else { return };
        self.results += 1;
        let message = format!("{}.result-{}", self.task, self.results);
        self.ready.push_back(json!({"type": "TOOL_CALL_RESULT", "messageId": message, "toolCallId": call,
            "content": content, "role": "tool"}));
    }

    fn message(&mut self, id: &str, text: &str) {
        self.ready.push_back(json!({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}));
        // The protocol does not allow an empty delta.
        if !text.is_empty() {
            self.ready.push_back(json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text}));
        }
        self.ready.push_back(json!({"type": "TEXT_MESSAGE_END", "messageId": id}));
    }

    fn end_unreachable(&mut self, error: &StoreError) {
        tracing::warn!(%error, "failed to follow the run");
        self.end_interrupted("the gateway cannot reach Redis");
    }

    fn end_interrupted(&mut self, why: &str) {
        let message = format!("{why}; the task continues: GET /v1/tasks/{}/events returns the rest", self.task);
        self.end(json!({"type": "RUN_ERROR", "code": "interrupted", "message": message}));
    }

    fn end(&mut self, event: Value) {
        self.ready.push_back(event);
        self.over = true;
    }
}

fn custom(name: &str, value: Value) -> Value {
    json!({"type": "CUSTOM", "name": name, "value": value})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert_all(events: impl IntoIterator<Item = TaskEvent>) -> Vec<Value> {
        let mut converter = RunConverter::start(RunIds { thread: "t".into(), id: "r".into() }, "ses-t-1");
        events.into_iter().for_each(|event| converter.convert(event));
        converter.ready.into()
    }

    fn types(events: &[Value]) -> Vec<&str> {
        events.iter().map(|event| event["type"].as_str().unwrap_or_default()).collect()
    }

    fn plan(text: &str, tools: &[&str]) -> TaskEvent {
        let call = |tool: &&str| PlannedCall { tool: (*tool).to_owned(), arguments: "{}".into() };
        TaskEvent::Plan { model: "m".into(), text: text.into(), calls: tools.iter().map(call).collect() }
    }

    fn result(content: &str) -> TaskEvent {
        TaskEvent::Result { tool: "x".into(), ok: true, content: content.into() }
    }

    #[test]
    fn calls_of_one_response_share_a_message_and_results_keep_order() {
        let events =
            convert_all([plan("I look.", &["a", "b"]), result("1"), result("2"), plan("", &["c"]), result("3")]);
        let named = |wanted: &str, member: &str| -> Vec<String> {
            let of = events.iter().filter(|event| event["type"] == wanted);
            of.map(|event| event[member].as_str().unwrap_or_default().to_owned()).collect()
        };
        let calls = ["ses-t-1.step-1/0", "ses-t-1.step-1/1", "ses-t-1.step-2/0"];
        assert_eq!(named("TOOL_CALL_START", "toolCallId"), calls);
        assert_eq!(named("TOOL_CALL_RESULT", "toolCallId"), calls);
        assert_eq!(named("TOOL_CALL_RESULT", "content"), ["1", "2", "3"]);
        let parents = ["ses-t-1.step-1", "ses-t-1.step-1", "ses-t-1.step-2"];
        assert_eq!(named("TOOL_CALL_START", "parentMessageId"), parents);
        assert_eq!(named("TEXT_MESSAGE_START", "messageId"), ["ses-t-1.step-1"], "who says nothing has no message");
        assert_eq!(types(&convert_all([result("stray")])), ["RUN_STARTED", "CUSTOM"]);
    }

    #[test]
    fn a_failed_or_interrupted_run_ends_with_its_reason() {
        let failed = TaskEvent::Failed { outcome: "cancelled".into(), message: "The user left.".into() };
        let events = convert_all([failed]);
        assert_eq!(types(&events), ["RUN_STARTED", "CUSTOM", "RUN_ERROR"]);
        assert_eq!((&events[2]["code"], &events[2]["message"]), (&json!("cancelled"), &json!("The user left.")));
        let mut converter = RunConverter::start(RunIds { thread: "t".into(), id: "r".into() }, "ses-t-1");
        converter.end_interrupted("this gateway stops");
        let last = converter.ready.pop_back().unwrap_or_default();
        assert!(converter.over && last["code"] == "interrupted", "{last}");
        assert!(last["message"].as_str().is_some_and(|words| words.contains("/v1/tasks/ses-t-1/events")), "{last}");
    }

    #[test]
    fn a_wait_is_a_custom_event_and_an_empty_answer_has_no_content() {
        let waits = TaskEvent::Waiting { what: "an approval of pay (demo:apr-1)".into(), until_ms: Some(7) };
        let output = serde_json::value::RawValue::from_string("{\"answer\":\"\"}".into()).unwrap_or_default();
        let events = convert_all([waits, TaskEvent::Answer { answer: String::new(), output }]);
        let ends = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_FINISHED"];
        assert_eq!(types(&events), [&["RUN_STARTED", "CUSTOM", "CUSTOM"][..], &ends].concat());
        assert_eq!(events[2]["name"], "tickfleet.waiting");
        assert_eq!(events[5]["result"], json!({"answer": ""}));
    }
}
