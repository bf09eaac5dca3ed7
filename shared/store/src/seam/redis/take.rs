//! Takes entries from queues. A take that waits uses its own connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value, cmd};
use tickfleet_core::StreamKey;

use super::RedisStore;
use super::read::{list, taken_entries};
use crate::connection::command::RedisCommand;
use crate::script::reply::number_of;
use crate::seam::{GROUP, TakeRequest, TakenEntry};
use crate::{Connection, StoreError};

pub(super) type Idle = std::sync::Mutex<Vec<Blocking>>;

pub(super) struct Blocking {
    connection: MultiplexedConnection,
    wait: Duration,
    /// `Connection::moves` when the connection was opened. A connection to a replaced primary is not reused.
    moves: u64,
}

impl RedisStore {
    pub(super) async fn take_entries(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError> {
        if take.queues.is_empty() || take.count == 0 {
            return Ok(Vec::new());
        }
        let wait = (take.wait_ms > 0).then(|| Duration::from_millis(take.wait_ms));
        if let [_] = take.queues.as_slice() {
            return self.read_made(take, &take.queues, take.count, wait).await;
        }
        // Entries may arrive in several queues at once, so each queue gets an equal share.
        let each = (take.count / take.queues.len()).max(1);
        let mut taken = Vec::new();
        if wait.is_none() || self.has_backlog.load(Ordering::Relaxed) || take.count < take.queues.len() {
            let waiting = self.waiting(take).await?;
            self.has_backlog.store(!waiting.is_empty(), Ordering::Relaxed);
            for (queue, count) in waiting {
                match self.read_made(take, &[queue], count, None).await {
                    Ok(more) => taken.extend(more),
                    // The consumer already holds the entries of earlier queues, so return them instead of the error.
                    Err(error) if taken.is_empty() => return Err(error),
                    Err(_) => return Ok(taken),
                }
            }
        }
        if taken.is_empty() && wait.is_some() {
            taken = self.read_made(take, &take.queues, each, wait).await?;
            // A queue with its full share may have more entries. The next take then reads all backlogs, so that it can
            // prefer the first queue.
            let is_full = |queue: &StreamKey| taken.iter().filter(|entry| entry.queue == *queue).count() >= each;
            self.has_backlog.store(take.queues.iter().any(is_full), Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Creates missing queues.
    async fn read_made(
        &self,
        take: &TakeRequest,
        queues: &[StreamKey],
        count: usize,
        wait: Option<Duration>,
    ) -> Result<Vec<TakenEntry>, StoreError> {
        match self.read_queues(take, queues, count, wait).await {
            Err(StoreError::StateLost(_)) => {
                self.make_queues(queues).await?;
                self.read_queues(take, queues, count, wait).await
            }
            taken => taken,
        }
    }

    /// In order of preference, each with the number of entries to take.
    async fn waiting(&self, take: &TakeRequest) -> Result<Vec<(StreamKey, usize)>, StoreError> {
        let mut left = take.count;
        let mut shares = Vec::new();
        for (queue, backlog) in take.queues.iter().zip(self.backlogs(&take.queues).await?) {
            let share = usize::try_from(backlog.waiting).unwrap_or(usize::MAX).min(left);
            if share > 0 {
                shares.push((queue.clone(), share));
                left -= share;
            }
        }
        Ok(shares)
    }

    async fn read_queues(
        &self,
        take: &TakeRequest,
        queues: &[StreamKey],
        count: usize,
        wait: Option<Duration>,
    ) -> Result<Vec<TakenEntry>, StoreError> {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(take.consumer.as_bytes()).arg("COUNT").arg(count);
        if let Some(wait) = wait {
            command.arg("BLOCK").arg(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        }
        command.arg("STREAMS");
        for queue in queues {
            command.arg(self.key(queue));
        }
        for _ in queues {
            command.arg(">");
        }
        let reply = match wait {
            Some(wait) => self.connection.observe("read", false, self.block(&command, wait)).await?,
            None => self.connection.query::<Value>(RedisCommand::Read, &command).await?,
        };
        let by_queue = taken_entries(&self.prefix, reply);
        let taken = |(queue, entries): (StreamKey, Vec<_>)| {
            entries.into_iter().map(move |(entry, fields)| TakenEntry { queue: queue.clone(), entry, fields })
        };
        Ok(by_queue.into_iter().flat_map(taken).collect())
    }

    /// If the future is dropped, the connection is dropped, too. Otherwise Redis would deliver entries to a caller that
    /// no longer exists.
    pub(super) async fn block(&self, command: &Cmd, wait: Duration) -> Result<Value, StoreError> {
        let mut blocking = match self.idle(wait) {
            Some(blocking) => blocking,
            None => dial(&self.connection, wait).await?,
        };
        match command.query_async::<Value>(&mut blocking.connection).await {
            Ok(value) => {
                self.lock_idle().push(blocking);
                Ok(value)
            }
            Err(error) => {
                let moved = match error.code() {
                    Some("NOGROUP") => self.connection.migration_redirect(&mut blocking.connection).await,
                    _ => None,
                };
                let error = moved.unwrap_or(error);
                self.connection.handle_reader_error(&error).await;
                Err(StoreError::verb("read", error))
            }
        }
    }

    fn idle(&self, wait: Duration) -> Option<Blocking> {
        let moves = self.connection.moves();
        let mut idle = self.lock_idle();
        idle.retain(|blocking| blocking.moves == moves);
        let at = idle.iter().position(|blocking| blocking.wait >= wait)?;
        Some(idle.swap_remove(at))
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Blocking>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn dial(connection: &Connection, wait: Duration) -> Result<Blocking, StoreError> {
    let moves = connection.moves();
    Ok(Blocking { connection: connection.dedicated(wait).await?, wait, moves })
}

pub(super) fn field(reply: &[Value], name: &str) -> Option<Value> {
    let is_it = |value: &Value| matches!(value, Value::BulkString(bytes) if bytes == name.as_bytes());
    let at = reply.iter().step_by(2).position(is_it)?;
    reply.get(at * 2 + 1).cloned()
}

pub(super) fn held_by_group(reply: Value) -> u64 {
    let groups = list(reply).into_iter().map(list);
    let ours =
        |group: &Vec<Value>| matches!(field(group, "name"), Some(Value::BulkString(name)) if name == GROUP.as_bytes());
    let held = groups.into_iter().find(ours).and_then(|group| field(&group, "pending"));
    held.as_ref().and_then(number_of).and_then(|held| u64::try_from(held).ok()).unwrap_or_default()
}
