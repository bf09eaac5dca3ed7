//! What a scheduler does by the clock: it releases lanes, promotes what is due, and sweeps.

use super::*;

impl Scheduler {
    async fn due(&self, game: &mut Game<'_>) -> Result<(Vec<Name>, Vec<Name>), Violation> {
        let now_ms = game.now_ms();
        let (lanes, turns) = game.table.store.due(now_ms, 100).await.map_err(|e| e.to_string())?;
        let mut lanes: Vec<Name> = lanes.into_iter().map(|(tenant, agent)| format!("{tenant}:{agent}")).collect();
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
        let split = |lane: &Name| lane.split_once(':').map(|(t, a)| (t.to_owned(), a.to_owned())).unwrap_or_default();
        let stagger = |lane: &Name| {
            let (tenant, agent) = split(lane);
            (!gone).then(|| policy.stagger_ms(&tenant, &agent))
        };
        let expected: Vec<_> = lanes.iter().map(|lane| (lane.clone(), stagger(lane))).collect();
        let batch = expected.iter().map(|(lane, stagger)| {
            let (tenant, agent) = split(lane);
            let policy = stagger.map_or(LanePolicy::NoAgent, |_| LanePolicy::Row(number_of(&tenant)));
            let (tenant, agent) = (TenantId::new(tenant).unwrap(), AgentId::new(agent).unwrap());
            LaneRelease { tenant, agent, policy, stagger_ms: stagger.unwrap_or(0) }
        });
        let batch: Vec<_> = batch.collect();
        let expected = game.world.release(game.raw_now_ms, self.by(), &rows, &expected)?;
        game.note(|| format!("{} releases {lanes:?}: {expected:?}", self.id));
        let found =
            game.table.store.release(self.by(), RELEASE_BOUND, &rows, &batch).await.map_err(|e| e.to_string())?;
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
