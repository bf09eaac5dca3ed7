use tickfleet_model::TurnId;

use crate::turn::submit::{Inbound, Submit, Submitted};

use super::*;
use crate::recovery::inbound::ReturnInbound;

fn inbound_trial(messages: &[&str]) -> Trial {
    let mut trial = Trial::at(LEASE);
    for message in messages {
        let fields = vec![
            (messages::fields::TURN.into(), (*message).to_owned().into()),
            (messages::fields::GIVEN.into(), "acme:t1".into()),
        ];
        trial.enqueue(&keys::turns(), fields);
    }
    trial.take(&keys::turns(), "s1", 9);
    trial
}

fn reap_inbound(trial: &mut Trial, consumer: &str) -> Vec<ReapResult> {
    let bounds = Bounds::default();
    let is_tenant = |tenant: &TenantId| tenant.as_str() == "acme";
    let entries = trial.holds(&keys::turns(), consumer);
    let mut reaped = Vec::new();
    for entry in entries {
        let fields = trial.fields(&keys::turns(), &entry).unwrap_or_default();
        let entry = HeldEntry { queue: keys::turns(), entry, fields };
        let lease = lease(trial, consumer, trial.now_ms);
        let decision = ReapInbound { consumer: consumer.into(), lease, entry, bounds: &bounds, is_tenant: &is_tenant };
        reaped.push(trial.run(&decision));
    }
    reaped
}

#[test]
fn a_poison_message_is_dead_lettered_and_rejected() {
    let poison = r#"{"turn_id": "t1", "tenant": "acme", "agent": "kelly", "reply_to": "box", "secret": 1}"#;
    let mut trial = inbound_trial(&[poison, "{}"]);
    trial.put(&named("t1").given(), &GivenId { digest: "d".into(), state: GivenState::Queued });
    let origins = trial.holds(&keys::turns(), "s1");
    assert_eq!(
        reap_inbound(&mut trial, "s1"),
        [ReapResult::Redelivered(Vec::new()), ReapResult::Redelivered(Vec::new())]
    );
    for round in 2..4 {
        let scheduler = format!("s{round}");
        let taken = trial.take(&keys::turns(), &scheduler, 9);
        assert_eq!(taken.len(), 2);
        let (suspect, fields) = taken.iter().find(|(_, fields)| fields[0].1.len() > 2).unwrap().clone();
        assert_eq!(messages::crashes(&fields), round - 1);
        let stream = keys::turns();
        let entry = Some(suspect);
        trial.run(&NameSuspect { stream, consumer: scheduler.as_str().into(), entry, keep_ms: LEASE });
        let reaped = reap_inbound(&mut trial, &scheduler);
        let dead = reaped.iter().filter(|one| **one == ReapResult::Removed { dead: 1 }).count();
        assert_eq!(dead, usize::from(round == 3));
    }
    // No crash counts against the other message, because that message was never the named suspect.
    let left = trial.take(&keys::turns(), "s9", 9);
    assert_eq!((left.len(), messages::crashes(&left[0].1)), (1, 1));
    let reply = String::from_utf8(trial.inboxes["acme:box"][0].to_vec()).unwrap();
    assert!(reply.starts_with(r#"{"turn_id":"t1","tenant":"acme","agent":"kelly","status":"rejected""#), "{reply}");
    let (_, letter) = trial.queues[&keys::dead()].entries.iter().next().unwrap();
    let text: Vec<&str> = letter.iter().map(|(_, value)| std::str::from_utf8(value).unwrap()).collect();
    assert_eq!(text[1], origins[0].as_str());
    assert!(!text[3].contains("secret") && text[3].contains(r#""turn_id":"t1""#), "{}", text[3]);
    let given = trial.stored::<GivenId>(&named("t1").given()).unwrap().value;
    assert_eq!(given.state, GivenState::Ended);
}

#[test]
fn an_ambiguous_poison_message_gets_no_reply() {
    for message in [
        r#"{"tenant": "acme", "reply_to": "box", "x": {"tenant": "other"}}"#,
        r#"{"tenant": "unknown", "reply_to": "box"}"#,
        r#"{"tenant": "acme", "reply_to": "b\u006fx"}"#,
    ] {
        let mut trial = inbound_trial(&[message]);
        for round in 1..4 {
            let scheduler = format!("s{round}");
            trial.take(&keys::turns(), &scheduler, 9);
            let entry = trial.holds(&keys::turns(), &scheduler).into_iter().next();
            let consumer: Arc<str> = scheduler.as_str().into();
            trial.run(&NameSuspect { stream: keys::turns(), consumer, entry, keep_ms: LEASE });
            reap_inbound(&mut trial, &scheduler);
        }
        assert_eq!(trial.queues[&keys::dead()].entries.len(), 1);
        assert!(trial.inboxes.is_empty(), "{message}");
    }
}

#[test]
fn a_message_is_redelivered_once() {
    let reap_twice = || {
        let mut trial = inbound_trial(&["{}"]);
        let before = trial.clone();
        reap_inbound(&mut trial, "s1");
        let mut entry = before.holds(&keys::turns(), "s1");
        let fields = before.fields(&keys::turns(), &entry[0]).unwrap();
        let entry = HeldEntry { queue: keys::turns(), entry: entry.remove(0), fields };
        let bounds = Bounds::default();
        let is_tenant = |_: &TenantId| false;
        let lease = lease(&trial, "s1", trial.now_ms);
        let consumer = "s1".into();
        trial.run(&ReapInbound { consumer, lease, entry, bounds: &bounds, is_tenant: &is_tenant });
        trial.take(&keys::turns(), "s2", 9).len()
    };
    assert_eq!(reap_twice(), 1);
    assert_eq!(mutants::with("reap_acknowledges_the_old_message", reap_twice), 2);
}

#[test]
fn a_turn_id_record_follows_its_redelivered_message() {
    let mut trial = Trial::at(LEASE);
    let bounds = Bounds::default();
    let tenant = TenantId::new("acme").unwrap();
    let given = Some((TurnId::new("t1").unwrap(), "d".to_owned()));
    let to = Inbound::Turns;
    let payload = "{}".into();
    trial.run(&Submit { to, tenant, given, reply_to: None, payload, bounds: &bounds });
    let entry_of_id = |trial: &Trial| trial.stored::<GivenId>(&named("t1").given()).unwrap().entry;
    for round in 1..3 {
        let scheduler = format!("s{round}");
        let taken = trial.take(&keys::turns(), &scheduler, 9);
        assert_eq!(entry_of_id(&trial), Some(taken[0].0.clone()), "round {round}");
        reap_inbound(&mut trial, &scheduler);
    }
}

#[test]
fn a_turn_id_is_accepted_again_after_its_message_is_lost() {
    let mut trial = Trial::at(LEASE);
    let bounds = Bounds::default();
    let submit = |trial: &mut Trial, digest: &str| {
        let given = Some((TurnId::new("t1").unwrap(), digest.to_owned()));
        let to = Inbound::Turns;
        let tenant = TenantId::new("acme").unwrap();
        let payload = "{}".into();
        trial.run(&Submit { to, tenant, given, reply_to: None, payload, bounds: &bounds })
    };
    assert_eq!(submit(&mut trial, "d"), Submitted::Accepted);
    assert_eq!(submit(&mut trial, "d"), Submitted::Duplicate);
    trial.queues.remove(&keys::turns());
    assert_eq!(submit(&mut trial, "other"), Submitted::Conflict);
    assert_eq!(submit(&mut trial, "d"), Submitted::Accepted);
    assert_eq!(submit(&mut trial, "d"), Submitted::Duplicate);
    assert_eq!(trial.take(&keys::turns(), "s1", 9).len(), 1);
    assert_eq!(submit(&mut trial, "d"), Submitted::Duplicate, "a scheduler has it");
}

#[test]
fn a_message_returned_by_a_scheduler_counts_no_crash() {
    let mut trial = inbound_trial(&["{}"]);
    let entry = trial.holds(&keys::turns(), "s1").remove(0);
    let fields = trial.fields(&keys::turns(), &entry).unwrap();
    let returned = ReturnInbound { entry: HeldEntry { queue: keys::turns(), entry: entry.clone(), fields } };
    assert!(trial.run(&returned));
    assert!(!trial.run(&returned), "another scheduler may have it");
    trial.take(&keys::turns(), "s2", 9);
    let again = trial.holds(&keys::turns(), "s2").remove(0);
    let fields = trial.fields(&keys::turns(), &again).unwrap();
    assert_eq!(messages::crashes(&fields), 0);
    assert_eq!(messages::origin(&HeldEntry { queue: keys::turns(), entry: again, fields }), entry);
}
