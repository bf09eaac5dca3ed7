//! Approvers see complete and exact arguments. Lists and notices have a short form.

use serde_json::json;
use tickfleet_client::Client;
use tickfleet_model::limits;
use tickfleet_tests::fleet::Fleet;
use tickfleet_tests::inspect::outcomes;

use super::{Bank, VerdictInput, acme, approve, asked, of, pay};

async fn notices(fleet: &Fleet, name: &str) -> Vec<String> {
    let found: Vec<(String, Vec<String>)> = fleet.ask("XRANGE", "approvals:acme", &["-", "+"]).await;
    let field = |fields: &[String]| fields.iter().skip_while(|field| *field != name).nth(1).cloned();
    found.iter().filter_map(|(_, fields)| field(fields)).collect()
}

#[tokio::test]
async fn approvers_see_complete_arguments_and_lists_show_a_short_form() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(2, &[]))).await;
    let client = Client::over(vec![fleet.store.clone()]);
    let secret = "correct-horse-battery";
    // The short form leaves out the middle, which looks like a secret.
    let to = format!("{}, or rather eve with password={secret}, {}", "kim ".repeat(1_500), "kim ".repeat(1_500));
    let written = format!(r#"{{"to": "{to}",  "amount": 7e2}}"#);
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "pay", "arguments": written}}]);
    fleet.submit_turn(json!({"tool_calls": call})).await;
    let listed = asked(&fleet).await;
    assert!(!listed.arguments_exact && listed.arguments.get().len() <= limits::APPROVAL_SHORT_BYTES_MAX);
    assert!(!listed.arguments.get().contains("eve") && !listed.arguments.get().contains(secret));
    for by in ["ann", "bob"] {
        let seen = client.approval(&acme(), &listed.id).await.unwrap().unwrap();
        assert!(seen.arguments_exact && seen.arguments_bytes == seen.arguments.get().len() as u64);
        let shown = seen.arguments.get();
        let expected = json!({"to": to, "amount": 700}).to_string();
        assert!(*shown == *expected, "as the tool gets them: {shown}");
        approve(&fleet, by, &listed.id).await;
    }
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), &reply["results"][0]["output"]["to"]), (vec!["ok"], &json!(to)));
    let reported = notices(&fleet, "arguments").await;
    assert!(
        reported
            .iter()
            .all(|reported| !reported.contains(secret) && reported.len() <= limits::APPROVAL_SHORT_BYTES_MAX),
        "{reported:?}"
    );
    assert_eq!(
        (notices(&fleet, "abridged").await, notices(&fleet, "bytes").await),
        (vec!["1".to_owned()], vec![listed.arguments_bytes.to_string()])
    );
    let record: String = fleet.ask("GET", &format!("approval:acme:{}", listed.id), &[]).await;
    let parts: Vec<String> = fleet.ask("HVALS", &format!("parts:approval:acme:{}", listed.id), &[]).await;
    assert!(!record.contains(secret) && parts.is_empty(), "{record} {parts:?}");
    let ended = client.approval(&acme(), &listed.id).await.unwrap().unwrap();
    assert!(!ended.arguments_exact && ended.state == "used");
    fleet.stop().await;
}

#[tokio::test]
async fn arguments_too_long_for_an_approval_reject_the_call() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.ruled()).await;
    let most = limits::APPROVAL_ARGUMENTS_BYTES_MAX;
    let frame = json!({"to": "", "amount": 700}).to_string().len();
    let call = |bytes: usize, amount: u32| ("pay", json!({"to": "x".repeat(bytes - frame), "amount": amount}));
    fleet.submit(&[call(most + 1, 700), call(most + 1, 400)]).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["invalid_arguments", "ok"], "what needs nobody's consent may be long: {reply}");
    let error = &reply["results"][0]["error"];
    assert_eq!(error["details"], json!({"bytes": most + 1, "bytes_max": most}), "{reply}");
    let said = format!("at most {most} bytes are allowed, and these have {}", most + 1);
    assert!(error["message"].as_str().unwrap().contains(&said), "{reply}");
    assert_eq!(fleet.ask::<u32>("ZCARD", "asked", &[]).await, 0, "nobody was asked");
    fleet.submit(&[call(most, 700)]).await;
    let shown = asked(&fleet).await;
    let seen = Client::over(vec![fleet.store.clone()]).approval(&acme(), &shown.id).await.unwrap().unwrap();
    assert!(seen.arguments_exact && seen.arguments.get().len() == most);
    VerdictInput { agrees: false, ..VerdictInput::yes("ann") }.about(&fleet, &shown.id).await.unwrap();
    assert_eq!((outcomes(&fleet.reply().await), bank.paid()), (vec!["approval_refused"], 1));
    fleet.stop().await;
}

#[tokio::test]
async fn notices_list_the_arguments_an_approver_changed() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.ruled()).await;
    fleet.submit(&[pay(700)]).await;
    let id = asked(&fleet).await.id;
    VerdictInput { set: &[("/amount", "400")], ..VerdictInput::yes("ann") }.about(&fleet, &id).await.unwrap();
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    assert_eq!(notices(&fleet, "changed").await, [r#"{"/amount":400}"#]);
    fleet.stop().await;
}
