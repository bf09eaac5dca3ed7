use super::*;

fn lease_timer(trial: &mut Trial, name: &str, bounds: &Bounds) -> LeaseTimerResult {
    trial.run(&HandleLeaseTimer { name: named(name), bounds })
}

fn take_external(trial: &mut Trial, name: &str) -> EntryId {
    let queue = trial.turn(&named(name)).unwrap().value.queue(&named(name).tenant);
    trial.take(&queue, "runtime", 1).remove(0).0
}

#[test]
fn a_silent_runtime_loses_its_task() {
    let silent = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        trial.run(&external("k1", &bounds));
        assert_eq!(trial.timers["turn:acme:k1"], 1_005);
        trial.now_ms = 1_005;
        assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Later(2_005));
        let entry = take_external(&mut trial, "k1");
        assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Later(2_005));
        let renewal = RenewTaskLease { name: named("k1"), entry: entry.clone() };
        trial.now_ms = 2_000;
        assert_eq!(trial.run(&renewal), RenewTaskLeaseResult::Renewed);
        trial.now_ms = 2_500;
        assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Later(3_000));
        trial.now_ms = 3_000;
        assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Offered);
        let held = trial.holds(&keys::external(&named("k1").tenant, &head(1).agent), "runtime");
        let renewed = trial.run(&renewal);
        let turn = trial.turn(&named("k1")).unwrap().value;
        assert_eq!((turn.crashes, renewed), (1, RenewTaskLeaseResult::Stale));
        (held.len(), turn.execution_state(0))
    };
    assert_eq!(silent(), (0, ExecutionState::TakenByRuntime));
    assert_eq!(mutants::with("lease_timer_acknowledges_the_old_entry", silent).0, 1);
    assert_eq!(mutants::with("a_task_with_an_ended_lease_has_begun", silent).1, ExecutionState::MayHaveRun);
}

#[test]
fn a_task_with_three_ended_leases_is_quarantined() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&external("k1", &bounds));
    let mut results = Vec::new();
    for _ in 0..3 {
        take_external(&mut trial, "k1");
        lease_timer(&mut trial, "k1", &bounds);
        trial.now_ms += 1_000;
        results.push(lease_timer(&mut trial, "k1", &bounds));
    }
    assert_eq!(results, [LeaseTimerResult::Offered, LeaseTimerResult::Offered, LeaseTimerResult::Ends]);
    let turn = trial.turn(&named("k1")).unwrap().value;
    assert!(matches!(turn.state, State::Ending { reason: EndReason::Quarantined { crashes: 3 }, .. }));
    assert_eq!((lease_timer(&mut trial, "k1", &bounds), trial.used(&counter("_out"))), (LeaseTimerResult::NotOut, 0));
}

#[test]
fn a_canceled_external_task_ends_when_its_lease_expires() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&external("k1", &bounds));
    trial.run(&external("k2", &bounds));
    let entry = take_external(&mut trial, "k1");
    lease_timer(&mut trial, "k1", &bounds);
    cancel(&mut trial, "k1", &bounds);
    cancel(&mut trial, "k2", &bounds);
    assert_eq!(lease_timer(&mut trial, "k2", &bounds), LeaseTimerResult::Ends);
    assert_eq!(trial.turn(&named("k2")).unwrap().value.execution_state(0), ExecutionState::NotRun);
    assert_eq!(trial.run(&RenewTaskLease { name: named("k1"), entry }), RenewTaskLeaseResult::Over);
    assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Later(1_005));
    trial.now_ms = 1_005;
    assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Ends);
    let turn = trial.turn(&named("k1")).unwrap().value;
    assert_eq!((turn.execution_state(0), turn.canceled.as_deref()), (ExecutionState::TakenByRuntime, Some("no")));
}

#[test]
fn an_empty_external_queue_is_removed_from_the_list() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&external("k1", &bounds));
    let queue = keys::external(&named("k1").tenant, &head(1).agent);
    assert_eq!(trial.members(&keys::externals()), [queue.as_str()]);
    assert!(!trial.run(&DropExternalQueue { queue: queue.clone() }));
    cancel(&mut trial, "k1", &bounds);
    lease_timer(&mut trial, "k1", &bounds);
    assert!(trial.run(&DropExternalQueue { queue }));
    assert!(trial.members(&keys::externals()).is_empty());
}

#[test]
fn a_report_from_the_holding_runtime_parks_or_settles_its_task() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&external("k1", &bounds));
    let entry = take_external(&mut trial, "k1");
    let read = |entry: &str| ReadHeld { name: named("k1"), entry: EntryId::new(entry) };
    assert!(trial.run(&read("0-9")).is_none(), "another lease");
    trial.run(&RenewTaskLease { name: named("k1"), entry: entry.clone() });
    let slice = trial.run(&read(entry.as_str())).unwrap();
    assert_eq!(slice.calls.len(), 1);
    let reason = ParkReason::Retry { attempts: 1, delay_ms: 10, cause: "busy".into(), keeps_begun: false };
    let park = Park { slice: &slice, reason: &reason, had_parallel_reads: false, waits_while: &[], sections: &[] };
    assert_eq!(trial.run(&park), ParkResult::Until(15));
    assert!(trial.run(&read(entry.as_str())).is_none(), "it has given the task back");
    let kept = Query::Parts(named("k1").record(), vec![parts::call(0)]);
    assert_eq!(trial.answer(&kept), Value::Parts(vec![Some(call(0))]), "it is offered again with its call");

    trial.run(&external("k2", &bounds));
    let entry = take_external(&mut trial, "k2");
    let slice = trial.run(&ReadHeld { name: named("k2"), entry }).unwrap();
    let results = [RenderedCall { result: "1".into(), ..RenderedCall::default() }];
    let frame = ReplyFrame::default();
    let settle = Settle {
        slice: &slice,
        results: &results,
        frame: &frame,
        sections: &[],
        reason: None,
        canceled: None,
        bounds: &bounds,
    };
    assert_eq!(trial.run(&settle), SettleResult::Ended);
    assert!(trial.turn(&named("k2")).is_none());
    assert!(trial.holds(&slice.queue, "runtime").is_empty());
}

#[test]
fn a_runtime_reads_the_message_of_its_task() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let call = tickfleet_model::Call { provider_id: None, tool: "delegate_task".into(), arguments: "{\"a\":1}".into() };
    let call = serde_json::to_vec(&call).unwrap().into();
    trial.run(&Delegate { call, ..external("k1", &bounds) });
    let queue = keys::external(&named("k1").tenant, &head(1).agent);
    let (_, fields) = trial.take(&queue, "runtime", 1).remove(0);
    let field = |name: &str| fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| value.clone());
    assert_eq!(field("task"), Some(Bytes::from_static(b"{\"a\":1}")));
    assert_eq!(field("r"), None, "the record is not for programs outside");
}

/// A runtime can hold a task for days without blocking the tenant's other slices.
#[test]
fn an_external_task_does_not_count_as_a_slice_out() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&external("k1", &bounds));
    assert_eq!((trial.used(&counter("_out")), trial.used(&counter("_unfinished"))), (0, 1));
    take_external(&mut trial, "k1");
    lease_timer(&mut trial, "k1", &bounds);
    trial.now_ms += 1_000;
    assert_eq!(lease_timer(&mut trial, "k1", &bounds), LeaseTimerResult::Offered);
    assert_eq!(trial.used(&counter("_out")), 0);
}
