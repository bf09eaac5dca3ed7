use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use serde::Serialize;
use tickfleet_client::{StoreError, TaskEvent, TaskProgress, TaskWatcher};
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::problem::Problem;
use crate::serving::streams::OpenStream;

/// Empty comment lines keep proxies from closing an idle connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

const EVENT_ID_MAX: u32 = u32::MAX;

pub(crate) fn position(headers: &HeaderMap) -> Result<usize, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(0) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse::<u32>().ok());
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| {
        Problem::invalid(format!("Last-Event-ID: expected the id of an event, a number from 0 to {EVENT_ID_MAX}"))
    })
}

/// The stream is empty if the key does not cover the task's agent.
pub(crate) fn of_task(
    open_stream: OpenStream,
    caller: Caller,
    watch: TaskWatcher,
    draining: CancellationToken,
) -> Response {
    let is_for = move |progress: &Result<TaskProgress, StoreError>| {
        let of_another = |progress: &TaskProgress| match &progress.event {
            TaskEvent::Accepted { agent, .. } => !caller.can_read_agent(Some(agent)),
            _ => false,
        };
        ready(!progress.as_ref().is_ok_and(of_another))
    };
    respond(open_stream, watch.into_stream().take_while(is_for).map(event), draining)
}

pub(crate) fn respond(
    open_stream: OpenStream,
    events: impl Stream<Item = Event> + Send + 'static,
    draining: CancellationToken,
) -> Response {
    stream(events.take_until(Box::pin(open_stream.permission_lost())), draining)
}

/// When the process drains, the stream ends, and the client reconnects with the last id.
pub(crate) fn stream(events: impl Stream<Item = Event> + Send + 'static, draining: CancellationToken) -> Response {
    let events = events.map(Ok::<_, Infallible>).take_until(draining.cancelled_owned());
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

pub(crate) fn event(progress: Result<TaskProgress, StoreError>) -> Event {
    match progress {
        Ok(progress) => {
            let json = serde_json::to_value(&progress).unwrap_or_default();
            let name = json.get("event").and_then(serde_json::Value::as_str).unwrap_or("event").to_owned();
            named(&name, &json).id(progress.position.to_string())
        }
        Err(error) => {
            tracing::warn!(%error, "failed to read a watched task");
            named("interrupted", &serde_json::json!({"message": "Redis did not respond; reconnect with Last-Event-ID"}))
        }
    }
}

pub(crate) fn named(name: &str, data: &impl Serialize) -> Event {
    let event = Event::default().event(name);
    event.json_data(data).unwrap_or_else(|_| Event::default().event(name))
}
