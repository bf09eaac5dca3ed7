//! Beats, reaping, and what ends without having been admitted, in the referee's world.

use tickfleet_tests::referee::{Answer, Event, Fence};

use crate::interleavings::worlds::spec::{CRASHES_MAX, INBOX_UNREAD_MAX, LEASE_MS, QUEUES};
use crate::interleavings::worlds::world::{Inbound, Name, Turn, World};

/// What a reap does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    pub active: bool,
    pub requeued: u64,
    pub endings: Vec<Name>,
    pub dead: u64,
}

impl World {
    /// What `reap` does.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn reap(&mut self, raw_ms: i64) -> Result<Reaped, String> {
        let now_ms = self.clock(raw_ms);
        if self.reap_seen_ms.is_none_or(|seen_ms| 2 * (now_ms - seen_ms) > LEASE_MS) {
            self.reap_hold_ms = now_ms + LEASE_MS;
        }
        if self.epoch_ms > 0 {
            self.reap_hold_ms = self.reap_hold_ms.max(self.epoch_ms + LEASE_MS);
        }
        if self.beats.is_empty() {
            self.reap_hold_ms = self.reap_hold_ms.max(now_ms + LEASE_MS);
        }
        self.reap_seen_ms = Some(now_ms);
        let mut reaped = Reaped { active: now_ms >= self.reap_hold_ms, ..Reaped::default() };
        if !reaped.active {
            return Ok(reaped);
        }
        self.reap_inbound(now_ms, &mut reaped);
        for queue in QUEUES {
            let mut holders: Vec<String> = self.turns.values().filter_map(|t| t.holder.clone()).collect();
            holders.sort_unstable();
            holders.dedup();
            for holder in holders.iter().filter(|h| !self.alive(h, now_ms)).cloned().collect::<Vec<_>>() {
                for name in self.held(queue, &holder) {
                    let fence = self.turns[&name].state.fence().unwrap_or(Fence(0));
                    match self.apply(&name, Event::Reap { fence, crashes_max: CRASHES_MAX }, now_ms)? {
                        Answer::GivenOut => reaped.endings.push(name),
                        _ => reaped.requeued += 1,
                    }
                }
            }
        }
        Ok(reaped)
    }

    pub fn alive(&self, consumer: &str, now_ms: i64) -> bool {
        self.beats.get(consumer).is_some_and(|until_ms| *until_ms > now_ms)
    }

    fn reap_inbound(&mut self, now_ms: i64, reaped: &mut Reaped) {
        let mut holders: Vec<String> = self.inbound.iter().filter_map(|e| e.holder.clone()).collect();
        holders.sort_unstable();
        holders.dedup();
        holders.retain(|holder| !self.alive(holder, now_ms));
        for holder in holders {
            let (held, rest) = self.inbound.drain(..).partition::<Vec<_>, _>(|e| e.holder.as_ref() == Some(&holder));
            self.inbound = rest.into();
            for mut entry in held {
                let suspect = entry.id.is_some() && self.suspects.get(&holder) == entry.id.as_ref();
                entry.crashes += u32::from(entry.crashes == 0 || suspect);
                if entry.crashes >= CRASHES_MAX {
                    reaped.dead += 1;
                    self.dead += 1;
                    self.forget(&entry);
                } else {
                    reaped.requeued += 1;
                    self.push_inbound(Inbound { id: None, holder: None, ..entry });
                }
            }
        }
        // Delivered, held by nobody and not ended: their holder was deleted from the group.
        while self.inbound.front().is_some_and(|e| e.holder.is_none() && e.order <= self.delivered) {
            if let Some(entry) = self.inbound.pop_front() {
                reaped.requeued += 1;
                self.push_inbound(Inbound { id: None, holder: None, ..entry });
            }
        }
    }

    /// An entry ends without having been admitted or read: the id that `submit` remembered for it goes in a while.
    fn forget(&mut self, entry: &Inbound) {
        let spec = &self.specs[entry.spec];
        if let (true, Some(id)) = (entry.remembered, &spec.given) {
            let name = format!("{}:{id}", spec.tenant);
            if self.ids.get(&name).is_some_and(|(state, _)| *state == 'q') {
                self.fading.insert(name);
            }
        }
    }

    /// A turn is refused: its id is free again, unless it belongs to one of other content.
    fn free(&mut self, entry: &Inbound) {
        let spec = &self.specs[entry.spec];
        let Some(id) = &spec.given else { return };
        let name = format!("{}:{id}", spec.tenant);
        if self.ids.get(&name) == Some(&('q', spec.digest.clone())) {
            self.ids.remove(&name);
            self.fading.remove(&name);
        }
    }

    /// Whether `reject` found the entry still to be rejected.
    pub fn reject(&mut self, raw_ms: i64, entry: &str, readable: bool) -> bool {
        let now_ms = self.clock(raw_ms);
        let at = self.inbound.iter().position(|e| e.id.as_deref() == Some(entry));
        let entry = at.and_then(|at| self.inbound.remove(at));
        let Some(entry) = entry else { return false };
        self.dead += 1;
        if readable && self.specs[entry.spec].given.is_some() {
            self.free(&entry);
        } else {
            self.forget(&entry);
        }
        let spec = &self.specs[entry.spec];
        if let Some(inbox) = spec.inbox {
            let inbox = format!("{}:{inbox}", spec.tenant);
            if self.inbox_fits(&inbox, now_ms) && self.unread(&inbox) < 2 * INBOX_UNREAD_MAX {
                self.known_inboxes.insert(inbox.clone(), now_ms);
                self.inboxes.entry(inbox).or_default().push(format!("rejected {}", entry.origin));
            }
        }
        true
    }

    /// Rule 2 and a consumer's lease.
    pub fn beat(&mut self, raw_ms: i64, consumer: &str) {
        let now_ms = self.clock(raw_ms);
        if self.beats.is_empty() {
            self.reap_seen_ms = None;
        }
        self.beats.insert(consumer.to_owned(), now_ms + LEASE_MS);
    }

    /// Forgets what ended longer ago than records are kept, as the TTLs of Redis would.
    pub fn expire(&mut self, now_ms: i64, retain_ms: i64) -> Vec<Name> {
        let over = |t: &Turn| t.state.live().is_none() && t.ended_ms + retain_ms <= now_ms;
        let gone: Vec<Name> = self.turns.iter().filter(|(_, t)| over(t)).map(|(n, _)| n.clone()).collect();
        for name in &gone {
            self.turns.remove(name);
            self.ids.remove(name);
        }
        gone
    }
}
