//! Tests calls that need people's consent.

mod beside;
mod crashes;
mod narrowed;
mod seen;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_client::{Approval, ApprovalError, ApprovalVerdict, Client, VerdictResult};
use tickfleet_model::policy::Rule;
use tickfleet_model::{ApprovalDemand, Effect, Policy, Redactor, TenantId, limits};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{ToolError, TypedTool};
use tokio::time::Instant;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Payment {
    /// The recipient.
    to: String,
    /// The amount.
    amount: u32,
}

#[derive(Clone, Default)]
struct Bank(Arc<AtomicUsize>);

impl Bank {
    fn pay(&self) -> TypedTool {
        let paid = Arc::clone(&self.0);
        TypedTool::new("pay", "Pays.", Effect::Once, move |_, payment: Payment| {
            let number = paid.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok::<_, ToolError>(json!({"number": number, "to": payment.to, "amount": payment.amount})) }
        })
    }

    fn gated(&self, demand: ApprovalDemand) -> Plan {
        Plan { tools: vec![self.pay().approval(demand)], policy: people, ..Plan::default() }
    }

    fn ruled(&self) -> Plan {
        Plan { tools: vec![self.pay()], policy: large_payments_ask, ..Plan::default() }
    }

    fn paid(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// On purpose, the approver kelly has the name of an agent.
fn people(policy: &mut Policy) {
    let approver = |name: &str, roles: &[&str]| (name.to_owned(), roles.iter().map(ToString::to_string).collect());
    let all = [
        approver("ann", &["finance"]),
        approver("bob", &["finance", "legal"]),
        approver("eve", &[]),
        approver("kelly", &[]),
    ];
    policy.permissions.approvers = all.into();
}

fn of(quorum: u32, roles: &[&str]) -> ApprovalDemand {
    ApprovalDemand { quorum, by: roles.iter().map(ToString::to_string).collect(), ..ApprovalDemand::default() }
}

fn large_payments_ask(policy: &mut Policy) {
    people(policy);
    let demand = ApprovalDemand { narrow: ["/amount".to_owned()].into(), ..of(1, &["finance"]) };
    let rule = |name: &str, require: &str, ask: Option<ApprovalDemand>| Rule {
        name: Some(name.into()),
        require: require.into(),
        message: Some("amount {args.amount} is too much".into()),
        otherwise_ask: ask,
        ..Rule::default()
    };
    let row = policy.permissions.matrix.get_mut("pay").unwrap();
    row.rules = vec![rule("large", "args.amount <= 500", Some(demand)), rule("never", "args.amount <= 9000", None)];
}

fn acme() -> TenantId {
    TenantId::new("acme").unwrap()
}

fn pay(amount: u32) -> (&'static str, Value) {
    ("pay", json!({"to": "kim", "amount": amount}))
}

async fn asked(fleet: &Fleet) -> Approval {
    asked_but(fleet, "").await
}

async fn asked_but(fleet: &Fleet, id: &str) -> Approval {
    let client = Client::over(vec![fleet.store.clone()]);
    let began = Instant::now();
    loop {
        // After an error of Redis, the loop asks again.
        let found = client.approvals(&acme(), 10).await.unwrap_or_default();
        if let Some(found) = found.into_iter().find(|found| found.id != id) {
            return found;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "nobody is asked, or no longer; Redis holds:\n{}",
            fleet.everything().await
        );
        // Redis does not announce approvals, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn state(fleet: &Fleet, id: &str) -> String {
    let client = Client::over(vec![fleet.store.clone()]);
    client.approval(&acme(), id).await.unwrap().map_or_else(|| "unknown".into(), |found| found.state)
}

struct VerdictInput<'a> {
    by: &'a str,
    agrees: bool,
    set: &'a [(&'a str, &'a str)],
    seen: Option<&'a RawValue>,
}

impl<'a> VerdictInput<'a> {
    fn yes(by: &'a str) -> Self {
        Self { by, agrees: true, set: &[], seen: None }
    }

    async fn about(&self, fleet: &Fleet, id: &str) -> Result<VerdictResult, ApprovalError> {
        let approvers = fleet.active.load().policy.permissions.approvers.clone();
        let narrow = self.set.iter().map(|(at, value)| ((*at).to_owned(), serde_json::from_str(value).unwrap()));
        let verdict = ApprovalVerdict {
            by: self.by,
            roles: &approvers[self.by],
            agrees: self.agrees,
            reason: "as we said",
            narrow: narrow.collect(),
            seen: self.seen,
            redactor: &Redactor::default(),
        };
        Client::over(vec![fleet.store.clone()]).decide_approval(&acme(), id, &verdict).await
    }
}

async fn approve(fleet: &Fleet, by: &str, id: &str) -> VerdictResult {
    VerdictInput::yes(by).about(fleet, id).await.unwrap()
}

#[tokio::test]
async fn a_call_waits_for_approval_without_a_slot_and_then_runs() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(Plan { slots: 1, ..bank.gated(of(1, &["finance"])) }).await;
    let turn = fleet.submit(&[("echo", json!({})), pay(700), ("echo", json!({}))]).await;
    let asked = asked(&fleet).await;
    assert_eq!(
        (asked.call.as_str(), asked.agent.as_str(), asked.tool.as_str()),
        (&*format!("{turn}/1"), "kelly", "pay")
    );
    assert_eq!(asked.arguments.get(), r#"{"to":"kim","amount":700}"#);
    // One request reads fewer than 1,100 tenants, so the client must make several requests.
    let client = Client::over(vec![fleet.store.clone()]);
    let mut tenants: Vec<TenantId> = (0..1_100).map(|it| TenantId::new(format!("t{it}")).unwrap()).collect();
    assert!(client.approval_of_any(&tenants, &asked.id).await.unwrap().is_none());
    tenants.push(acme());
    assert_eq!(client.approval_of_any(&tenants, &asked.id).await.unwrap().unwrap().call, asked.call);
    assert_eq!(
        (asked.asked_by[0].place.as_str(), asked.needs[0].in_words().as_str()),
        ("tools.pay.approval", "1 of finance")
    );
    let other = fleet.submit(&[("echo", json!({"value": 1}))]).await;
    assert_eq!(fleet.reply().await["turn_id"], other);
    let counted = approve(&fleet, "ann", &asked.id).await;
    assert_eq!((counted.state.as_str(), counted.missing), ("approved", 0));
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["ok"; 3], 1), "{reply}");
    assert_eq!(reply["results"][1]["approval"], json!({"id": asked.id, "by": ["ann"]}));
    assert!(reply["results"][0].get("approval").is_none(), "{reply}");
    assert_eq!(state(&fleet, &asked.id).await, "used");
    let denied = VerdictInput { agrees: false, ..VerdictInput::yes("bob") }.about(&fleet, &asked.id).await.unwrap_err();
    assert_eq!(denied.to_string(), "it has ended: used", "nobody takes back what a call has");
    let audits = fleet.audits().await;
    let said = audits.iter().find(|entry| entry["action"] == "APPROVAL").unwrap();
    assert_eq!((&said["actor_id"], &said["meta"]["about"]), (&json!("ann"), &json!(format!("{turn}/1"))), "{said}");
    assert_eq!((&said["meta"]["reason"], &said["meta"]["state"]), (&json!("as we said"), &json!("approved")), "{said}");
    let call = audits.iter().find(|entry| entry["meta"]["call"] == format!("{turn}/1")).unwrap();
    assert_eq!(call["meta"]["approval"]["by"], json!(["ann"]), "{call}");
    let events: Vec<Vec<String>> = events(&fleet).await;
    assert_eq!(
        events,
        [["asked", &asked.id], ["approved", &asked.id], ["used", &asked.id]].map(|e| e.map(String::from).to_vec())
    );
    fleet.stop().await;
}

async fn events(fleet: &Fleet) -> Vec<Vec<String>> {
    let found: Vec<(String, Vec<String>)> = fleet.ask("XRANGE", "approvals:acme", &["-", "+"]).await;
    let field =
        |fields: &[String], name: &str| fields.iter().skip_while(|field| *field != name).nth(1).cloned().unwrap();
    found.iter().map(|(_, fields)| vec![field(fields, "event"), field(fields, "approval")]).collect()
}

#[tokio::test]
async fn a_denial_ends_the_call_and_reports_the_reason() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(2, &[]))).await;
    fleet.submit(&[pay(1), ("echo", json!({}))]).await;
    let asked = asked(&fleet).await;
    assert_eq!(approve(&fleet, "bob", &asked.id).await.missing, 1);
    let denied = VerdictInput { agrees: false, ..VerdictInput::yes("ann") }.about(&fleet, &asked.id).await.unwrap();
    assert_eq!(denied.state, "denied", "one is enough");
    let late = VerdictInput::yes("eve").about(&fleet, &asked.id).await.unwrap_err();
    assert_eq!(late.to_string(), "it has ended: denied");
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["approval_refused", "ok"], 0), "{reply}");
    let error = &reply["results"][0]["error"];
    assert_eq!(error["message"], "ann was asked to approve this call and denied it: as we said. It was not executed.");
    assert_eq!(error["details"], json!({"reason": "denied", "approval": asked.id, "by": "ann"}));
    fleet.stop().await;
}

#[tokio::test]
async fn an_undecided_approval_expires_and_rejects_late_decisions() {
    let bank = Bank::default();
    let demand = ApprovalDemand { expires_ms: Some(5_000), ..of(1, &[]) };
    let mut fleet = Fleet::start(bank.gated(demand)).await;
    fleet.submit(&[pay(1)]).await;
    let asked = asked(&fleet).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["approval_refused"], 0), "{reply}");
    assert_eq!(
        (&result["error"]["code"], &result["error"]["details"]["reason"]),
        (&json!("approval_expired"), &json!("expired"))
    );
    let late = VerdictInput::yes("ann").about(&fleet, &asked.id).await.unwrap_err();
    assert_eq!(late.to_string(), "it has ended: expired");
    fleet.stop().await;
}

#[tokio::test]
async fn each_permitted_approver_counts_once_toward_the_required_number() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(2, &["finance"]))).await;
    fleet.submit(&[pay(1)]).await;
    let id = asked(&fleet).await.id;
    assert!(matches!(VerdictInput::yes("eve").about(&fleet, &id).await, Err(ApprovalError::Role(_))));
    assert!(matches!(VerdictInput::yes("kelly").about(&fleet, &id).await, Err(ApprovalError::Own)), "its own call");
    let elsewhere = Client::over(vec![fleet.store.clone()]).approval(&TenantId::new("bolt").unwrap(), &id).await;
    assert!(elsewhere.unwrap().is_none(), "another tenant's name does not find it");
    assert_eq!((approve(&fleet, "ann", &id).await.state, bank.paid()), ("waiting".into(), 0));
    assert!(matches!(VerdictInput::yes("ann").about(&fleet, &id).await, Err(ApprovalError::Again(_))));
    assert_eq!(approve(&fleet, "bob", &id).await.state, "approved");
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["approval"]["by"], json!(["ann", "bob"]), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn concurrent_approval_and_denial_agree_with_the_outcome() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(1, &[]))).await;
    for _ in 0..10 {
        fleet.submit(&[pay(1)]).await;
        let paid = bank.paid();
        let id = asked(&fleet).await.id;
        let (yes, no) = (VerdictInput::yes("ann"), VerdictInput { agrees: false, ..VerdictInput::yes("bob") });
        let (yes, no) = tokio::join!(yes.about(&fleet, &id), no.about(&fleet, &id));
        let outcome = fleet.reply().await["results"][0]["outcome"].clone();
        assert_eq!(no.is_ok(), outcome == "approval_refused", "{yes:?} {no:?} {outcome}");
        assert!(yes.is_ok() || no.is_ok());
        assert_eq!(bank.paid(), paid + usize::from(outcome == "ok"));
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_rule_requires_approval_only_for_calls_that_violate_it() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.ruled()).await;
    fleet.submit(&[pay(400), pay(9_001)]).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "denied"], "a rule that denies is never asked about: {reply}");
    fleet.submit(&[pay(700)]).await;
    let asked = asked(&fleet).await;
    let by = &asked.asked_by[0];
    assert_eq!((by.place.as_str(), by.why.as_str()), ("permissions.pay.rules.large", "amount 700 is too much"));
    approve(&fleet, "ann", &asked.id).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_that_ends_voids_its_pending_approval() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(1, &[]))).await;
    let turn = fleet.submit(&[pay(1)]).await;
    let cancelled = asked(&fleet).await;
    fleet.cancel_turn(&turn).await;
    assert_eq!(outcomes(&fleet.reply().await), ["cancelled"]);
    let deadline = fleet.in_ms(5_000).await;
    fleet.submit_turn(json!({"deadline": deadline, "calls": [{"name": "pay", "arguments": pay(1).1}]})).await;
    let expired = asked(&fleet).await;
    assert_eq!(outcomes(&fleet.reply().await), ["expired"]);
    for ended in [cancelled, expired] {
        assert_eq!(state(&fleet, &ended.id).await, "void");
        let late = VerdictInput::yes("ann").about(&fleet, &ended.id).await.unwrap_err();
        assert_eq!(late.to_string(), "it has ended: void");
    }
    assert_eq!((bank.paid(), fleet.ask::<u32>("ZCARD", "asked", &[]).await), (0, 0));
    fleet.stop().await;
}

#[tokio::test]
async fn a_resubmitted_turn_needs_a_new_approval() {
    let bank = Bank::default();
    let mut plan = bank.gated(of(1, &[]));
    plan.store.dedupe_ms = 1;
    plan.store.retain_ms = 1;
    let mut fleet = Fleet::start(plan).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let turn = json!({"turn_id": "again", "calls": [{"name": "pay", "arguments": pay(1).1}]});
        fleet.submit_turn(turn).await;
        let asked = asked(&fleet).await;
        approve(&fleet, "ann", &asked.id).await;
        assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
        let is_forgotten = async |fleet: &Fleet| fleet.ask::<u32>("EXISTS", "id:acme:again", &[]).await == 0;
        fleet.until("its id is free again", is_forgotten).await;
        ids.push(asked.id);
    }
    assert_ne!(ids[0], ids[1], "a consent is used once");
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_can_request_an_early_pending_approval_reply() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(1, &[]))).await;
    let calls = json!([{"name": "pay", "arguments": pay(1).1}]);
    let turn = fleet.submit_turn(json!({"pending_approval": true, "correlation_id": "c-9", "calls": calls})).await;
    let early = fleet.reply().await;
    let asked = asked(&fleet).await;
    assert_eq!((&early["status"], &early["turn_id"]), (&json!("pending_approval"), &json!(turn)), "{early}");
    assert_eq!((&early["results"], &early["correlation_id"]), (&json!([]), &json!("c-9")), "{early}");
    let about = json!({"id": asked.id, "call": format!("{turn}/0"), "tool": "pay", "requested_ms": asked.requested_ms, "until_ms": asked.until_ms});
    assert_eq!(early["approval"], about);
    approve(&fleet, "ann", &asked.id).await;
    let client = Client::over(vec![fleet.store.clone()]);
    let mut replies = client.replies(&acme(), &"box".parse().unwrap());
    let reply = replies.await_reply(&turn.parse().unwrap(), Duration::from_secs(60)).await.unwrap().unwrap();
    assert!(reply.is_final() && reply.is_success(), "the one before it is no end: {reply:?}");
    fleet.reply().await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

async fn many_wait(fleet: &Fleet, agent: &str, count: u64) {
    let far = (fleet.store.now_ms().await.unwrap() + 3_600_000).to_string();
    let ids = (0..count).map(|number| format!("apr-{agent}-{number}"));
    let members: Vec<String> = ids.flat_map(|id| [far.clone(), id]).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    for set in ["asked:acme".to_owned(), format!("asked:acme:{agent}")] {
        let _: u64 = fleet.ask("ZADD", &set, &members).await;
    }
}

#[tokio::test]
async fn pending_approvals_are_limited_per_tenant_and_agent() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.gated(of(1, &[]))).await;
    let of_agent = limits::APPROVALS_WAITING_OF_AGENT_MAX;
    let of_tenant = limits::APPROVALS_WAITING_MAX;
    for (agent, count, bound, said) in [
        ("kelly", of_agent, "agent", "this agent already has 250 pending approvals"),
        ("a", of_tenant, "tenant", "this tenant already has 1000 pending approvals"),
    ] {
        many_wait(&fleet, agent, count).await;
        fleet.submit(&[pay(1)]).await;
        let reply = fleet.reply().await;
        assert_eq!((outcomes(&reply), bank.paid()), (vec!["approval_refused"], 0), "{reply}");
        let error = &reply["results"][0]["error"];
        assert_eq!(error["details"], json!({"reason": "too_many_waiting", "bound": bound}), "{reply}");
        assert!(error["message"].as_str().unwrap().contains(said), "{reply}");
        let of_agent = fleet.store.keys().key(format_args!("asked:acme:{agent}"));
        let _: u32 = fleet.ask("DEL", "asked:acme", &[&of_agent]).await;
    }
    many_wait(&fleet, "fran", of_agent).await;
    let over = ["0", "apr-over-1", "0", "apr-over-2"];
    let _: u32 = fleet.ask("ZADD", "asked:acme", &over).await;
    fleet.submit(&[pay(1)]).await;
    let began = Instant::now();
    while fleet.ask::<u64>("ZCARD", "asked:acme", &[]).await != of_agent + 1 {
        assert!(began.elapsed() < PATIENCE, "nobody is asked");
        // Redis does not announce approvals, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _: u32 = fleet.ask("DEL", "asked:acme", &[]).await;
}

#[tokio::test]
async fn a_fleet_without_approvers_rejects_the_call_at_once() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(Plan { policy: |_| {}, ..bank.gated(of(1, &[])) }).await;
    fleet.submit(&[pay(1)]).await;
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["approval_refused"], 0), "{reply}");
    let said = reply["results"][0]["error"]["message"].as_str().unwrap();
    assert_eq!(said, "This call needs a person's approval, but this fleet cannot request one.");
    fleet.stop().await;
}
