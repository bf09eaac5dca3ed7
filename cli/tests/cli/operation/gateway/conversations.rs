//! Tests conversations over HTTP, through the API and through AG-UI front ends. A fake model runs the agent.

use std::path::Path;

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::{Events, Gateway};
use crate::commands::chat::{configure, model};
use crate::support::binary::DevFleet;
use crate::support::documents::REPOSITORY;
use crate::support::packages::Packages;

const CHAT: &str = "/v1/agents/atlas/chat";

const PERMISSIONS: &str = "permissions:
  echo: {everyone: true}
  sleep: {everyone: true, rules: [{name: ask, require: 'false', otherwise: ask}]}
approvers: {ann: {roles: [finance]}}
";

async fn talking_fleet() -> (GatewayFixture, DevFleet) {
    let place = GatewayFixture::new(&[("permissions.yaml", "")]).await;
    configure(&place.conf, &model().await);
    std::fs::write(place.conf.join("permissions.yaml"), PERMISSIONS).unwrap();
    let fleet = place.fleet();
    (place, fleet)
}

/// (conversation, task, events of the task)
fn say(gateway: &Gateway, key: &str, session: Option<&str>, message: &str) -> (String, String, Events) {
    let said = json!({"message": message, "session_id": session}).to_string();
    let mut events = Events::of(gateway.send(key, "POST", CHAT, "", &said));
    let opened = events.until("session");
    let text = |member: &str| opened[member].as_str().unwrap().to_owned();
    (text("session_id"), text("task_id"), events)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_at_any_gateway_and_keeps_its_history() {
    let (place, _fleet) = talking_fleet().await;
    let [key, other] = ["one", "two"].map(|id| place.key(id, &[]));
    let [one, two] = [0, 1].map(|_| place.gateway());

    let (session, _, mut events) = say(&one, &key, None, "echo this");
    assert_eq!(events.until("plan")["calls"][0]["tool"], "echo");
    let result = events.until("result");
    assert!(result["ok"] == true && result["content"].as_str().unwrap().contains("echo this"), "{result}");
    assert_eq!(events.until("answer")["answer"], "All done.");
    assert!(events.next().is_none(), "nothing comes after the answer");
    assert_eq!(events.names, ["session", "accepted", "plan", "execute", "result", "plan", "answer"]);

    let (again, _, mut events) = say(&two, &other, Some(&session), "hello");
    assert_eq!(
        (again.as_str(), &events.until("answer")["answer"]),
        (&*session, &json!("You said \"hello\" after 1 others."))
    );
    let (_, task, events) = say(&one, &key, Some(&session), "are you there?");
    drop(events);
    let mut rest = Events::of(two.send(&key, "GET", &format!("/v1/tasks/{task}/events"), "", ""));
    assert_eq!(rest.until("answer")["answer"], "You said \"are you there?\" after 2 others.");

    let (_, _, mut events) = say(&one, &key, Some(&session), "sleep");
    let waits = events.until("waiting");
    let approval = waits["for"].as_str().unwrap().strip_prefix("an approval of sleep (").unwrap().trim_end_matches(')');
    let ann = one.key(&["--id", "ann-phone", "--tenant", "demo", "--role", "approver", "--approver", "ann"]);
    let deny = format!("/v1/operate/approvals/{approval}/deny");
    assert_eq!(one.ask(&ann, "POST", &deny, &json!({"reason": "not now"})).status, 200);
    assert_eq!(events.until("result")["ok"], false);
    assert_eq!(events.until("answer")["answer"], "All done.");

    let history = |id: &str| two.get(&key, &format!("{CHAT}/{id}"));
    let said = history(&session).json();
    let words: Vec<(&Value, &Value)> =
        said.as_array().unwrap().iter().map(|spoken| (&spoken["user"], &spoken["agent"])).collect();
    let expected = [
        ("echo this", "All done."),
        ("hello", "You said \"hello\" after 1 others."),
        ("are you there?", "You said \"are you there?\" after 2 others."),
        ("sleep", "All done."),
    ];
    assert_eq!(
        words,
        expected.map(|(user, agent)| (json!(user), json!(agent))).iter().map(|(u, a)| (u, a)).collect::<Vec<_>>()
    );
    assert_eq!(history("never-begun").json(), json!([]));
    assert_eq!(history("no%20name").status, 400);
    let others = two.get(&key, &format!("/v1/agents/petra/chat/{session}"));
    assert_eq!((others.status, others.code().as_str()), (409, "conflict"), "{others:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_ag_ui_client_talks_with_an_agent() {
    let Some(packages) = Packages::unless_skipped() else { return };
    let (place, _fleet) = talking_fleet().await;
    let key = place.key("all", &[]);
    let gateway = place.gateway();
    let url = format!("http://{}/v1/agents/atlas/ag-ui", gateway.address);
    let mut node = packages.node();
    let output = tokio::task::block_in_place(|| {
        node.arg("tests/conformance/agui.mjs").args([&url, &key]).arg(&packages.folder).output().unwrap()
    });
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("all runs ended as they should"), "{said}");
    let thread = said.lines().find_map(|line| line.strip_prefix("all runs ended as they should: ")).unwrap();
    let history = gateway.get(&key, &format!("{CHAT}/{thread}")).json();
    assert_eq!(history.as_array().unwrap().len(), 3, "{history}");
    // The program imports the client from its own folder.
    let program = packages.folder.join("ask.mjs");
    std::fs::copy(Path::new(REPOSITORY).join("docs/snippets/ag-ui/ask.mjs"), &program).unwrap();
    let mut node = packages.node();
    node.arg(&program).env("AGENT_URL", &url).env("FLEET_KEY", &key);
    let output = tokio::task::block_in_place(|| node.output().unwrap());
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.starts_with("You said \"Where is order A-1003?\""), "{output:?}");
}
