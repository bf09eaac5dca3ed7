use super::*;

#[test]
fn a_single_slice_turn_settles_without_a_read() {
    let (mut trial, slice) = held(with_permits(1));
    let results = [result("ok")];
    let frame = frame();
    let bounds = Bounds::default();
    let step = settle(&slice, &results, &frame, &bounds).decide(&View::default(), &trial.context()).unwrap();
    let Step::Commit(transaction, settled) = step else { panic!("it returns") };
    assert_eq!(settled, SettleResult::Ended);
    assert_eq!(transaction.guards.len(), 2, "the version and the entry: {:?}", transaction.guards);
    trial.commit(&transaction).unwrap();
    assert_eq!(reply(&trial), "{\"results\":[\"ok\"]}");
    assert_eq!((trial.turn(&slice.name), timer(&trial)), (None, None));
    for counter in [counter(limits::IN_FLIGHT), counter(limits::UNFINISHED), counter(limits::BYTES), permit()] {
        assert_eq!(trial.used(&counter), 0, "{counter:?}");
    }
    assert_eq!(trial.run(&settle(&slice, &results, &frame, &bounds)), SettleResult::Stale);
}

#[test]
fn under_memory_pressure_the_inbox_has_the_only_copy_of_the_reply() {
    for (has_inbox, kept) in [(true, ""), (false, "{\"results\":[\"ok\"]}")] {
        let mut turn = admitted(1);
        turn.head.reply_to = has_inbox.then(|| InboxName::new("box").unwrap());
        let (mut trial, slice) = held(turn);
        trial.pressure = true;
        let results = [result("ok")];
        let frame = frame();
        let bounds = Bounds::default();
        assert_eq!(trial.run(&settle(&slice, &results, &frame, &bounds)), SettleResult::Ended);
        assert_eq!(reply(&trial), kept);
        let finished = trial.stored::<Finished>(&named("t1").finished()).unwrap().value;
        assert_eq!(finished.agent.is_some(), has_inbox, "gateways ask whose turn it was");
        assert_eq!(trial.inboxes.values().map(Vec::len).sum::<usize>(), usize::from(has_inbox));
    }
}

#[test]
fn a_result_is_committed_before_the_next_call_begins() {
    let governed = Turn { session: Some("session:s".into()), approval: Some("a1".into()), ..admitted(3) };
    let (mut trial, mut slice) = held(governed);
    let results = [result("a"), result("b")];
    let frame = frame();
    let bounds = Bounds::default();
    let settled = trial.run(&settle(&slice, &results[..1], &frame, &bounds));
    let old = slice.clone();
    let SettleResult::Continues { version, turn } = settled else { panic!("{settled:?}") };
    slice.advance(version, *turn);
    assert_eq!((slice.turn.session.as_deref(), slice.turn.approval.as_deref()), (None, None), "they were of the call");
    assert_eq!((slice.turn.position, slice.calls.len(), &*slice.calls[0].tool), (1, 2, "tool1"));
    assert_eq!(trial.turn(&slice.name).unwrap().in_flight_entry(), Some(&slice.entry), "its entry stays known");
    assert_eq!(trial.used(&counter(limits::IN_FLIGHT)), 1);
    assert_eq!(trial.run(&settle(&old, &results, &frame, &bounds)), SettleResult::Stale, "the version is the fence");
    assert_eq!(trial.run(&settle(&slice, &results[..2], &frame, &bounds)), SettleResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"a\",\"a\",\"b\"]}");
    assert_eq!(trial.queues[&keys::audit()].entries.len(), 3, "each call is audited once");
}

#[test]
fn a_turn_with_remaining_calls_returns_to_the_throttle_queue() {
    let slice_of_two = Turn { head: crate::trial::head(3), debited: 2, ..with_permits(2) };
    let (mut trial, mut slice) = held(slice_of_two);
    slice.turn.state = State::Ready { upto: 2 };
    slice.calls.truncate(2);
    let results = [result("a"), result("b")];
    let frame = frame();
    let bounds = Bounds::default();
    assert_eq!(trial.run(&settle(&slice, &results, &frame, &bounds)), SettleResult::Throttled);
    let turn = record(&trial);
    assert_eq!((turn.state.word(), turn.position, turn.permits.len()), ("throttled", 2, 0));
    assert_eq!((trial.used(&permit()), trial.used(&counter(limits::IN_FLIGHT))), (0, 0));
    let tick = CounterKey::new(limits::TICK, "acme:kelly");
    assert_eq!(trial.members(&keys::throttle_queue(&tick)), ["acme:t1"]);
    assert_eq!(trial.timers[&*keys::throttle_timer(&tick)], NOW);
    assert_eq!(timer(&trial), Some(1_000_000), "the deadline");
}

#[test]
fn a_slice_without_a_pending_queue_entry_still_settles() {
    let (mut trial, slice) = held(admitted(1));
    trial.queues.get_mut(&slice.queue).unwrap().held.clear();
    let results = [result("ok")];
    let frame = frame();
    let bounds = Bounds::default();
    assert_eq!(trial.run(&settle(&slice, &results, &frame, &bounds)), SettleResult::Ended);
    assert!(trial.queues[&slice.queue].entries.is_empty());
}

struct Mention(&'static str);

impl Section for Mention {
    fn add_to(&self, transaction: &mut Transaction, _: &View, _: &Context) -> Result<(), Undecided> {
        transaction.join(crate::SetKey::new("facts"), self.0, 0);
        Ok(())
    }
}

#[test]
fn sections_are_committed_with_the_results() {
    let (mut trial, slice) = held(admitted(1));
    let results = [result("ok")];
    let frame = frame();
    let bounds = Bounds::default();
    let sections: [&dyn Section; 2] = [&Mention("a"), &Mention("b")];
    let settle = Settle { sections: &sections, ..settle(&slice, &results, &frame, &bounds) };
    trial.run(&settle);
    assert_eq!(trial.members(&crate::SetKey::new("facts")), ["a", "b"]);
    trial.run(&Settle { sections: &[&Mention("c")], ..settle });
    assert_eq!(trial.members(&crate::SetKey::new("facts")), ["a", "b"], "a stale settle changes nothing");
}

#[test]
fn the_holder_of_a_canceled_turn_receives_a_notice_and_settles() {
    let (mut trial, slice) = held(admitted(2));
    cancel(&mut trial, Some(0));
    assert_eq!(fire(&mut trial), DueResult::Noticed("w1".into()));
    assert_eq!(trial.members(&keys::canceled("w1")), ["acme:t1"]);
    assert_eq!(timer(&trial), Some(NOW + Bounds::default().lease_ms));
    let results = [result("ok"), result("canceled")];
    let frame = frame();
    let bounds = Bounds::default();
    let settle = Settle {
        reason: Some(&EndReason::Canceled),
        canceled: Some("enough"),
        ..settle(&slice, &results, &frame, &bounds)
    };
    assert_eq!(trial.run(&settle), SettleResult::Ended, "a cancel is no fence");
    let finished = trial.stored::<Finished>(&slice.name.finished()).unwrap().value;
    assert_eq!((finished.reason, finished.canceled.as_deref()), (Some(EndReason::Canceled), Some("enough")));
    assert!(!trial.records.contains_key(&slice.name.cancellation()));
}

#[test]
fn earlier_results_keep_their_messages_and_audits() {
    let (mut trial, mut slice) = held(admitted(2));
    let frame = ReplyFrame { messages: Some(("[", "]")), audits: true, ..frame() };
    let full = |text: &str| RenderedCall { message: format!("\"m{text}\"").into(), ..result(text) };
    let first = [full("a")];
    let last = [full("b")];
    let bounds = Bounds::default();
    let SettleResult::Continues { version, turn } = trial.run(&settle(&slice, &first, &frame, &bounds)) else {
        panic!()
    };
    assert_eq!(trial.used(&counter(limits::BYTES)), 10 + 3 + 4 + 3);
    slice.advance(version, *turn);
    trial.run(&settle(&slice, &last, &frame, &bounds));
    let expected = "{\"results\":[\"a\",\"b\"],\"messages\":[\"ma\",\"mb\"],\"tool_call_audits\":[\"a\",\"b\"]}";
    assert_eq!(reply(&trial), expected);
    assert_eq!(trial.used(&counter(limits::BYTES)), 0);
    assert!(!trial.parts.contains_key(&slice.name.record()), "{:?}", call(0));
    assert_eq!(&*parts::result(0), "r0");
}

#[test]
fn a_holder_continues_after_a_lost_commit_response() {
    let (mut trial, slice) = held(admitted(3));
    let results = [result("a")];
    let frame = frame();
    let bounds = Bounds::default();
    trial.run(&settle(&slice, &results, &frame, &bounds));
    let again = trial.run(&settle(&slice, &results, &frame, &bounds));
    let SettleResult::Continues { version, turn } = again else { panic!("{again:?}") };
    assert_eq!((Some(version), turn.position), (trial.turn(&slice.name).map(|stored| stored.version), 1));
    assert_eq!(trial.queues[&keys::audit()].entries.len(), 1, "the result is committed once");
    // The slice is now in another entry, with another holder.
    trial.run(&RequeueSlice { slice: &slice, reason: &RequeueReason::Unknown });
    assert_eq!(trial.run(&settle(&slice, &results, &frame, &bounds)), SettleResult::Stale);
}

/// A worker ran the `read` calls before call 2, began call 2, and crashed.
#[test]
fn a_begun_call_stays_begun_when_earlier_calls_park_or_settle() {
    let begun = || Some(Begun::new(2, "n1"));
    let crashed = || Turn { begun: begun(), crashes: 1, ..with_permits(3) };
    for reason in [retry(1), wait(child(), true), wait(approval(), false)] {
        let (mut trial, slice) = held(crashed());
        park(&mut trial, &slice, &reason, false);
        assert_eq!(record(&trial).begun, begun(), "{reason:?}");
    }
    let (mut trial, mut slice) = held(crashed());
    slice.turn.state = State::Ready { upto: 2 };
    slice.calls.truncate(2);
    let results = [result("a"), result("b")];
    let frame = frame();
    let bounds = Bounds::default();
    assert_eq!(trial.run(&settle(&slice, &results, &frame, &bounds)), SettleResult::Throttled);
    assert_eq!((record(&trial).begun, record(&trial).execution_state(2)), (begun(), ExecutionState::Begun));
}

struct Torn;

impl Section for Torn {
    fn add_to(&self, transaction: &mut Transaction, _: &View, _: &Context) -> Result<(), Undecided> {
        transaction.guard(Guard::Present(crate::RecordKey::new("torn")));
        let why = crate::record::Unreadable::Frame;
        Err(Undecided::Unreadable { key: crate::RecordKey::new("torn"), why })
    }
}

impl EndSection for Torn {
    fn add_to(
        &self,
        _: &TurnName,
        _: &Turn,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<(), Undecided> {
        Section::add_to(self, transaction, view, context)
    }
}

#[test]
fn an_unreadable_section_does_not_block_results() {
    let (mut trial, slice) = held(admitted(1));
    let results = [result("ok")];
    let frame = frame();
    let bounds = Bounds::default();
    let sections: [&dyn Section; 2] = [&Torn, &Mention("a")];
    let settle = Settle { sections: &sections, ..settle(&slice, &results, &frame, &bounds) };
    assert_eq!(trial.run(&settle), SettleResult::Ended);
    assert_eq!(trial.members(&crate::SetKey::new("facts")), ["a"]);
    assert_eq!(trial.queues[&keys::dead()].entries.len(), 1);

    let mut trial = Trial::at(1_000_000);
    let name = named("t1");
    trial.dispatch(&name, admitted(1));
    let due = Due { name: &name, render: &Texts, sections: &[&Torn], bounds: &bounds };
    assert_eq!(trial.run(&due), DueResult::Ended);
    assert_eq!(trial.queues[&keys::dead()].entries.len(), 1);
}
