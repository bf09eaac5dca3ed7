//! Runs the conformance cases with the client for Rust.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_client::model::{InboxName, TenantId, TurnId};
use tickfleet_client::{Client, Replies, Reply, ReplyStatus, StoreOptions, SubmitError, parse_turn, private_inbox};
use tickfleet_protocol::{TaskMessage, parse_task_message};
use tickfleet_store::TurnName;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Case {
    name: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    run: Option<BTreeMap<String, Box<RawValue>>>,
    send: Option<BTreeMap<String, Box<RawValue>>>,
    delegate: Option<BTreeMap<String, Box<RawValue>>>,
    client: Option<Limits>,
    cancel: Option<String>,
    record: Option<String>,
    next: Option<String>,
    lose: Option<usize>,
    inbox: Option<String>,
    fails: Option<String>,
    reply: Option<Value>,
    missed: Option<u64>,
    #[serde(rename = "as")]
    name: Option<String>,
    equals: Option<String>,
}

#[derive(Deserialize)]
struct Limits {
    turns_max: u64,
}

pub fn read(cases: &Path, tenant: &str) -> Vec<Case> {
    let text = fs::read_to_string(cases).unwrap().replace("{tenant}", tenant);
    serde_json::from_str::<File>(&text).unwrap().cases
}

pub async fn run(cases: &Path, tenant: &str, url: &str) {
    let client = Client::connect(url, StoreOptions::default()).await.unwrap();
    let mut runner = Runner {
        client,
        url: url.to_owned(),
        tenant: TenantId::new(tenant).unwrap(),
        kept: BTreeMap::new(),
        readers: BTreeMap::new(),
    };
    for case in read(cases, tenant) {
        for (number, step) in case.steps.into_iter().enumerate() {
            let place = format!("{}, step {number}", case.name);
            runner.step(step, &place).await;
        }
    }
}

struct Runner {
    client: Client,
    url: String,
    tenant: TenantId,
    kept: BTreeMap<String, String>,
    readers: BTreeMap<String, Replies>,
}

type StepResult = Result<Reply, String>;

impl Runner {
    async fn step(&mut self, step: Step, place: &str) {
        if let Some(at) = step.lose {
            return self.lose(step.inbox.as_deref().unwrap(), at).await;
        }
        if let Some(message) = step.send {
            let inbox = step.inbox.map(|name| InboxName::new(name).unwrap());
            let turn = parse_turn(self.message(message, inbox.as_ref()).as_bytes()).unwrap();
            self.client.submit(turn).await.unwrap();
            return;
        }
        let answer = match (step.run, step.delegate, step.record, step.next) {
            (Some(message), ..) => self.run(message, step.client).await,
            (_, Some(message), ..) => self.delegate(message, step.cancel).await,
            (.., Some(id), _) => Ok(self.record(&id).await),
            (.., Some(inbox)) => Ok(self.next(&inbox).await),
            _ => panic!("{place}: a step of no kind"),
        };
        let reply = match (answer, step.fails) {
            (Err(found), Some(expected)) => return assert_eq!(found, expected, "{place}"),
            (Err(found), None) => panic!("{place}: {found}"),
            (Ok(reply), Some(expected)) => panic!("{place}: expected {expected}, found {reply:?}"),
            (Ok(reply), None) => reply,
        };
        if let Some(missed) = step.missed {
            assert_eq!(reply.missed, missed, "{place}");
        }
        let text = serde_json::to_string(&reply).unwrap();
        if let Some(expected) = step.reply {
            matches(&expected, serde_json::from_str(&text).unwrap(), place);
        }
        if let Some(before) = step.equals {
            assert_eq!(text, self.kept[&before], "{place}");
        }
        if let Some(name) = step.name {
            self.kept.insert(name, text);
        }
    }

    fn message(&self, mut message: BTreeMap<String, Box<RawValue>>, inbox: Option<&InboxName>) -> String {
        let raw = |text: &str| serde_json::value::to_raw_value(text).unwrap();
        message.insert("tenant".into(), raw(self.tenant.as_str()));
        if let Some(inbox) = inbox {
            message.insert("reply_to".into(), raw(inbox.as_str()));
        }
        serde_json::to_string(&message).unwrap()
    }

    async fn run(&self, message: BTreeMap<String, Box<RawValue>>, limits: Option<Limits>) -> StepResult {
        let inbox = private_inbox("conformance");
        let turn = parse_turn(self.message(message, Some(&inbox)).as_bytes());
        let turn = turn.map_err(|refusal| refusal.code.as_str().to_owned())?;
        let other = match limits {
            None => self.client.clone(),
            Some(Limits { turns_max }) => {
                let options = StoreOptions { turns_max, ..StoreOptions::default() };
                Client::connect(&self.url, options).await.unwrap()
            }
        };
        let submitted = other.submit(turn).await.map_err(|error| word(&error))?;
        self.await_reply(&inbox, &submitted.turn_id).await
    }

    async fn delegate(&self, message: BTreeMap<String, Box<RawValue>>, cancel: Option<String>) -> StepResult {
        let inbox = private_inbox("conformance");
        let message = parse_task_message(self.message(message, Some(&inbox)).as_bytes());
        let Ok(TaskMessage::Delegate(task)) = message else { panic!("no task: {message:?}") };
        let id = self.client.delegate(*task).await.map_err(|error| word(&error))?;
        if let Some(reason) = cancel {
            self.client.cancel_task(&TurnName::task(&self.tenant, &id), &reason).await.unwrap();
        }
        self.await_reply(&inbox, &TurnId::new(id.as_str()).unwrap()).await
    }

    async fn await_reply(&self, inbox: &InboxName, id: &TurnId) -> StepResult {
        let mut replies = self.client.replies(&self.tenant, inbox);
        let reply = replies.await_reply(id, PATIENCE).await.unwrap().expect("no reply");
        replies.forget().await.unwrap();
        match (reply.status, &reply.error) {
            (ReplyStatus::Done, _) => Ok(reply),
            (ReplyStatus::PendingApproval, _) => panic!("no end: {reply:?}"),
            (ReplyStatus::Conflict, _) => Err("conflict".into()),
            (ReplyStatus::Rejected, error) => Err(error.as_ref().unwrap().code.clone()),
        }
    }

    async fn record(&self, id: &str) -> Reply {
        // No replies arrive in this inbox, so the reply must come from the turn's stored record.
        let inbox = InboxName::new("nothing").unwrap();
        let mut replies = self.client.replies(&self.tenant, &inbox);
        replies.await_reply(&TurnId::new(id).unwrap(), PATIENCE).await.unwrap().expect("no record")
    }

    async fn next(&mut self, inbox: &str) -> Reply {
        let name = InboxName::new(inbox).unwrap();
        let reader = self.readers.entry(inbox.into()).or_insert_with(|| self.client.replies(&self.tenant, &name));
        let until = Instant::now() + PATIENCE;
        reader.next(until - Instant::now()).await.unwrap().expect("no reply")
    }

    async fn lose(&self, inbox: &str, at: usize) {
        let key = self.client.store(&self.tenant).keys().replies(&self.tenant, &InboxName::new(inbox).unwrap());
        let mut redis = tickfleet_testkit::connect(&self.url).await.unwrap();
        let entries: Vec<(String, redis::Value)> =
            redis::cmd("XRANGE").arg(&key).arg("-").arg("+").query_async(&mut redis).await.unwrap();
        let () = redis::cmd("XDEL").arg(&key).arg(&entries[at].0).query_async(&mut redis).await.unwrap();
    }
}

fn word(error: &SubmitError) -> String {
    match error {
        SubmitError::QueueFull => "queue_full",
        SubmitError::InboxFull => "inbox_full",
        SubmitError::TooManyInboxes => "too_many_inboxes",
        SubmitError::Pressure => "pressure",
        SubmitError::Conflict(_) => "conflict",
        SubmitError::Invalid(_) | SubmitError::Store(_) => panic!("{error}"),
    }
    .into()
}

fn matches(expected: &Value, found: &RawValue, place: &str) {
    let reported = || format!("{place}: expected {expected}, found {}", found.get());
    let text = |found: &RawValue| serde_json::from_str::<String>(found.get()).unwrap_or_default();
    match expected {
        Value::String(word) if word == "$any" => assert_ne!(found.get(), "null", "{}", reported()),
        Value::Object(object) if object.contains_key("$json") => {
            let blanks = |c: char| c.is_ascii_whitespace();
            assert_eq!(found.get().replace(blanks, ""), object["$json"].as_str().unwrap(), "{}", reported());
        }
        Value::Object(object) if object.contains_key("$contains") => {
            assert!(text(found).contains(object["$contains"].as_str().unwrap()), "{}", reported());
        }
        Value::Object(object) => {
            let found: BTreeMap<String, &RawValue> =
                serde_json::from_str(found.get()).unwrap_or_else(|_| panic!("{}", reported()));
            for (key, expected) in object {
                match (expected.as_str(), found.get(key)) {
                    (Some("$absent"), found) => assert!(found.is_none(), "{place}.{key}"),
                    (_, Some(found)) => matches(expected, found, &format!("{place}.{key}")),
                    (_, None) => assert!(expected.is_null(), "{place}.{key} is missing"),
                }
            }
        }
        Value::Array(array) => {
            let found: Vec<&RawValue> = serde_json::from_str(found.get()).unwrap_or_else(|_| panic!("{}", reported()));
            assert_eq!(found.len(), array.len(), "{}", reported());
            array.iter().zip(found).enumerate().for_each(|(n, (e, f))| matches(e, f, &format!("{place}[{n}]")));
        }
        scalar => assert_eq!(&serde_json::from_str::<Value>(found.get()).unwrap(), scalar, "{}", reported()),
    }
}
