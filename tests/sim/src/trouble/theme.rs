//! The theme of a game: one kind of trouble that comes again and again, in settings where it hurts. What is drawn evenly
//! seldom meets itself. Drawn last, by a generator of its own.

use rand::Rng;
use rand::rngs::StdRng;

use super::{Ambush, At, Kind, Odd, Removed, SECOND, Then, Trouble};
use crate::settings::{Settings, one_of};

/// A famine is longer than loops may stand still, µs.
const FAMINE_US: i64 = 50 * SECOND;
/// So long nobody takes in what comes before a famine, µs.
const BACKLOG_US: i64 = 3 * SECOND;
const HOUR_US: i64 = 3_600 * SECOND;

/// What a theme adds to.
struct Game<'a> {
    troubles: &'a mut Vec<Trouble>,
    settings: &'a mut Settings,
    chance: &'a mut StdRng,
}

/// Adds the theme of a game, if it has one.
pub(crate) fn theme(troubles: &mut Vec<Trouble>, settings: &mut Settings, chance: &mut StdRng) {
    let number = chance.random_range(0..15);
    let mut game = Game { troubles, settings, chance };
    match number {
        0 => game.famine(),
        1 | 2 => game.vanishings(),
        3 => game.nothing_outside(),
        4 => game.reloads(),
        5 => game.crowd(),
        6 => game.odd(),
        7 => game.forgeries(),
        8 => game.late(),
        9 => game.restarts(),
        10 => game.spoiled(),
        11 => game.narrow(),
        12 => game.cuts(),
        _ => {}
    }
    troubles.sort_by_key(|trouble| trouble.at_us);
}

impl Game<'_> {
    /// So often, at any time.
    fn often(&mut self, times: std::ops::Range<u32>, mut kind: impl FnMut(&Settings, &mut StdRng) -> Kind) {
        for _ in 0..self.chance.random_range(times) {
            let at_us = self.chance.random_range(0..self.settings.span_us);
            self.troubles.push(Trouble { at_us, kind: kind(self.settings, self.chance) });
        }
    }

    fn without(&mut self, word: &str) {
        self.troubles.retain(|trouble| trouble.kind.word() != word);
    }

    /// Memory is short for long, while a backlog waits for schedulers that come back just then; or Redis is slow and
    /// then silent for long.
    fn famine(&mut self) {
        let at_us = self.chance.random_range(0..self.settings.span_us / 2);
        if self.chance.random_bool(0.8) {
            self.without("memory");
            let percent = self.chance.random_range(20..100);
            for process in 0..self.settings.schedulers {
                let kind = Kind::Kill { process, polls: 0, back_us: BACKLOG_US + SECOND };
                self.troubles.push(Trouble { at_us, kind });
            }
            self.troubles.push(Trouble { at_us: at_us + BACKLOG_US, kind: Kind::Famine { percent } });
        } else {
            self.slow(1_500_000);
            self.troubles.push(Trouble { at_us, kind: Kind::Freeze { for_us: FAMINE_US } });
        }
        self.settings.span_us += FAMINE_US;
    }

    /// Everything takes up to so long, µs, all the time.
    fn slow(&mut self, most_us: i64) {
        let for_us = self.settings.span_us;
        self.troubles.push(Trouble { at_us: 0, kind: Kind::Slow { for_us, most_us } });
    }

    /// Who holds something leaves nothing behind.
    fn vanishings(&mut self) {
        self.often(1..5, |settings, chance| {
            let then = Then::Vanishes { back_us: chance.random_range(0..settings.store.lease_ms * 1_000) };
            let at = one_of(chance, &[At::Reads("ready:"), At::Asks("begin")]);
            Kind::Ambush(Ambush { at, then, times: chance.random_range(1..3) })
        });
    }

    /// The queue of the runtimes outside is gone.
    fn nothing_outside(&mut self) {
        self.settings.has_tasks = true;
        self.often(4..16, |settings, chance| Kind::RemoveOutside {
            part: one_of(chance, &[Removed::Key, Removed::Group, Removed::Consumers]),
            tenant: chance.random_range(0..settings.tenants.len()),
        });
    }

    /// Two configurations by turns, with windows that begin at different times; and a day that ends at once.
    fn reloads(&mut self) {
        let settings = &mut *self.settings;
        settings.schedulers = settings.schedulers.max(2);
        settings.agents.truncate(1);
        let (calls, day) = (one_of(self.chance, &[3, 6, 10]), one_of(self.chance, &[20, 1_000]));
        for caps in &mut settings.caps {
            (caps.calls_per_tick, caps.tick_ms, caps.max_actions_per_day) = (calls, 5_000, day);
        }
        settings.caps[1].tick_ms = one_of(self.chance, &[700, 1_500, 4_000]);
        settings.caps[1].time_zone = one_of(self.chance, &["UTC", "Asia/Tokyo", "Pacific/Kiritimati"]).into();
        self.often(15..40, |settings, chance| Kind::Reload {
            process: chance.random_range(0..settings.schedulers),
            version: chance.random_range(0..2),
        });
        if self.chance.random_bool(0.5) {
            self.often(1..3, |_, chance| Kind::RedisClock { by_us: chance.random_range(1..14) * HOUR_US });
        }
    }

    /// Strangers crowd the inboxes.
    fn crowd(&mut self) {
        self.settings.store.inboxes_max = one_of(self.chance, &[9, 8]);
        self.settings.store.inbox_unread_max = one_of(self.chance, &[3, 10_000]);
        let inboxes = one_of(self.chance, &[4, 14]);
        self.often(60..150, |_, chance| {
            let (tenant, inbox) = (chance.random_range(0..2), chance.random_range(0..inboxes));
            Kind::Odd(one_of(chance, &[Odd::ToInbox { tenant, inbox }, Odd::Refused { tenant, inbox }]))
        });
    }

    /// Strangers write what only seems to be of ours.
    fn odd(&mut self) {
        let all = [Odd::Crashes, Odd::Fields, Odd::Poison, Odd::Unreadable, Odd::OfNoTask];
        let favourite = one_of(self.chance, &all);
        self.often(8..25, |_, chance| {
            Kind::Odd(if chance.random_bool(0.5) { favourite } else { one_of(chance, &all) })
        });
    }

    /// Producers use ids again.
    fn forgeries(&mut self) {
        self.without("redis_lost_writes");
        self.settings.store.tenant_turns_max = 1_000;
        self.often(20..60, |_, chance| Kind::Forge { which: chance.random_range(0..1_000) });
    }

    /// What was sent on connections that were given up arrives when there are new ones.
    fn cuts(&mut self) {
        (self.settings.store.lease_ms, self.settings.store.ending_lease_ms) = (10_000, 10_000);
        self.slow(800_000);
        self.troubles.push(Trouble { at_us: 0, kind: Kind::Late { late_us: 5 * SECOND } });
        if self.chance.random_bool(0.5) {
            // The next cut would mend what the last one has done: who has a new connection looks at what it holds.
            self.without("cut");
            return self
                .often(1..4, |settings, chance| Kind::Cut { process: chance.random_range(0..settings.schedulers) });
        }
        self.often(10..40, |settings, chance| Kind::Cut {
            process: chance.random_range(0..settings.schedulers + settings.workers),
        });
    }

    /// What workers and schedulers send arrives when others have taken over long since.
    fn late(&mut self) {
        let lease_ms = one_of(self.chance, &[1_000, 3_000]);
        (self.settings.store.lease_ms, self.settings.store.ending_lease_ms) = (lease_ms, lease_ms);
        self.troubles.push(Trouble { at_us: 0, kind: Kind::Late { late_us: 20 * SECOND } });
        self.often(10..25, |settings, chance| Kind::Hold {
            process: chance.random_range(0..settings.schedulers + settings.workers),
            for_us: chance.random_range(lease_ms * 500..lease_ms * 4_000),
        });
    }

    /// Redis restarts, and loses nothing.
    fn restarts(&mut self) {
        for caps in &mut self.settings.caps {
            (caps.tick_ms, caps.calls_per_tick) = (5_000, one_of(self.chance, &[3, 10]));
        }
        self.often(3..8, |_, chance| Kind::Restart { down_us: chance.random_range(0..SECOND), lost_us: 0 });
    }

    /// A hand spoils budgets.
    fn spoiled(&mut self) {
        self.without("redis_lost_writes");
        self.often(4..12, |_, chance| Kind::Spoil { tenant: chance.random_range(0..2), agent: 0 });
    }

    /// Whatever is bounded is full.
    fn narrow(&mut self) {
        let store = &mut self.settings.store;
        match self.chance.random_range(0..4) {
            0 => store.tenant_turns_max = 3,
            1 => store.tenant_ready_max = 1,
            2 => store.turns_max = 2,
            _ => (store.tenant_turns_max, store.turns_max) = (5, 3),
        }
        self.settings.turns = 119;
    }
}
