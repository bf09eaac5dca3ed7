//! What a scheduler does by the clock: it releases lanes, promotes what is due, and sweeps.

use tickfleet_store::{Head, JudgedBy, Lane, LaneTurns, WaitingTurn};

use super::*;
use crate::interleavings::worlds::verbs::Releasing;

impl Scheduler {
    async fn due(&self, game: &mut Game<'_>) -> Result<(Vec<Name>, Vec<Name>), Violation> {
        let now_ms = game.now_ms();
        let due = game.table.store.due(now_ms, 100).await.map_err(|e| e.to_string())?;
        let (lanes, turns) = (due.lanes, due.turns);
        let mut lanes: Vec<Name> = lanes.iter().map(ToString::to_string).collect();
        let mut turns: Vec<Name> = turns.iter().map(ToString::to_string).collect();
        lanes.sort_unstable();
        turns.sort_unstable();
        let due = |(name, at_ms): (&Name, i64)| (at_ms <= now_ms).then(|| name.clone());
        let expected: Vec<Name> = game.world.lane_timers.iter().filter_map(|(n, at)| due((n, *at))).collect();
        same("lanes due", &expected, &lanes)?;
        let expected: Vec<Name> = game.world.turns.iter().filter_map(|(n, t)| due((n, t.timer_ms?))).collect();
        same("turns due", &expected, &turns)?;
        Ok((lanes, turns))
    }

    pub(super) async fn release(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let (lanes, _) = self.due(game).await?;
        if lanes.is_empty() {
            return Ok(());
        }
        let (policy, rows) = (game.policy(self.generation), self.rows(game));
        // Now and then an agent is no longer configured.
        let gone = game.rng.random_bool(0.02);
        let named: Vec<Lane> = lanes.iter().filter_map(|lane| Lane::parse(lane)).collect();
        let heads = game.table.store.heads(&named, RELEASE_BOUND, 1 << 20).await.map_err(|e| e.to_string())?;
        for (lane, heads) in lanes.iter().zip(&heads) {
            let found: Vec<&str> = heads.iter().map(|head| head.name.as_str()).collect();
            same("the head of a lane", &game.world.heads(lane), &found.iter().map(ToString::to_string).collect())?;
        }
        let judge = |tenant: &str, agent: &str| JudgedBy {
            agent: agent.to_owned(),
            policy: if gone { LanePolicy::NoAgent } else { LanePolicy::Row(number_of(tenant)) },
            stagger_ms: if gone { 0 } else { policy.stagger_ms(tenant, agent) },
        };
        let waiting = |head: &Head| {
            let spec = &game.world.specs[game.world.turns[&head.name].spec];
            let (by, counters) = (judge(spec.tenant, spec.agent), rows.counters(spec, head.next));
            WaitingTurn { name: head.name.clone(), next: head.next, by, counters: if gone { vec![] } else { counters } }
        };
        let batch = named.iter().zip(&heads).map(|(lane, heads)| {
            let turns = match lane {
                Lane::Agent(tenant, agent) if !rows.is_limited() => {
                    LaneTurns::Any(judge(tenant.as_str(), agent.as_str()))
                }
                _ => LaneTurns::These(heads.iter().map(waiting).collect()),
            };
            LaneRelease { lane: lane.clone(), turns }
        });
        let batch: Vec<_> = batch.collect();
        let with = Releasing { rows: &rows, policy: &policy, gone };
        let expected = game.world.release(game.raw_now_ms, self.by(), &with, &lanes)?;
        game.note(|| format!("{} releases {lanes:?}: {expected:?}", self.id));
        let limits = rows.limit_rows();
        let found = game.table.store.release(self.by(), RELEASE_BOUND, &rows.rows, &limits, &batch).await;
        let found = found.map_err(|e| e.to_string())?;
        match (expected, found) {
            (Batch::PolicyStale, ReleaseReply::PolicyStale) => self.generation = game.world.generation,
            (Batch::TenantsStale, ReleaseReply::TenantsStale) => self.tenants = game.world.tenants_generation,
            (Batch::DayStale, ReleaseReply::DayStale { .. }) => self.day_at_ms = game.now_ms(),
            (Batch::Decided(expected), ReleaseReply::Released(found)) => {
                game.look_at_queues(&rows).await?;
                let lost = game.rng.random_bool(0.08);
                for (expected, found) in expected.into_iter().zip(found) {
                    same(
                        "released",
                        &(expected.0, expected.1, expected.2.len()),
                        &(found.turns, found.calls, found.endings.len()),
                    )?;
                    self.take_endings(game, &expected.2, found.endings, lost)?;
                }
            }
            (expected, found) => return Err(format!("release: the referee says {expected:?}, Redis says {found:?}")),
        }
        Ok(())
    }

    pub(super) fn take_endings(
        &mut self,
        game: &mut Game<'_>,
        names: &[Name],
        endings: Vec<Ending>,
        lost: bool,
    ) -> Result<(), Violation> {
        for (name, ending) in names.iter().zip(endings) {
            let ending = take_ending(game, name, ending)?;
            if !lost {
                self.endings.push(ending);
            }
        }
        Ok(())
    }

    pub(super) async fn promote(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let (_, turns) = self.due(game).await?;
        let lost = game.rng.random_bool(0.08);
        for name in turns.into_iter().take(3) {
            let expected = game.world.promote(game.raw_now_ms, &name)?;
            game.note(|| format!("{} promotes {name}: {expected:?}", self.id));
            let found = game
                .table
                .store
                .promote(&[TurnName::parse(&name).unwrap()])
                .await
                .map_err(|e| e.to_string())?
                .remove(0);
            match (expected, found) {
                (Answer::Queued, Promoted::Promoted)
                | (Answer::Restored, Promoted::Restored)
                | (Answer::Queues, Promoted::Queues)
                | (Answer::Later, Promoted::Later)
                | (Answer::Done, Promoted::Gone) => {}
                (Answer::GivenOut, Promoted::Ending(ending)) => {
                    self.take_endings(game, &[name], vec![*ending], lost)?
                }
                (expected, found) => {
                    return Err(format!("promote {name}: the referee says {expected:?}, Redis says {found:?}"));
                }
            }
        }
        Ok(())
    }

    /// Looks at everything that is out, and wakes what is nowhere.
    pub(super) async fn sweep(&mut self, game: &mut Game<'_>) -> Result<(), Violation> {
        let swept = game.table.store.sweep(SweepAt::default()).await.map_err(|e| e.to_string())?;
        let expected: Vec<Name> = game.world.lost().cloned().collect();
        let found: Vec<Name> = swept.adrift.iter().map(ToString::to_string).collect();
        game.note(|| format!("{} sweeps: {found:?} are nowhere", self.id));
        same("slices that are nowhere", &expected, &found)?;
        same("turns without a timer", &Vec::new(), &swept.waiting_without_timer)?;
        if expected.is_empty() {
            return Ok(());
        }
        let now_ms = game.world.clock(game.raw_now_ms);
        for name in &expected {
            if let Some(timer_ms) = game.world.turns.get_mut(name).and_then(|turn| turn.timer_ms.as_mut()) {
                *timer_ms = now_ms.min(*timer_ms);
            }
        }
        game.table.store.wake(&swept.adrift).await.map_err(|e| e.to_string())
    }
}
