//! Blocking reads: one dedicated connection per reader, made anew after every trouble.

use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::connection::question::Question;
use crate::keys::GROUP;
use crate::script::reply::{into_text, unexpected};
use crate::{Connection, Store, StoreError};
use tickfleet_model::ConsumerId;

/// One entry of a stream.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its id.
    pub id: String,
    /// Its fields, in order, as bytes: what producers write is not trusted to be text.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// The first field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(n, _)| n == name.as_bytes()).map(|(_, v)| v.as_slice())
    }

    /// Bytes of all fields.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(n, v)| n.len() + v.len()).sum()
    }
}

/// Reads streams of one shard in the name of one consumer.
pub struct Reader {
    connection: Connection,
    prefix: String,
    consumer: ConsumerId,
    block: Duration,
    current: Option<MultiplexedConnection>,
    /// The moves of the primary that were known when that was made.
    moves: u64,
}

impl Store {
    /// A reader in the name of `consumer` whose blocking reads last up to `block`.
    #[must_use]
    pub fn reader(&self, consumer: &ConsumerId, block: Duration) -> Reader {
        Reader {
            connection: self.connection.clone(),
            prefix: self.keys.prefix().to_owned(),
            consumer: consumer.clone(),
            block,
            current: None,
            moves: 0,
        }
    }
}

impl Reader {
    /// Returns true if the next read makes a new connection: what an earlier one was given may never have arrived, so
    /// look at [`Self::mine`] first. A connection to a primary that has been replaced is not used again.
    #[must_use]
    pub fn is_fresh(&mut self) -> bool {
        if self.moves != self.connection.moves() {
            self.current = None;
        }
        self.current.is_none()
    }

    /// Waits until one of `streams` (suffixes, most important first) has something new, at most as long as the
    /// reader blocks; takes up to `count` entries of each. Answers which stream each entry came from.
    ///
    /// # Errors
    /// [`StoreError`]; the connection is discarded, for a blocked read may still deliver to it.
    pub async fn wait(&mut self, streams: &[String], count: usize) -> Result<Vec<(usize, Entry)>, StoreError> {
        self.read(streams, count, Some(self.block), ">").await
    }

    /// Takes up to `count` entries that wait in one stream, without blocking.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn take(&mut self, stream: &str, count: usize) -> Result<Vec<Entry>, StoreError> {
        let streams = [stream.to_owned()];
        Ok(self.read(&streams, count, None, ">").await?.into_iter().map(|(_, entry)| entry).collect())
    }

    /// The consumer's own pending entries of one stream: what was delivered, and perhaps never arrived.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub async fn mine(&mut self, stream: &str, count: usize) -> Result<Vec<Entry>, StoreError> {
        let streams = [stream.to_owned()];
        Ok(self.read(&streams, count, None, "0").await?.into_iter().map(|(_, entry)| entry).collect())
    }

    async fn read(
        &mut self,
        streams: &[String],
        count: usize,
        block: Option<Duration>,
        from: &str,
    ) -> Result<Vec<(usize, Entry)>, StoreError> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(self.consumer.as_str()).arg("COUNT").arg(count);
        if let Some(block) = block {
            command.arg("BLOCK").arg(u64::try_from(block.as_millis()).unwrap_or(u64::MAX).max(1));
        }
        command.arg("STREAMS");
        for stream in streams {
            command.arg(format!("{}{stream}", self.prefix));
        }
        for _ in streams {
            command.arg(from);
        }
        // While the answer is awaited the connection belongs to the future: if that is dropped, so is the
        // connection, and nothing is delivered to a reader that has gone.
        let current = self.current.take();
        if current.is_none() {
            self.moves = self.connection.moves();
        }
        let ask = async {
            let mut connection = match current {
                Some(connection) => connection,
                None => self.connection.dedicated(self.block).await?,
            };
            match command.query_async::<Value>(&mut connection).await {
                Ok(value) => Ok((connection, value)),
                Err(error) => {
                    // Streams that are gone may have moved to another server: nothing is lost then.
                    let moved = match error.code() {
                        Some("NOGROUP") => self.connection.is_on_its_way(&mut connection).await,
                        _ => None,
                    };
                    let error = moved.unwrap_or(error);
                    self.connection.heard_by_a_reader(&error).await;
                    Err(StoreError::verb("read", error))
                }
            }
        };
        let (connection, value) = self.connection.observe(Question::Read.as_str(), block.is_none(), ask).await?;
        self.current = Some(connection);
        entries(&self.prefix, streams, value)
    }
}

/// Reads the answer of XREADGROUP or XREAD: `[[stream, [[id, [field, value, …]], …]], …]`, as array or map.
pub(crate) fn entries(prefix: &str, streams: &[String], value: Value) -> Result<Vec<(usize, Entry)>, StoreError> {
    let pairs: Vec<(Value, Value)> = match value {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(pairs) => pairs,
        Value::Array(items) => items.into_iter().filter_map(pair).collect(),
        other => return Err(unexpected("read", &other)),
    };
    let mut found = Vec::new();
    for (stream, list) in pairs {
        let name = into_text(stream).unwrap_or_default();
        let suffix = name.strip_prefix(prefix).unwrap_or(&name);
        let index = streams.iter().position(|s| s == suffix).unwrap_or(0);
        let Value::Array(list) = list else { continue };
        found.extend(list.into_iter().filter_map(entry).map(|e| (index, e)));
    }
    Ok(found)
}

fn pair(value: Value) -> Option<(Value, Value)> {
    let Value::Array(items) = value else { return None };
    let mut items = items.into_iter();
    Some((items.next()?, items.next()?))
}

/// One entry; none where its body was deleted while it was pending.
pub(crate) fn entry(value: Value) -> Option<Entry> {
    let (id, fields) = pair(value)?;
    let id = into_text(id)?;
    let Value::Array(fields) = fields else { return Some(Entry { id, fields: Vec::new() }) };
    let mut fields = fields.into_iter();
    let mut list = Vec::with_capacity(fields.len() / 2);
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        list.push((into_bytes(name)?, into_bytes(value)?));
    }
    Some(Entry { id, fields: list })
}

fn into_bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        other => into_text(other).map(String::into_bytes),
    }
}
