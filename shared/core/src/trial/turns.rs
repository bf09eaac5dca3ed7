//! Turns for tests, and the actions of workers on slices.

use bytes::Bytes;

use super::Trial;
use crate::keys::TurnName;
use crate::transaction::{Conflict, CounterKey, Guard, TimerRule, Transaction, Write};
use crate::turn::{Slice, Turn};

pub fn named(turn: &str) -> TurnName {
    TurnName::parse(&format!("acme:{turn}")).unwrap()
}

pub fn head(calls: usize) -> crate::turn::Head {
    crate::turn::Head {
        agent: tickfleet_model::AgentId::new("kelly").unwrap(),
        dialect: tickfleet_model::Dialect::default(),
        reply_to: None,
        deadline_ms: 1_000_000,
        submitted_ms: 0,
        digest: "d".to_owned(),
        calls,
        want_audits: false,
        strict: false,
        allowed_tools: None,
        parallel_reads: false,
        pending_approval: false,
        local_calls: false,
        context: tickfleet_model::Context::default(),
        task: None,
        delegated_by: None,
        span: None,
    }
}

pub fn admitted(calls: usize) -> Turn {
    let destination = crate::turn::Destination::Workers(tickfleet_model::Priority::Normal);
    let state = crate::turn::State::Ready { upto: calls };
    Turn { place: 1, bytes: 10, debited: calls, ..Turn::new(head(calls), destination, state, 0) }
}

pub fn call(number: usize) -> Bytes {
    Bytes::from(format!("{{\"t\":\"tool{number}\",\"a\":\"{{}}\"}}"))
}

impl Trial {
    pub fn dispatch(&mut self, name: &TurnName, mut turn: Turn) {
        let mut transaction = Transaction::new(self.draw());
        let calls: Vec<Bytes> = (turn.position..turn.head.calls).map(call).collect();
        crate::turn::slice::dispatch(&mut transaction, name, &mut turn, &calls);
        transaction.timer(name.timer(), turn.head.deadline_ms, TimerRule::Set);
        for (limit, amount) in [("_out", 1), ("_unfinished", 1), ("_bytes", 10)] {
            let counter = CounterKey::new(limit, name.tenant.as_str());
            transaction.write(Write::Add { counter, amount, ends_ms: None });
        }
        self.commit(&transaction).unwrap();
    }

    pub fn begin(&mut self, slice: &Slice) -> Result<(), Conflict> {
        let mut turn = slice.turn.clone();
        turn.entry = Some(slice.entry.clone());
        turn.state = crate::turn::State::Running { upto: slice.turn.state.in_flight_upto().unwrap() };
        let mut transaction = Transaction::new(self.draw());
        transaction.guard(Guard::Version(slice.name.record(), slice.version.clone()));
        transaction.put(&slice.name.record(), &turn);
        self.commit(&transaction).map(drop)
    }

    pub fn settle(&mut self, slice: &Slice) -> Result<(), Conflict> {
        let stored = self.turn(&slice.name);
        let fence = stored.filter(|stored| stored.in_flight_entry() == Some(&slice.entry)).map(|stored| stored.version);
        let mut transaction = Transaction::new(self.draw());
        transaction.guard(Guard::Version(slice.name.record(), fence.unwrap_or_else(|| slice.version.clone())));
        transaction.guard(Guard::Held(slice.queue.clone(), slice.entry.clone()));
        transaction.write(Write::Delete(slice.name.record()));
        transaction
            .put(&slice.name.finished(), &crate::recovery::reap::Crash { heartbeat: None, regular: 0, suspects: 0 });
        self.commit(&transaction).map(drop)
    }
}
