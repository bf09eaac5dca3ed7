//! Trouble that is aimed strikes: those who lie in wait, strangers, hands that spoil something.

use tickfleet_model::ids::shard_of;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_sim_redis::Reply;

use super::watch::Caught;
use super::{Game, Role};
use crate::parts::operator::GUEST;
use crate::process::Process;
use crate::settings::Settings;
use crate::trouble::{Ambush, At, Odd, POISON, STRANGERS, Then};
use crate::world::{Made, World};

impl Game {
    /// Somebody is caught.
    pub(super) fn spring(&mut self, caught: &Caught) {
        let Some(ambush) = self.ambushes.get_mut(caught.ambush).filter(|ambush| ambush.times > 0) else { return };
        ambush.times = ambush.times.saturating_sub(1);
        let (process, now_us, then) = (caught.process, self.now_us, ambush.then);
        let is_ours =
            self.places.get(process).is_some_and(|place| matches!(place.role, Role::Scheduler | Role::Worker));
        self.site.world.tell(|| format!("AMBUSH for process {process}: {then:?}"));
        match then {
            Then::Dies { back_us } if is_ours && self.places[process].process.is_alive() => {
                self.places[process].process.die_after(0);
                self.places[process].back_us = Some(now_us + back_us);
                self.note_death(process);
            }
            Then::Stops { for_us } if is_ours => {
                self.places[process].process.stopped_us = now_us + for_us;
                self.note_death(process);
            }
            Then::IsHeld { for_us } => {
                self.site.net.hold(process, now_us + for_us);
                self.note_death(process);
            }
            Then::IsForgotten => {
                let Some((stream, consumer)) = &caught.read else { return };
                self.rules.is_robbed = true;
                self.site.world.facts().upsets.push((now_us, now_us));
                self.server.ask(&["XGROUP", "DELCONSUMER", stream, "workers", consumer]);
            }
            Then::Vanishes { back_us } if is_ours && self.places[process].process.is_alive() => {
                self.places[process].process.die_after(0);
                self.places[process].back_us = Some(now_us + back_us);
                self.note_death(process);
                self.vanish(process);
            }
            Then::IsCut => self.site.net.cut(process),
            Then::Dies { .. } | Then::Stops { .. } | Then::Vanishes { .. } => {}
        }
    }

    /// A hand deletes the consumers that a process was.
    fn vanish(&mut self, process: usize) {
        self.rules.is_robbed = true;
        let now_us = self.now_us;
        self.site.world.facts().upsets.push((now_us, now_us));
        let part = format!("-{}-", self.places[process].name);
        let streams: Vec<String> =
            self.server.redis.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        for stream in streams.iter().filter(|key| key.contains("}:ready:")) {
            self.delete_consumers(stream, &part);
        }
    }

    /// What strangers write.
    pub(super) fn odd(&mut self, odd: Odd) {
        self.odds += 1;
        let id = format!("odd-{}", self.odds);
        let (tenant, inbox, calls) = match odd {
            Odd::ToInbox { tenant, inbox } => (STRANGERS[tenant], format!("o{inbox}"), CALLS),
            Odd::Refused { tenant, inbox } => (STRANGERS[tenant], format!("o{inbox}"), "[]"),
            _ => (STRANGERS[0], "o0".into(), CALLS),
        };
        let (id, task) = match odd {
            Odd::Poison => (format!("{POISON}{id}"), ""),
            Odd::OfNoTask => (id, r#","task_id":"spoilt""#),
            _ => (id, ""),
        };
        let name = format!("{tenant}:{id}");
        let turn = format!(
            r#"{{"turn_id":"{id}","tenant":"{tenant}","agent":"agent0","reply_to":"{inbox}"{task},"calls":{calls}}}"#
        );
        let made = Made { agent: "agent0".into(), tools: vec!["look".into()], is_odd: true, ..Made::default() };
        self.site.world.facts().turns.insert(name.clone(), made);
        let prefix = self.shard_of(tenant);
        let stream = format!("{prefix}turns");
        self.server.set_now(self.now_us);
        match odd {
            Odd::Crashes => {
                self.server.ask(&["XADD", &stream, "*", "turn", &turn, "x", "often"]);
                self.who_reads_next_dies();
            }
            Odd::Fields => {
                let others: Vec<String> = (0..9_000).map(|n| format!("f{n}")).collect();
                let words = ["XADD", &stream, "*", "turn", &turn];
                let words: Vec<&str> = words.into_iter().chain(others.iter().map(String::as_str)).collect();
                self.server.ask(&words);
                self.who_reads_next_dies();
            }
            Odd::Unreadable => self.unreadable(&prefix, &name),
            Odd::OfNoTask => {
                self.server.ask(&["SET", &format!("{prefix}turn:{tenant}:spoilt"), "spoilt", "PX", "5000"]);
                self.server.ask(&["XADD", &stream, "*", "turn", &turn]);
            }
            Odd::Poison => {
                let then = Then::Dies { back_us: 50_000 };
                if !self.ambushes.iter().any(|ambush| ambush.at == At::Poisoned) {
                    self.ambushes.push(Ambush { at: At::Poisoned, then, times: u32::MAX });
                }
                self.server.ask(&["XADD", &stream, "*", "turn", &turn]);
            }
            Odd::ToInbox { .. } | Odd::Refused { .. } => drop(self.server.ask(&["XADD", &stream, "*", "turn", &turn])),
        }
    }

    /// What nobody has read is nobody's to take back.
    fn who_reads_next_dies(&mut self) {
        let (at, then) = (At::Reads(":turns"), Then::Dies { back_us: 50_000 });
        self.ambushes.push(Ambush { at, then, times: 1 });
    }

    /// The hand takes away what it has put in the place of a task's record.
    pub(super) fn tidy_up(&mut self) {
        self.server.set_now(self.now_us);
        let spoilt = format!("{}turn:{}:spoilt", self.shard_of(STRANGERS[0]), STRANGERS[0]);
        self.server.ask(&["DEL", &spoilt]);
    }

    /// As a producer of an older build, or a broken one: with an id that `submit` has remembered.
    fn unreadable(&mut self, prefix: &str, name: &str) {
        let stream = format!("{prefix}turns");
        self.server.ask(&["SET", &format!("{prefix}id:{name}"), "q0"]);
        let entry = self.server.ask(&["XADD", &stream, "*", "turn", "no JSON", "i", name]);
        if let Reply::Bulk(entry) = entry {
            self.server.ask(&["HSET", &format!("{prefix}queued"), name, &String::from_utf8_lossy(&entry)]);
        }
    }

    /// A producer uses an id a second time, for something else.
    pub(super) fn forge(&mut self, which: usize) {
        if self.loses_writes || self.site.settings.store.tenant_turns_max < 1_000 {
            // The id may be free again, and then it is nobody's.
            return;
        }
        let facts = self.site.world.facts();
        let is_known = |name: &&String| {
            let made = &facts.turns[*name];
            // A guest whom nobody knows is refused without a reply, and then its id is free.
            let is_of_guest = name.split(':').next() == Some(GUEST);
            made.accepted_us.is_some()
                && !made.is_odd
                && !made.is_task
                && !is_of_guest
                && !facts.replies.contains_key(*name)
        };
        let known: Vec<&String> = facts.turns.keys().filter(is_known).collect();
        let Some(name) = (!known.is_empty()).then(|| known[which % known.len()].clone()) else { return };
        drop(facts);
        let (tenant, id) = name.split_once(':').unwrap_or_default();
        let turn = format!(
            r#"{{"turn_id":"{id}","tenant":"{tenant}","agent":"agent0","reply_to":"odd","calls":[{{"id":"forged","name":"look"}}]}}"#
        );
        let stream = format!("{}turns", self.shard_of(tenant));
        self.server.set_now(self.now_us);
        self.server.ask(&["XADD", &stream, "*", "turn", &turn]);
    }

    /// A hand writes into an agent's budgets what is none.
    pub(super) fn spoil(&mut self, of: usize, agent: usize) {
        let tenant = STRANGERS[of];
        let Ok(agent) = AgentId::new(format!("agent{agent}")) else { return };
        let who = format!("{tenant}:{agent}");
        let key = format!("{}budgets", self.shard_of(tenant));
        self.server.set_now(self.now_us);
        // A full Redis refuses hands, too.
        if matches!(self.server.ask(&["HSET", &key, &who, "spoilt"]), Reply::Error(_)) {
            return;
        }
        if !self.loses_writes {
            // Before anything went out, nobody has seen what time its shard has.
            let today = self.oracle.shard_times().max().map_or(i64::MIN, |now_ms| self.oracle.day_of(now_ms));
            self.site.world.facts().spoiled.insert(who, today);
        }
        self.odd(Odd::ToInbox { tenant: of, inbox: 0 });
    }

    /// A scheduler starts that was told of another number of shards.
    pub(super) fn stray(&mut self) -> anyhow::Result<()> {
        // Where Redis does not know yet how many there are, or has forgotten, whoever comes first says it.
        let meta = |shard: u32| format!("{{sim:{shard}}}:meta");
        let mut shards = 0..self.site.settings.store.shards;
        if self.loses_writes || !shards.all(|it| self.server.ask(&["HEXISTS", &meta(it), "shards"]) == Reply::Int(1)) {
            return Ok(());
        }
        let place = self.places.len();
        let mut store = self.site.settings.store.clone();
        store.shards += 1;
        let settings = Settings { store, ..self.site.settings.clone() };
        // It is told that it may not, and ends: that is no complaint.
        let site = crate::parts::Site {
            settings,
            net: self.site.net.clone(),
            world: World::default(),
            scripts: self.site.scripts.clone(),
        };
        let name = format!("stray{place}");
        let process =
            Process::start(self.now_us, 0, place as u64, |shutdown| site.scheduler(place, &name, 0, shutdown).0)?;
        self.seat(Role::Stray, name, process, None);
        Ok(())
    }

    /// The prefix of the shard of a tenant.
    fn shard_of(&self, tenant: &str) -> String {
        let shards = self.site.settings.store.shards;
        format!("{{sim:{}}}:", TenantId::new(tenant).map_or(0, |tenant| shard_of(&tenant, shards)))
    }
}

/// The calls of a stranger's turn.
const CALLS: &str = r#"[{"name":"look","arguments":{"how":"works","ms":1}}]"#;
