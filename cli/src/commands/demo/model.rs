//! A scripted model behind an OpenAI-compatible API. The model plays atlas, archy and kelly, which it distinguishes by
//! their system prompts. The model logs its responses.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// In kelly's task, the text of the post follows these words.
pub(super) const PUBLISH: &str = "Publish this post, word for word: ";
const QUESTION: &str = "What do we tell people about shared research boards?";

/// The running model. Dropping this value stops the model.
pub(super) struct Model {
    /// The value for `OPENAI_BASE_URL`.
    pub(super) base_url: String,
    said: Arc<Mutex<Vec<ModelOutput>>>,
    serving: tokio::task::JoinHandle<()>,
}

#[derive(Debug, Clone)]
pub(super) struct ModelOutput {
    pub(super) agent: &'static str,
    pub(super) what: String,
}

impl Model {
    /// Starts the model on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port is available.
    pub(super) async fn start() -> Result<Self> {
        let said: Arc<Mutex<Vec<ModelOutput>>> = Arc::default();
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("cannot open a port for the model")?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let app = Router::new().route("/v1/chat/completions", post(answer)).with_state(Arc::clone(&said));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "scripted model stopped unexpectedly");
            }
        });
        Ok(Self { base_url, said, serving })
    }

    /// Returns the responses after the first `from` responses.
    pub(super) fn said(&self, from: usize) -> Vec<ModelOutput> {
        self.said.lock().iter().skip(from).cloned().collect()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(said): State<Arc<Mutex<Vec<ModelOutput>>>>, Json(request): Json<Value>) -> Json<Value> {
    let model_request = ModelRequest::of(&request);
    let next = model_request.next();
    let (what, message, finish) = match &next {
        ScriptedResponse::Words(words) => (words.clone(), json!({"role": "assistant", "content": words}), "stop"),
        ScriptedResponse::Call(tool, arguments) => {
            let function = json!({"name": tool, "arguments": arguments.to_string()});
            let call = json!({"id": "call", "type": "function", "function": function});
            let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
            (called(tool, arguments), message, "tool_calls")
        }
    };
    said.lock().push(ModelOutput { agent: model_request.agent, what });
    // Estimate tokens from the number of words.
    let count = |text: &Value| text.to_string().split_whitespace().count() * 4 / 3;
    let usage = json!({"prompt_tokens": count(&request["messages"]), "completion_tokens": count(&message)});
    Json(json!({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}))
}

/// Describes a call in short: the tool, and its target, query or text.
fn called(tool: &str, arguments: &Value) -> String {
    let about = ["target_agent", "query", "content"].iter().find_map(|name| arguments[name].as_str());
    about.map_or_else(|| tool.to_owned(), |about| format!("{tool}: {about}"))
}

enum ScriptedResponse {
    Words(String),
    Call(&'static str, Value),
}

struct ModelRequest<'a> {
    agent: &'static str,
    task: &'a str,
    /// Number of earlier responses in this conversation.
    answers: usize,
    /// The result of the last call, or an empty text.
    result: &'a str,
}

impl<'a> ModelRequest<'a> {
    fn of(request: &'a Value) -> Self {
        let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |role: &str| messages.iter().filter(move |message| message["role"] == role).collect::<Vec<_>>();
        let text = |message: Option<&&'a Value>| message.and_then(|m| m["content"].as_str()).unwrap_or_default();
        let system = text(of("system").first());
        let agent = ["atlas", "archy", "kelly"]
            .into_iter()
            .find(|name| system.to_lowercase().contains(&format!("you are {name}")));
        Self {
            agent: agent.unwrap_or("an agent"),
            task: text(of("user").first()),
            answers: of("assistant").len(),
            result: text(of("tool").last()),
        }
    }

    fn next(&self) -> ScriptedResponse {
        match (self.agent, self.answers) {
            ("atlas", 0) => delegate("archy", QUESTION.to_owned()),
            ("atlas", 1) => delegate("kelly", format!("{PUBLISH}{}", self.post())),
            ("atlas", _) => ScriptedResponse::Words("Archy has looked it up, and Kelly has published it.".to_owned()),
            ("archy", 0) => {
                ScriptedResponse::Call("search_atlasux_knowledge", json!({"query": "what we tell people about boards"}))
            }
            ("archy", _) if self.result.contains("one place to argue in") => {
                ScriptedResponse::Words("Say that a board is one place to argue in (boards.md).".to_owned())
            }
            ("archy", _) => ScriptedResponse::Words("I did not find anything about it.".to_owned()),
            ("kelly", 0) if self.task.starts_with(PUBLISH) => {
                ScriptedResponse::Call("post_to_x", json!({"content": self.post()}))
            }
            ("kelly", _) if self.task.starts_with(PUBLISH) => {
                let sure = self.result.contains("post_url") || self.result.contains("\"id\"");
                let words =
                    if sure { "It is published." } else { "It may have been published: I do not post it again." };
                ScriptedResponse::Words(words.to_owned())
            }
            _ => ScriptedResponse::Words("It is drafted.".to_owned()),
        }
    }

    /// Returns the text of the post, which follows the instruction in the first line of the task.
    fn post(&self) -> &'a str {
        let line = self.task.lines().next().unwrap_or_default();
        line.split_once(": ").map_or(line, |(_, words)| words)
    }
}

fn delegate(agent: &str, description: String) -> ScriptedResponse {
    ScriptedResponse::Call(
        "delegate_task",
        json!({"target_agent": agent, "task_description": description, "wait": true}),
    )
}
