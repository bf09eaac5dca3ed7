//! A store that another process on this machine serves over a Unix socket. Both processes must have the same version,
//! because they share the message types.
//!
//! The server sends a greeting. Then a connection carries one request at a time. A request is a frame with the shard's
//! number and a `SocketRequest`, and the reply is one frame. A frame is its length (4 bytes, little endian) and a
//! postcard message.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tickfleet_core::{CounterState, EntryId, Query, RecordKey, SetKey, StreamKey, Transaction, Value};
use tickfleet_model::Durability;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::inspect::{Entry, FollowRequest, QueueState, Range, ShardStats, StreamState};
use super::{BatchResult, Consumer, QueueCounts, Store, TakeRequest, TakenEntry, TrimBounds};
use crate::{Confirmed, StoreError};

pub const SCHEME: &str = "tickfleet+unix://";

/// In bytes. A page of entries is the largest message.
const FRAME_MAX: u32 = 1 << 30;
const GREETING: &str = concat!("tickfleet ", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Serialize, Deserialize)]
enum SocketRequest {
    Read(Vec<Query>),
    Commit(Vec<Transaction>),
    CommitDurably(Vec<Transaction>, Durability, Duration),
    Take(TakeRequest),
    EnsureQueues(Vec<StreamKey>),
    Backlog(StreamKey),
    Consumers(StreamKey),
    RemoveConsumer(StreamKey, String),
    Trim(StreamKey, TrimBounds),
    Acknowledged(StreamKey),
    SampleMemory,
    StreamBytes(StreamKey),
    Scan(String, u64, usize),
    ScanCounters(String, u64, usize),
    ScanMembers(SetKey, String, u64, usize),
    Last(SetKey, usize, usize),
    Rank(SetKey, String),
    Entries(StreamKey, Range),
    Page(StreamKey, Range),
    Follow(FollowRequest),
    QueueStates(Vec<StreamKey>),
    Holder(StreamKey, EntryId),
    ShardStats,
    DropStream(StreamKey),
}

/// Only processes of the same user may connect.
#[derive(Debug)]
pub struct SocketServer {
    listener: UnixListener,
    path: PathBuf,
    owner: u32,
}

impl SocketServer {
    /// Replaces the socket file of a process that has ended. [`io::ErrorKind::AddrInUse`] means that another process
    /// serves the socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.to_owned(), owner: std::fs::metadata(path)?.uid() })
    }

    pub async fn serve(self, shards: Vec<crate::Store>) {
        let shards: Arc<[crate::Store]> = shards.into();
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == self.owner) => {
                        let shards = Arc::clone(&shards);
                        connections.spawn(async move {
                            if let Err(error) = serve_connection(stream, &shards).await {
                                tracing::debug!(%error, "a command's connection to this fleet broke");
                            }
                        });
                    }
                    Ok(_) => tracing::warn!("refused a connection of another user to this fleet"),
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a command's connection; retrying");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        // The next start replaces a file that cannot be removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// If the client disconnects, the request in progress is dropped.
async fn serve_connection(mut stream: UnixStream, shards: &[crate::Store]) -> io::Result<()> {
    write_frame(&mut stream, GREETING.as_bytes()).await?;
    let (mut from, mut to) = stream.split();
    while let Some(frame) = read_frame(&mut from).await? {
        let (shard, ask): (usize, SocketRequest) = postcard::from_bytes(&frame).map_err(io::Error::other)?;
        let answer = match shards.get(shard) {
            Some(store) => tokio::select! {
                answer = answer(store.seam(), ask) => answer,
                // A client sends nothing while it waits for a reply, so this read ends only if the client disconnects.
                _ = from.read_u8() => return Ok(()),
            },
            None => encoded::<()>(Err(StoreError::Shards {
                ours: u32::try_from(shard).unwrap_or(u32::MAX),
                stored: shards.len().to_string(),
            })),
        };
        write_frame(&mut to, &answer.map_err(io::Error::other)?).await?;
    }
    Ok(())
}

async fn answer(store: &dyn Store, ask: SocketRequest) -> postcard::Result<Vec<u8>> {
    match ask {
        SocketRequest::Read(queries) => encoded(store.read(&queries).await),
        SocketRequest::Commit(batch) => encoded(store.commit(&batch).await),
        SocketRequest::CommitDurably(batch, durability, at_most) => {
            encoded(store.commit_durably(&batch, durability, at_most).await)
        }
        SocketRequest::Take(take) => encoded(store.take(&take).await),
        SocketRequest::EnsureQueues(queues) => encoded(store.ensure_queues(&queues).await),
        SocketRequest::Backlog(queue) => encoded(store.backlog(&queue).await),
        SocketRequest::Consumers(queue) => encoded(store.consumers(&queue).await),
        SocketRequest::RemoveConsumer(queue, consumer) => encoded(store.remove_consumer(&queue, &consumer).await),
        SocketRequest::Trim(log, keep) => encoded(store.trim(&log, keep).await),
        SocketRequest::Acknowledged(log) => encoded(store.acknowledged(&log).await),
        SocketRequest::SampleMemory => encoded(store.sample_memory().await),
        SocketRequest::StreamBytes(stream) => encoded(store.stream_bytes(&stream).await),
        SocketRequest::Scan(prefix, cursor, count) => encoded(store.scan(&prefix, cursor, count).await),
        SocketRequest::ScanCounters(limit, cursor, count) => encoded(store.scan_counters(&limit, cursor, count).await),
        SocketRequest::ScanMembers(set, prefix, cursor, count) => {
            encoded(store.scan_members(&set, &prefix, cursor, count).await)
        }
        SocketRequest::Last(set, skip, count) => encoded(store.last(&set, skip, count).await),
        SocketRequest::Rank(set, member) => encoded(store.rank(&set, &member).await),
        SocketRequest::Entries(stream, range) => encoded(store.entries(&stream, &range).await),
        SocketRequest::Page(stream, range) => encoded(store.page(&stream, &range).await),
        SocketRequest::Follow(follow) => encoded(store.follow(&follow).await),
        SocketRequest::QueueStates(queues) => encoded(store.queue_states(&queues).await),
        SocketRequest::Holder(queue, entry) => encoded(store.holder(&queue, &entry).await),
        SocketRequest::ShardStats => encoded(store.shard_stats().await),
        SocketRequest::DropStream(stream) => encoded(store.drop_stream(&stream).await),
    }
}

fn encoded<T: Serialize>(answer: Result<T, StoreError>) -> postcard::Result<Vec<u8>> {
    postcard::to_stdvec(&answer.map_err(|error| error.to_string()))
}

async fn read_frame(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let length = match from.read_u32_le().await {
        Ok(length) if length <= FRAME_MAX => length,
        Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut frame = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut frame).await?;
    if frame.len() < length as usize { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Some(frame)) }
}

async fn write_frame(to: &mut (impl AsyncWriteExt + Unpin), frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).ok().filter(|length| *length <= FRAME_MAX);
    let length = length.ok_or(io::ErrorKind::FileTooLarge)?;
    to.write_all(&[&length.to_le_bytes(), frame].concat()).await?;
    to.flush().await
}

#[derive(Debug)]
pub struct SocketStore {
    path: PathBuf,
    shard: usize,
    idle: Mutex<Vec<UnixStream>>,
}

impl SocketStore {
    #[must_use]
    pub fn new(path: &Path, shard: u32) -> Self {
        Self { path: path.to_owned(), shard: shard as usize, idle: Mutex::default() }
    }

    async fn request<T: DeserializeOwned>(&self, ask: SocketRequest) -> Result<T, StoreError> {
        let answer: Result<T, String> =
            self.exchange(&ask).await.map_err(|source| StoreError::DevSocket { path: self.path.clone(), source })?;
        answer.map_err(StoreError::Remote)
    }

    async fn exchange<T: DeserializeOwned>(&self, ask: &SocketRequest) -> io::Result<T> {
        let request = postcard::to_stdvec(&(self.shard, ask)).map_err(io::Error::other)?;
        let idle = self.idle().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        write_frame(&mut stream, &request).await?;
        let answer = read_frame(&mut stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.idle().push(stream);
        postcard::from_bytes(&answer).map_err(io::Error::other)
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect(&self.path).await?;
        let greeting = read_frame(&mut stream).await?.unwrap_or_default();
        if greeting != GREETING.as_bytes() {
            let theirs = String::from_utf8_lossy(&greeting);
            return Err(io::Error::other(format!("it runs {theirs:?}, and this is {GREETING}: use the same version")));
        }
        Ok(stream)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<UnixStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for SocketStore {
    async fn read(&self, queries: &[Query]) -> Result<Vec<Value>, StoreError> {
        self.request(SocketRequest::Read(queries.to_vec())).await
    }

    async fn commit(&self, batch: &[Transaction]) -> Result<BatchResult, StoreError> {
        self.request(SocketRequest::Commit(batch.to_vec())).await
    }

    async fn commit_durably(
        &self,
        batch: &[Transaction],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(BatchResult, Confirmed), StoreError> {
        self.request(SocketRequest::CommitDurably(batch.to_vec(), durability, at_most)).await
    }

    async fn take(&self, take: &TakeRequest) -> Result<Vec<TakenEntry>, StoreError> {
        self.request(SocketRequest::Take(take.clone())).await
    }

    async fn ensure_queues(&self, queues: &[StreamKey]) -> Result<(), StoreError> {
        self.request(SocketRequest::EnsureQueues(queues.to_vec())).await
    }

    async fn backlog(&self, queue: &StreamKey) -> Result<QueueCounts, StoreError> {
        self.request(SocketRequest::Backlog(queue.clone())).await
    }

    async fn consumers(&self, queue: &StreamKey) -> Result<Vec<Consumer>, StoreError> {
        self.request(SocketRequest::Consumers(queue.clone())).await
    }

    async fn remove_consumer(&self, queue: &StreamKey, consumer: &str) -> Result<bool, StoreError> {
        self.request(SocketRequest::RemoveConsumer(queue.clone(), consumer.to_owned())).await
    }

    async fn trim(&self, log: &StreamKey, keep: TrimBounds) -> Result<u64, StoreError> {
        self.request(SocketRequest::Trim(log.clone(), keep)).await
    }

    async fn acknowledged(&self, log: &StreamKey) -> Result<Option<u128>, StoreError> {
        self.request(SocketRequest::Acknowledged(log.clone())).await
    }

    async fn sample_memory(&self) -> Result<(u64, u64), StoreError> {
        self.request(SocketRequest::SampleMemory).await
    }

    async fn stream_bytes(&self, stream: &StreamKey) -> Result<u64, StoreError> {
        self.request(SocketRequest::StreamBytes(stream.clone())).await
    }

    async fn scan(&self, prefix: &str, cursor: u64, count: usize) -> Result<(Vec<RecordKey>, u64), StoreError> {
        self.request(SocketRequest::Scan(prefix.to_owned(), cursor, count)).await
    }

    async fn scan_counters(
        &self,
        limit: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, CounterState)>, u64), StoreError> {
        self.request(SocketRequest::ScanCounters(limit.to_owned(), cursor, count)).await
    }

    async fn scan_members(
        &self,
        set: &SetKey,
        prefix: &str,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Arc<str>, u64)>, u64), StoreError> {
        self.request(SocketRequest::ScanMembers(set.clone(), prefix.to_owned(), cursor, count)).await
    }

    async fn last(&self, set: &SetKey, skip: usize, count: usize) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        self.request(SocketRequest::Last(set.clone(), skip, count)).await
    }

    async fn rank(&self, set: &SetKey, member: &str) -> Result<Option<u64>, StoreError> {
        self.request(SocketRequest::Rank(set.clone(), member.to_owned())).await
    }

    async fn entries(&self, stream: &StreamKey, range: &Range) -> Result<Vec<Entry>, StoreError> {
        self.request(SocketRequest::Entries(stream.clone(), range.clone())).await
    }

    async fn page(&self, stream: &StreamKey, range: &Range) -> Result<(Vec<Entry>, StreamState), StoreError> {
        self.request(SocketRequest::Page(stream.clone(), range.clone())).await
    }

    async fn follow(&self, follow: &FollowRequest) -> Result<Vec<Entry>, StoreError> {
        self.request(SocketRequest::Follow(follow.clone())).await
    }

    async fn queue_states(&self, queues: &[StreamKey]) -> Result<Vec<QueueState>, StoreError> {
        self.request(SocketRequest::QueueStates(queues.to_vec())).await
    }

    async fn holder(&self, queue: &StreamKey, entry: &EntryId) -> Result<Option<(Arc<str>, i64)>, StoreError> {
        self.request(SocketRequest::Holder(queue.clone(), entry.clone())).await
    }

    async fn shard_stats(&self) -> Result<ShardStats, StoreError> {
        self.request(SocketRequest::ShardStats).await
    }

    async fn drop_stream(&self, stream: &StreamKey) -> Result<(), StoreError> {
        self.request(SocketRequest::DropStream(stream.clone())).await
    }
}
