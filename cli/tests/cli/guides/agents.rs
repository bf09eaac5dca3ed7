//! The tutorial of agents that a model runs, as it stands there, with a model that the test scripts.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use axum::Router;
use serde_json::{Value, json};

use crate::guides::http_tools::Service;
use crate::support::binary::{DevFleet, Said};
use crate::support::documents::{agrees, files, shown, with_binary};

const TUTORIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/agents.md");

/// A model that looks a price up, and names what it found.
async fn answer(body: String) -> String {
    let request: Value = serde_json::from_str(&body).unwrap();
    let messages = request["messages"].as_array().unwrap();
    assert!(messages[0]["content"].as_str().unwrap().starts_with("You answer questions about stocks."), "{request}");
    let results: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").collect();
    let message = match results.last() {
        None => {
            assert_eq!(request["tools"][2]["function"]["name"], "get_quote", "{}", request["tools"]);
            let function = json!({"name": "get_quote", "arguments": r#"{"symbol":"ACME"}"#});
            json!({"role": "assistant", "content": null,
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}]})
        }
        Some(result) => {
            let quote: Value = serde_json::from_str(result["content"].as_str().unwrap()).unwrap();
            let (symbol, price) = (quote["symbol"].as_str().unwrap(), quote["price"].as_str().unwrap());
            json!({"role": "assistant", "content": format!("{symbol} is at {price} USD.")})
        }
    };
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10});
    json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}).to_string()
}

/// Runs a command of the page as its reader would.
fn run(fleet: Option<&DevFleet>, folder: &Path, command: &str) -> Said {
    let mut shell = fleet.map_or_else(
        || {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).env_remove("TICKFLEET_CONFIG");
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            shell
        },
        |fleet| fleet.shell(command),
    );
    Said::of(with_binary(&mut shell).current_dir(folder), "")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_the_agents_tutorial_does_what_it_says() {
    let text = fs::read_to_string(TUTORIAL).unwrap();
    // A socket's path is short; that of the system's folder for temporary files may not be.
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    for (name, text) in [files(&text, "yaml"), files(&text, "python")].concat() {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }
    let service = Service::start(folder.path(), "quotes.py");
    let quotes = format!("127.0.0.1:{}", service.port);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = format!("http://{}/v1", listener.local_addr().unwrap());
    let app = Router::new().route("/v1/chat/completions", axum::routing::post(answer));
    drop(tokio::spawn(async move { axum::serve(listener, app).await }));
    let url = format!("http://{quotes}");
    let variables = [
        ("OPENAI_BASE_URL", model.as_str()),
        ("OPENAI_MODEL", "scripted"),
        ("QUOTES_URL", url.as_str()),
        ("QUOTES_PRIVATE", quotes.as_str()),
    ];
    let mut fleet = None::<DevFleet>;
    for step in shown(&text) {
        if let Some(arguments) = step.command.strip_prefix("tickfleet dev") {
            let arguments: Vec<&str> = arguments.split_whitespace().collect();
            fleet = Some(DevFleet::start_in(folder.path(), &arguments, &variables));
            continue;
        }
        let said = run(fleet.as_ref(), folder.path(), &step.command);
        let place = format!("docs/agents.md:{}: `{}`", step.line, step.command);
        assert!(agrees(&step.output, &said.stdout), "{place} printed something else:\n{}{}", said.stdout, said.stderr);
        assert_eq!(said.code, 0, "{place}: {}", said.stderr);
    }
    assert_eq!(fleet.unwrap().stop(), Some(0));
}
