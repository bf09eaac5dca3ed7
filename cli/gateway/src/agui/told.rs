//! What happens to a task, as events of AG-UI: each answer of the model is a message of the assistant with its calls, each
//! result a message of its tool; what has no event of its own there is a CUSTOM one.

use std::collections::VecDeque;

use axum::response::sse::Event;
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use tickfleet_client::tasks::PlannedCall;
use tickfleet_client::{Exchange, StoreError, TaskEvent};
use tokio_util::sync::CancellationToken;

/// A run, as its front end calls it.
#[derive(Debug)]
pub(super) struct Run {
    /// The conversation.
    pub(super) thread: String,
    /// The run.
    pub(super) id: String,
}

/// How far it was told.
struct Told {
    run: Run,
    task: String,
    /// Answers of the model so far.
    plans: usize,
    /// Calls of the last one that have no result, by their names.
    calls: VecDeque<String>,
    results: usize,
    ready: VecDeque<Value>,
    over: bool,
}

/// The events of a run, until its end; where the process drains, until then.
pub(super) fn events(
    run: Run,
    exchange: Exchange,
    draining: CancellationToken,
) -> impl Stream<Item = Event> + Send + 'static {
    let told = Told::begun(run, exchange.task().as_str());
    stream::unfold((exchange, told, draining), |(mut exchange, mut told, draining)| async {
        loop {
            if let Some(event) = told.ready.pop_front() {
                // It has no member that JSON could not say.
                let event = Event::default().json_data(event).unwrap_or_default();
                return Some((event, (exchange, told, draining)));
            }
            if told.over {
                return None;
            }
            match draining.run_until_cancelled(exchange.next()).await {
                Some(Ok(Some(progress))) => told.tell(progress.event),
                Some(Ok(None)) => told.interrupted("its end was told"),
                Some(Err(error)) => told.away(&error),
                None => told.interrupted("this gateway stops"),
            }
        }
    })
}

impl Told {
    fn begun(run: Run, task: &str) -> Self {
        let started = json!({"type": "RUN_STARTED", "threadId": run.thread, "runId": run.id});
        let about = custom("tickfleet.task", json!({"task_id": task}));
        let (calls, ready) = (VecDeque::new(), [started, about].into());
        Self { run, task: task.to_owned(), plans: 0, calls, results: 0, ready, over: false }
    }

    fn tell(&mut self, event: TaskEvent) {
        match event {
            // Who carries it out, and as which turn, is nothing that a front end shows.
            TaskEvent::Accepted { .. } | TaskEvent::Execute { .. } => {}
            TaskEvent::Plan { text, calls, .. } => self.plan(&text, &calls),
            TaskEvent::Result { content, .. } => self.result(&content),
            TaskEvent::Note { text } => self.ready.push_back(custom("tickfleet.note", json!({"text": text}))),
            TaskEvent::Heard { from, text } => {
                self.ready.push_back(custom("tickfleet.heard", json!({"from": from, "text": text})));
            }
            TaskEvent::Waiting { what, until_ms } => {
                self.ready.push_back(custom("tickfleet.waiting", json!({"for": what, "until_ms": until_ms})));
            }
            TaskEvent::Capped { limit, until_ms } => {
                self.ready.push_back(custom("tickfleet.capped", json!({"limit": limit, "until_ms": until_ms})));
            }
            TaskEvent::Answer { answer, output } => {
                self.message(&format!("{}.answer", self.task), &answer);
                let Run { thread, id } = &self.run;
                self.end(json!({"type": "RUN_FINISHED", "threadId": thread, "runId": id, "result": output}));
            }
            TaskEvent::Failed { outcome, message } => {
                self.end(json!({"type": "RUN_ERROR", "code": outcome, "message": message}));
            }
        }
    }

    /// An answer of the model that asks for calls; one that asks for none is followed by the answer itself.
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
            // As explain and the audit log call it.
            let id = format!("{message}/{position}");
            self.ready.extend([
                json!({"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": call.tool, "parentMessageId": message}),
                json!({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": call.arguments}),
                json!({"type": "TOOL_CALL_END", "toolCallId": id}),
            ]);
            self.calls.push_back(id);
        }
    }

    /// Results come in the order of the calls.
    fn result(&mut self, content: &str) {
        let Some(call) = self.calls.pop_front() else { return };
        self.results += 1;
        let message = format!("{}.result-{}", self.task, self.results);
        self.ready.push_back(json!({"type": "TOOL_CALL_RESULT", "messageId": message, "toolCallId": call,
            "content": content, "role": "tool"}));
    }

    fn message(&mut self, id: &str, text: &str) {
        self.ready.push_back(json!({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}));
        // The protocol has no message part without letters.
        if !text.is_empty() {
            self.ready.push_back(json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text}));
        }
        self.ready.push_back(json!({"type": "TEXT_MESSAGE_END", "messageId": id}));
    }

    fn away(&mut self, error: &StoreError) {
        tracing::warn!(%error, "a run could not be followed");
        self.interrupted("Redis does not answer the gateway now");
    }

    /// The stream ends, and the task does not.
    fn interrupted(&mut self, why: &str) {
        let message = format!("{why}; the task goes on: GET /v1/tasks/{}/events tells the rest", self.task);
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
