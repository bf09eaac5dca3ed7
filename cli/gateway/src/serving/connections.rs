//! Connections, from their first byte. A connection is unknown until it has sent a valid key or token. Unknown
//! connections are bounded in number and in time: silent connections cannot keep others out. A known connection counts
//! against the bounds of its caller.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::request::Parts;
use axum::serve::{IncomingStream, Listener};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::peer::Peer;
use super::permits::{Permit, PermitBounds, PermitPool};
use crate::problem::Problem;
use crate::verbs::CallerIdentity;

/// Includes connections in a TLS handshake.
const UNKNOWN_MAX: usize = 512;
const UNKNOWN_TIME_MAX: Duration = Duration::from_secs(30);
/// Each bound exceeds the sum of the bounds for waiting requests and for streams.
const KNOWN_MAX: PermitBounds = PermitBounds { all: usize::MAX, tenant: 5_000, caller: 4_000 };

#[derive(Debug, Clone)]
pub(crate) struct Connections {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    unknown: Mutex<UnauthenticatedConnections>,
    known: PermitPool,
}

/// Newer connections have larger numbers.
#[derive(Debug, Default)]
struct UnauthenticatedConnections {
    next: u64,
    all: BTreeMap<u64, (Peer, CancellationToken)>,
}

impl UnauthenticatedConnections {
    /// The address with the most unknown connections loses its oldest one.
    fn close_oldest(&mut self) {
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        for (peer, _) in self.all.values() {
            *counts.entry(*peer).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let oldest = self.all.iter().find(|(_, (peer, _))| counts.get(peer) == Some(&most));
        if let Some((_, closed)) = oldest.map(|(number, _)| *number).and_then(|number| self.all.remove(&number)) {
            closed.cancel();
        }
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self { inner: Arc::new(Inner { unknown: Mutex::default(), known: PermitPool::new(KNOWN_MAX) }) }
    }
}

impl Connections {
    pub(crate) fn register(&self, peer: Peer) -> Arc<OpenConnection> {
        let closed = CancellationToken::new();
        let mut unknown = self.inner.unknown.lock();
        if unknown.all.len() >= UNKNOWN_MAX {
            unknown.close_oldest();
        }
        let number = unknown.next;
        unknown.next += 1;
        unknown.all.insert(number, (peer, closed.clone()));
        drop(unknown);
        Arc::new(OpenConnection { peer, number, closed, permit: OnceLock::new(), inner: Arc::clone(&self.inner) })
    }
}

pub(crate) struct OpenConnection {
    peer: Peer,
    number: u64,
    closed: CancellationToken,
    permit: OnceLock<Permit>,
    inner: Arc<Inner>,
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenConnection")
            .field("peer", &self.peer)
            .field("is_known", &self.is_known())
            .finish_non_exhaustive()
    }
}

impl OpenConnection {
    /// Later valid keys do not change the caller. 429: the caller or its tenant has too many connections.
    pub(crate) fn assign_to(&self, holder: &CallerIdentity) -> Result<(), Problem> {
        if self.is_known() {
            return Ok(());
        }
        let permit = self.inner.known.take(holder).ok_or_else(|| Problem::too_many_connections(KNOWN_MAX.caller))?;
        // If two requests race, this releases the second permit.
        drop(self.permit.set(permit));
        self.inner.unknown.lock().all.remove(&self.number);
        Ok(())
    }

    fn is_known(&self) -> bool {
        self.permit.get().is_some()
    }

    pub(super) async fn until_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.closed.run_until_cancelled(work).await
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.inner.unknown.lock().all.remove(&self.number);
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RequestConnection(pub(super) Arc<OpenConnection>);

impl RequestConnection {
    /// `None` if the request did not come over a network.
    pub(crate) fn of(parts: &Parts) -> Option<&Self> {
        parts.extensions.get::<ConnectInfo<Self>>().map(|origin| &origin.0)
    }

    pub(super) fn peer(&self) -> Peer {
        self.0.peer
    }

    pub(crate) fn assign_to(&self, holder: &CallerIdentity) -> Result<(), Problem> {
        self.0.assign_to(holder)
    }
}

impl Connected<IncomingStream<'_, PlainListener>> for RequestConnection {
    fn connect_info(stream: IncomingStream<'_, PlainListener>) -> Self {
        stream.remote_addr().clone()
    }
}

pub(crate) struct PlainListener {
    listener: TcpListener,
    connections: Connections,
}

impl PlainListener {
    pub(crate) const fn new(listener: TcpListener, connections: Connections) -> Self {
        Self { listener, connections }
    }
}

impl Listener for PlainListener {
    type Io = ConnectionStream<TcpStream>;
    type Addr = RequestConnection;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let connection = self.connections.register(Peer::of(address));
        (ConnectionStream::new(stream, Arc::clone(&connection)), RequestConnection(connection))
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        let address = self.listener.local_addr()?;
        Ok(RequestConnection(self.connections.register(Peer::of(address))))
    }
}

/// Reads and writes fail when an unknown connection is out of time or is closed.
pub(crate) struct ConnectionStream<S> {
    stream: S,
    connection: Arc<OpenConnection>,
    /// Ready when the time of an unknown connection is over, or when the connection is closed.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl<S> ConnectionStream<S> {
    pub(super) fn new(stream: S, connection: Arc<OpenConnection>) -> Self {
        let closed = connection.closed.clone();
        let over = async move {
            _ = tokio::time::timeout(UNKNOWN_TIME_MAX, closed.cancelled()).await;
        };
        Self { stream, connection, over: Box::pin(over), is_over: false }
    }

    fn check_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.connection.is_known() {
            return Ok(());
        }
        self.is_over = self.is_over || self.over.as_mut().poll(cx).is_ready();
        if self.is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ConnectionStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ConnectionStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
pub(super) fn origin(address: &str) -> ConnectInfo<RequestConnection> {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    let address: std::net::SocketAddr = address.parse().unwrap();
    ConnectInfo(RequestConnection(Connections::default().register(Peer::of(address))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tokio::io::{AsyncReadExt, duplex};
    use tokio::time::advance;

    use super::*;
    use crate::verbs::{CredentialKind, TenantScope};

    fn peer(address: &str) -> Peer {
        Peer::of(format!("{address}:1000").parse().unwrap())
    }

    fn holder(id: &str) -> CallerIdentity {
        let tenant = TenantScope::One(tickfleet_model::TenantId::new("acme").unwrap());
        CallerIdentity { credential: CredentialKind::Key, tenant, id: id.into() }
    }

    #[test]
    fn the_busiest_address_loses_its_oldest_unauthenticated_connection() {
        let connections = Connections::default();
        let known = connections.register(peer("192.0.2.1"));
        known.assign_to(&holder("shop")).unwrap();
        let quiet = connections.register(peer("192.0.2.2"));
        let silent: Vec<_> = (0..UNKNOWN_MAX - 1).map(|_| connections.register(peer("192.0.2.3"))).collect();
        assert!(!silent.iter().any(|connection| connection.closed.is_cancelled()), "there is room for so many");
        let late: Vec<_> = (4..14).map(|last| connections.register(peer(&format!("192.0.2.{last}")))).collect();
        assert!(silent[..10].iter().all(|connection| connection.closed.is_cancelled()), "the oldest");
        assert!(!silent[10..].iter().chain(&late).any(|connection| connection.closed.is_cancelled()));
        assert!(!quiet.closed.is_cancelled() && !known.closed.is_cancelled());
        drop((silent, late, quiet));
        assert!(connections.inner.unknown.lock().all.is_empty(), "whoever leaves makes room");
    }

    #[test]
    fn the_oldest_connection_closes_if_every_address_has_one() {
        let connections = Connections::default();
        let from = |number: usize| peer(&format!("10.0.{}.{}", number / 256, number % 256));
        let all: Vec<_> = (0..=UNKNOWN_MAX).map(|number| connections.register(from(number))).collect();
        assert!(all[0].closed.is_cancelled() && !all[1].closed.is_cancelled());
    }

    #[test]
    fn the_connections_of_one_caller_are_limited() {
        let connections = Connections::default();
        let open_connections: Vec<_> =
            (0..=KNOWN_MAX.caller).map(|_| connections.register(peer("192.0.2.1"))).collect();
        let refused: Vec<_> =
            open_connections.iter().filter_map(|connection| connection.assign_to(&holder("shop")).err()).collect();
        assert_eq!(refused.len(), 1);
        assert!(refused[0].summary().1, "it may be tried again");
        open_connections[KNOWN_MAX.caller].assign_to(&holder("till")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_unauthenticated_connection_times_out_and_others_stay_open() {
        let connections = Connections::default();
        let (near, _far) = duplex(64);
        let mut unknown = ConnectionStream::new(near, connections.register(peer("192.0.2.1")));
        let read = tokio::spawn(async move { unknown.read_u8().await });
        let (near, mut far) = duplex(64);
        let connection = connections.register(peer("192.0.2.1"));
        let mut known = ConnectionStream::new(near, Arc::clone(&connection));
        connection.assign_to(&holder("shop")).unwrap();
        advance(UNKNOWN_TIME_MAX + Duration::from_secs(1)).await;
        assert_eq!(read.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        tokio::io::AsyncWriteExt::write_u8(&mut far, 7).await.unwrap();
        assert_eq!(known.read_u8().await.unwrap(), 7);
    }
}
