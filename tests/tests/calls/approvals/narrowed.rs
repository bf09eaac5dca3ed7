use serde_json::json;
use tickfleet_client::ApprovalError;
use tickfleet_model::ApprovalDemand;
use tickfleet_tests::fleet::Fleet;
use tickfleet_tests::inspect::outcomes;

use super::{Bank, VerdictInput, approve, asked, of, pay};

#[tokio::test]
async fn an_approver_may_only_narrow_the_permitted_arguments() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.ruled()).await;
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{\"to\":\"kim\",\"amount\":700}"}}]);
    fleet.submit_turn(json!({"tool_calls": call})).await;
    let asked_first = asked(&fleet).await;
    let id = &asked_first.id;
    let other =
        VerdictInput { set: &[("/to", "\"eve\"")], ..VerdictInput::yes("ann") }.about(&fleet, id).await.unwrap_err();
    assert_eq!(other.to_string(), "the argument at '/to' may not be changed; these may: /amount");
    let counted =
        VerdictInput { set: &[("/amount", "400")], ..VerdictInput::yes("ann") }.about(&fleet, id).await.unwrap();
    assert_eq!(counted.state, "approved");
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((&result["output"]["amount"], &result["output"]["to"]), (&json!(400), &json!("kim")), "{reply}");
    assert_eq!(result["approval"]["arguments"], json!({"to": "kim", "amount": 400}));
    let reported = reply["messages"][0]["content"].as_str().unwrap();
    assert!(reported.contains("ann approved this call with other arguments"), "{reported}");
    let audits = fleet.audits().await;
    let audited = audits.iter().find(|entry| entry["action"] == "TOOL_CALL").unwrap();
    assert_eq!(audited["meta"]["approval"]["arguments"]["amount"], 400, "{audited}");
    fleet.submit(&[pay(700)]).await;
    let before = asked(&fleet).await;
    for value in ["\"much\"", "9001", "800", "-1", "null"] {
        let refused =
            VerdictInput { set: &[("/amount", value)], ..VerdictInput::yes("ann") }.about(&fleet, &before.id).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("may only become narrower"), "{value}: {refused}");
        let after = asked(&fleet).await;
        assert_eq!((&after.id, &after.state, after.agreed.len()), (&before.id, &before.state, 0), "{value}");
    }
    VerdictInput { set: &[("/amount", "600")], ..VerdictInput::yes("ann") }.about(&fleet, &before.id).await.unwrap();
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    assert_eq!(bank.paid(), 2);
    fleet.stop().await;
}

#[tokio::test]
async fn an_approval_does_not_cover_changed_arguments() {
    let bank = Bank::default();
    let demand = ApprovalDemand { narrow: ["/amount".to_owned()].into(), ..of(2, &[]) };
    let mut fleet = Fleet::start(bank.gated(demand)).await;
    fleet.submit(&[pay(700)]).await;
    let id = asked(&fleet).await.id;
    approve(&fleet, "ann", &id).await;
    let narrowed =
        VerdictInput { set: &[("/amount", "400")], ..VerdictInput::yes("bob") }.about(&fleet, &id).await.unwrap();
    assert_eq!((narrowed.state.as_str(), narrowed.missing), ("waiting", 1), "Ann has agreed to 700");
    assert!(matches!(VerdictInput::yes("ann").about(&fleet, &id).await, Err(ApprovalError::Changed)));
    let seen = asked(&fleet).await.narrowed.unwrap();
    let agreed = VerdictInput { seen: Some(&seen), ..VerdictInput::yes("ann") }.about(&fleet, &id).await.unwrap();
    assert_eq!(agreed.state, "approved");
    assert_eq!(fleet.reply().await["results"][0]["output"]["amount"], 400);
    fleet.stop().await;
}
