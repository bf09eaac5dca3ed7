//! What a person with redis-cli does to a fleet, and what a lost second leaves behind: consumers, groups and entries
//! are gone, and everything must end all the same (rule 21).

use rand::Rng;
use tickfleet_tests::referee::{Event, State};

use crate::interleavings::game::{Game, Violation};
use crate::interleavings::worlds::spec::QUEUES;
use crate::interleavings::worlds::world::{Name, Turn, World};

impl World {
    /// Turns whose slice is with nobody and on no queue.
    pub fn lost(&self) -> impl Iterator<Item = &Name> {
        let lost = |turn: &Turn| matches!(&turn.state, State::Out(_, slice) if slice.lost.is_some());
        self.turns.iter().filter(move |(_, turn)| lost(turn)).map(|(name, _)| name)
    }

    fn lose(&mut self, names: Vec<Name>, now_ms: i64) -> Result<(), String> {
        for name in names {
            self.apply(&name, Event::Lose, now_ms)?;
        }
        Ok(())
    }
}

impl Game<'_> {
    /// Something that nobody should do.
    pub(crate) async fn hand_in_redis(&mut self) -> Result<(), Violation> {
        match self.rng.random_range(0..4) {
            0 => self.delete_worker().await,
            1 => self.delete_scheduler().await,
            // Redis makes no group while its memory is full: the test could not write what it plays.
            _ if self.full => Ok(()),
            2 => self.lose_queue().await,
            _ => self.destroy_inbound_group().await,
        }
    }

    async fn delete_consumer(&mut self, stream: &str, consumer: &str) -> Result<(), Violation> {
        let mut command = redis::cmd("XGROUP");
        command.arg("DELCONSUMER").arg(self.table.store.keys().key(stream)).arg("workers").arg(consumer);
        let _: i64 = command.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| format!("somebody deletes {consumer} from {stream}"));
        Ok(())
    }

    /// What a worker holds of one queue is nobody's any more; the worker goes on.
    async fn delete_worker(&mut self) -> Result<(), Violation> {
        let queue = &QUEUES[self.rng.random_range(0..QUEUES.len())];
        let Some(holder) = self.world.turns.values().find_map(|turn| turn.holder.clone()) else { return Ok(()) };
        let held = self.world.held(queue, &holder);
        self.delete_consumer(&queue.to_string(), &holder).await?;
        let now_ms = self.now_ms();
        self.world.lose(held, now_ms)
    }

    /// What a scheduler holds is nobody's any more; the scheduler goes on.
    async fn delete_scheduler(&mut self) -> Result<(), Violation> {
        let Some(holder) = self.world.inbound.iter().find_map(|entry| entry.holder.clone()) else { return Ok(()) };
        self.delete_consumer("turns", &holder).await?;
        for entry in self.world.inbound.iter_mut().filter(|entry| entry.holder.as_ref() == Some(&holder)) {
            entry.holder = None;
        }
        Ok(())
    }

    /// All entries of a queue are gone, and who held them.
    async fn lose_queue(&mut self) -> Result<(), Violation> {
        let queue = &QUEUES[self.rng.random_range(0..QUEUES.len())];
        let rows = self.rows_now();
        self.look_at_queues(&rows).await?;
        let key = self.table.store.keys().key(queue);
        let mut pipe = redis::pipe();
        pipe.cmd("XTRIM").arg(&key).arg("MAXLEN").arg(0).ignore();
        pipe.cmd("XGROUP").arg("DESTROY").arg(&key).arg("workers").ignore();
        pipe.cmd("XGROUP").arg("CREATE").arg(&key).arg("workers").arg("0").ignore();
        let () = pipe.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| format!("{queue} is emptied"));
        let here = |turn: &Turn| self.world.is_on(turn, queue);
        let out = self.world.turns.iter().filter(|(_, turn)| here(turn)).map(|(name, _)| name.clone()).collect();
        let now_ms = self.now_ms();
        self.world.lose(out, now_ms)
    }

    /// Nobody holds any inbound entry, and all of them are read again.
    async fn destroy_inbound_group(&mut self) -> Result<(), Violation> {
        let key = self.table.store.keys().key("turns");
        let mut pipe = redis::pipe();
        pipe.cmd("XGROUP").arg("DESTROY").arg(&key).arg("workers").ignore();
        pipe.cmd("XGROUP").arg("CREATE").arg(&key).arg("workers").arg("0").ignore();
        let () = pipe.query_async(&mut self.table.redis).await.map_err(|e| e.to_string())?;
        self.note(|| "the group on turns is made anew".into());
        self.world.delivered = 0;
        for entry in &mut self.world.inbound {
            entry.holder = None;
        }
        Ok(())
    }
}
