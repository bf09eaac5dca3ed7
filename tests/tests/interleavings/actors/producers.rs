//! What producers, operators and Redis itself do in an interleaving.

use rand::Rng;
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, ConsumerId, InboxName, TaskId, TenantId, TurnId};
use tickfleet_store::{
    Announced, Cancelled, Delegated, Delegation, Queue, StoreError, Submission, Submitted, TurnName,
};

use crate::interleavings::game::{Game, Violation, same};
use crate::interleavings::worlds::spec::{Policy, RETAIN_MS, Spec, TENANTS};
use crate::interleavings::worlds::world::Inbound;

impl Game<'_> {
    pub(crate) async fn submit(&mut self) -> Result<(), Violation> {
        let known: Vec<usize> = (0..self.world.specs.len()).filter(|s| self.world.specs[*s].budget.is_none()).collect();
        let again = !known.is_empty() && self.rng.random_bool(0.2);
        let spec = if again || known.len() >= 16 {
            let old = known[self.rng.random_range(0..known.len())];
            let mut spec = self.world.specs[old].clone();
            if spec.given.is_some() && self.rng.random_bool(0.4) {
                spec.digest.push('x');
                spec.once.push(true);
                spec.amounts.iter_mut().for_each(|amounts| amounts.push(Some(1)));
            }
            spec
        } else {
            let (number, now_ms) = (self.world.specs.len(), self.now_ms());
            Spec::random(&mut self.rng, number, now_ms, &self.tasks)
        };
        let number = self.world.specs.len();
        self.world.specs.push(spec.clone());
        if self.full {
            return self.refused_for_memory(&spec).await;
        }
        // Producers in other languages write the entry themselves.
        if self.rng.random_bool(0.15) {
            return self.submit_raw(number).await;
        }
        let submission = Submission {
            tenant: TenantId::new(spec.tenant).unwrap(),
            turn: spec.given.as_ref().map(|id| TurnId::new(id).unwrap()),
            digest: spec.digest.clone(),
            reply_to: spec.inbox.map(|inbox| InboxName::new(inbox).unwrap()),
            payload: number.to_string(),
        };
        let expected = self.world.submit(self.raw_now_ms, number);
        self.note(|| format!("submit #{number} {:?} {expected}", spec.given));
        let found = self.table.store.submit(&[submission]).await.map_err(|e| e.to_string())?.remove(0);
        let word = match &found {
            Submitted::Accepted { .. } => "OK",
            Submitted::Duplicate => "DUPLICATE",
            Submitted::Conflict => "CONFLICT",
            Submitted::QueueFull => "QUEUE_FULL",
            Submitted::InboxFull => "INBOX_FULL",
            Submitted::TooManyInboxes => "TOO_MANY_INBOXES",
            Submitted::Pressure => "PRESSURE",
        };
        same("submit", &expected, &word)?;
        if let Submitted::Accepted { entry } = found {
            let remembered = spec.given.is_some();
            self.world.push_inbound(Inbound {
                order: 0,
                id: Some(entry.clone()),
                origin: entry,
                spec: number,
                crashes: 0,
                remembered,
                holder: None,
            });
        }
        Ok(())
    }

    /// Memory is full: nothing new comes in, and nothing of it is remembered.
    async fn refused_for_memory(&mut self, spec: &Spec) -> Result<(), Violation> {
        let submission = Submission {
            tenant: TenantId::new(spec.tenant).unwrap(),
            turn: spec.given.as_ref().map(|id| TurnId::new(id).unwrap()),
            digest: spec.digest.clone(),
            reply_to: None,
            payload: String::new(),
        };
        match self.table.store.submit(&[submission]).await {
            Err(error) if error.is_out_of_memory() => Ok(()),
            // The id is looked for before the bound; and what was freed may be just enough for one more.
            Ok(answers)
                if matches!(answers[..], [Submitted::Pressure | Submitted::Duplicate | Submitted::Conflict]) =>
            {
                Ok(())
            }
            other => Err(format!("a turn is taken in although memory is full: {other:?}")),
        }
    }

    pub(crate) async fn submit_raw(&mut self, number: usize) -> Result<(), Violation> {
        let mut command = redis::cmd("XADD");
        command.arg(self.table.store.keys().key("turns")).arg("*").arg("turn").arg(number);
        // Whatever else a foreign writer adds costs its own entry at most.
        if self.rng.random_bool(0.2) {
            command.arg("x").arg("odd");
            for i in 0..4_500 {
                command.arg(format!("more{i}")).arg("");
            }
        }
        let entry: String = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| format!("xadd #{number} {entry}"));
        self.world.push_inbound(Inbound {
            order: 0,
            id: Some(entry.clone()),
            origin: entry,
            spec: number,
            crashes: 0,
            remembered: false,
            holder: None,
        });
        Ok(())
    }

    pub(crate) async fn delegate(&mut self) -> Result<(), Violation> {
        if self.full {
            return Ok(());
        }
        let old: Vec<usize> = (0..self.world.specs.len()).filter(|s| self.world.specs[*s].budget.is_some()).collect();
        let spec = if !old.is_empty() && self.rng.random_bool(0.3) {
            let mut spec = self.world.specs[old[self.rng.random_range(0..old.len())]].clone();
            if self.rng.random_bool(0.3) {
                spec.digest.push('x');
            }
            spec
        } else {
            let (number, now_ms) = (self.world.specs.len(), self.now_ms());
            Spec::random_task(&mut self.rng, number, now_ms, &self.tasks)
        };
        let number = self.world.specs.len();
        let id = spec.given.clone().unwrap_or_else(|| format!("j{number}"));
        self.world.specs.push(spec.clone());
        let delegation = Delegation {
            entry: None,
            tenant: TenantId::new(spec.tenant).unwrap(),
            task: TaskId::new(&id).unwrap(),
            given: spec.given.is_some(),
            digest: spec.digest.clone(),
            queue: Queue::Ready(spec.priority),
            agent: AgentId::new(spec.agent).unwrap(),
            deadline_ms: spec.deadline_ms,
            budget: spec.budget.unwrap_or(0),
            by: None,
            awaited: false,
            parent: spec.task.as_ref().map(|task| TaskId::new(task).unwrap()),
            reply_to: spec.inbox.map(|inbox| InboxName::new(inbox).unwrap()),
            meta: format!("m{number}"),
            call: "c0".into(),
            external_lease_ms: 0,
        };
        let expected = self.world.delegate(self.raw_now_ms, number, &id)?;
        self.note(|| format!("delegate {id} under {:?}: {expected}", spec.task));
        let found = self.table.store.delegate(&[delegation]).await.map_err(|e| e.to_string())?.remove(0);
        let found = match found {
            Delegated::Ok => "OK".to_owned(),
            Delegated::Duplicate => "DUPLICATE".into(),
            Delegated::Conflict => "CONFLICT".into(),
            Delegated::Refused(code) => format!("REFUSED {code}"),
            Delegated::Pressure => "PRESSURE".into(),
        };
        same("delegate", &expected, &found)?;
        if found == "OK" {
            self.tasks.push((spec.tenant, id));
        }
        let rows = self.rows_now();
        self.look_at_queues(&rows).await
    }

    pub(crate) async fn cancel(&mut self) -> Result<(), Violation> {
        let Some(name) = self.cancellable() else { return Ok(()) };
        let expected = self.world.cancel(self.raw_now_ms, &name)?;
        self.note(|| format!("cancel {name}: {expected}"));
        let found =
            self.table.store.cancel(&TurnName::parse(&name).unwrap(), "why").await.map_err(|e| e.to_string())?;
        let word = match found {
            Cancelled::Ok => "Ok",
            Cancelled::Flagged => "Flagged",
            Cancelled::Ended => "Done",
            Cancelled::Waiting => "Waiting",
            Cancelled::Full => "Full",
            Cancelled::Unknown => "Unknown",
        };
        same("cancel", &expected, &word.to_owned())
    }

    /// A turn or task that was admitted, or one that has not come yet: on the inbound stream, or not even there.
    fn cancellable(&mut self) -> Option<String> {
        if self.rng.random_bool(0.5) {
            let names: Vec<String> = self.world.turns.keys().cloned().collect();
            return (!names.is_empty()).then(|| names[self.rng.random_range(0..names.len())].clone());
        }
        let inbound = &self.world.inbound;
        if !inbound.is_empty() && self.rng.random_bool(0.7) {
            let entry = &inbound[self.rng.random_range(0..inbound.len())];
            let spec = &self.world.specs[entry.spec];
            let id = spec.given.clone().unwrap_or_else(|| format!("t{}", entry.origin));
            return Some(format!("{}:{id}", spec.tenant));
        }
        let number = self.world.specs.len();
        let tenant = TENANTS[self.rng.random_range(0..TENANTS.len())];
        Some(format!("{tenant}:{}{number}", ["g", "k", "j"][self.rng.random_range(0..3)]))
    }

    pub(crate) async fn announce(&mut self) -> Result<(), Violation> {
        let policy = Policy::random(&mut self.rng);
        self.policies.push(policy);
        let number = self.policies.len() as u64;
        self.world.clock(self.raw_now_ms);
        self.world.generation = number;
        self.note(|| format!("announce {number}: {policy:?}"));
        let found = self.table.store.announce(&format!("p{number}"), None, false).await.map_err(|e| e.to_string())?;
        same("announce", &Announced::InForce { generation: number }, &found)?;
        match self.table.stranger.announce("other", None, false).await {
            Err(StoreError::Shards { .. }) => Ok(()),
            other => Err(format!("a process with another number of shards announces its policy: {other:?}")),
        }
    }

    /// An operator sets a tenant's day cap while everything runs, or takes it back.
    pub(crate) async fn set_tenant(&mut self) -> Result<(), Violation> {
        let number = self.rng.random_range(0..TENANTS.len());
        let tenant = TenantId::new(TENANTS[number]).unwrap();
        // Each tenant is set in its own shard alone.
        if !self.table.store.is_home_of(&tenant) {
            return Ok(());
        }
        let mut set = self.caps_set(self.world.tenants_generation);
        let before = set[number];
        set[number] =
            self.rng.random_bool(0.75).then(|| self.rng.random_bool(0.8).then(|| self.rng.random_range(0..12)));
        self.note(|| format!("{tenant} is set: {:?}", set[number]));
        let store = &self.table.store;
        let changed = match set[number] {
            Some(max_actions_per_day) => {
                let policy = TenantPolicy { max_actions_per_day, ..TenantPolicy::default() };
                store.set_tenant(&tenant, &policy, "").await.map(|()| true)
            }
            None => store.unset_tenant(&tenant, "").await,
        };
        same("a tenant is set", &(set[number].is_some() || before.is_some()), &changed.map_err(|e| e.to_string())?)?;
        if set[number].is_some() || before.is_some() {
            self.world.tenants_generation += 1;
            self.caps_set.push(set);
        }
        let found = self.table.store.at_run_time().await.map_err(|e| e.to_string())?;
        same("generation of tenants", &self.world.tenants_generation, &found.generation)?;
        let declared = found.declared.iter().map(|(id, t)| (id.as_str(), t.max_actions_per_day)).collect::<Vec<_>>();
        let expected = TENANTS.iter().zip(set).filter_map(|(name, cap)| Some((*name, cap?))).collect::<Vec<_>>();
        same("tenants", &(expected, 0), &(declared, found.missing.len() + found.unreadable.len()))
    }

    /// Redis restarts: what it says of itself is another, and its data is what it was.
    pub(crate) async fn new_epoch(&mut self) -> Result<(), Violation> {
        // The test could not write what it plays.
        if self.full {
            return Ok(());
        }
        let meta = self.table.store.keys().key("meta");
        let known: Option<String> = redis::cmd("HGET")
            .arg(&meta)
            .arg("run_id")
            .query_async(&mut self.table.redis)
            .await
            .map_err(|e| e.to_string())?;
        if known.is_none() {
            return Ok(());
        }
        let mut command = redis::cmd("HSET");
        command.arg(&meta).arg("run_id").arg("0123456789abcdef");
        let () = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| "restart".into());
        // Whoever comes first notices; a beat of nobody in particular does.
        let consumer = ConsumerId::new("witness").unwrap();
        self.world.beat(self.raw_now_ms, "witness");
        self.world.epoch_ms = self.now_ms();
        self.table.store.beat(&consumer).await.map_err(|e| e.to_string()).map(drop)
    }

    /// TTLs are of Redis' own clock: what they would remove is removed by hand.
    pub(crate) async fn expire(&mut self) -> Result<(), Violation> {
        // What is about to be forgotten is still known to the witness.
        let rows = self.rows_now();
        self.look_at_queues(&rows).await?;
        let now_ms = self.now_ms();
        let gone = self.world.expire(now_ms, RETAIN_MS);
        self.note(|| format!("expire {gone:?}"));
        let mut command = redis::cmd("DEL");
        command.arg("nothing");
        for name in &gone {
            self.witness.forget(name);
            self.world.fences.retain(|(n, _), _| n != name);
            self.world.executed.retain(|(n, _), _| n != name);
            command.arg(self.table.store.keys().key(format!("done:{name}")));
            command.arg(self.table.store.keys().key(format!("id:{name}")));
        }
        let () = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        Ok(())
    }
}
