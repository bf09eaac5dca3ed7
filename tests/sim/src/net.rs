//! The network between processes and Redis: connections whose bytes take their time, are held back, or are cut off.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of a connection; never used twice.
pub(crate) type WireId = u64;

/// What reaches Redis.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Bytes of a connection.
    Bytes(WireId, Vec<u8>),
    /// The other end has closed it.
    Closed(WireId),
}

/// The network. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Net(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now_us: i64,
    chance: StdRng,
    wires: BTreeMap<WireId, Wire>,
    made: WireId,
    /// Whether Redis takes connections.
    is_open: bool,
    /// Per process, until when nothing gets through, µs.
    held: BTreeMap<usize, i64>,
    /// Until when bytes take up to this long, µs.
    slow: (i64, i64),
    /// The longest time that bytes of a connection may travel whose process has given it up, µs.
    late_us: i64,
}

#[derive(Debug)]
struct Wire {
    owner: usize,
    up: VecDeque<(i64, Vec<u8>)>,
    down: VecDeque<(i64, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// When Redis hears that the process has closed it.
    closed_us: Option<i64>,
    /// Whether Redis, or the network, has closed it.
    is_broken: bool,
    reader: Option<Waker>,
}

impl Net {
    pub(crate) fn new(seed: u64, now_us: i64) -> Self {
        let chance = StdRng::seed_from_u64(seed);
        let (wires, held) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State {
            now_us,
            chance,
            wires,
            made: 0,
            is_open: true,
            held,
            slow: (0, 0),
            late_us: 20_000,
        })))
    }

    pub(crate) fn set_now(&self, now_us: i64) {
        self.0.lock().now_us = now_us;
    }

    /// Whether Redis takes connections from here on. Where it does not, all that there are break.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.0.lock().is_open = is_open;
    }

    /// Nothing between this process and Redis gets through until then; it is not lost.
    pub(crate) fn hold(&self, process: usize, until_us: i64) {
        self.0.lock().held.insert(process, until_us);
    }

    /// Bytes take up to `most_us` until then.
    pub(crate) fn slow_down(&self, until_us: i64, most_us: i64) {
        self.0.lock().slow = (until_us, most_us);
    }

    /// Bytes of given-up connections may arrive this much later from here on.
    pub(crate) fn set_late(&self, late_us: i64) {
        self.0.lock().late_us = late_us;
    }

    /// All trouble of the network is over.
    pub(crate) fn calm(&self) {
        let mut state = self.0.lock();
        (state.is_open, state.slow, state.late_us) = (true, (0, 0), 20_000);
        state.held.clear();
    }

    /// A new connection of this process; an error where Redis takes none.
    pub(crate) fn connect(&self, owner: usize) -> io::Result<Stream> {
        let mut state = self.0.lock();
        if !state.is_open {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        state.made += 1;
        let wire = Wire {
            owner,
            up: VecDeque::new(),
            down: VecDeque::new(),
            arrived: VecDeque::new(),
            closed_us: None,
            is_broken: false,
            reader: None,
        };
        let id = state.made;
        state.wires.insert(id, wire);
        Ok(Stream { net: self.clone(), id })
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().wires.values().all(|wire| wire.up.is_empty() && wire.down.is_empty())
    }

    /// Whose connection it is.
    pub(crate) fn owner(&self, id: WireId) -> Option<usize> {
        self.0.lock().wires.get(&id).map(|wire| wire.owner)
    }

    /// Breaks the connections of a process: what is under way arrives up to a random byte, in both directions.
    pub(crate) fn cut(&self, process: usize) {
        let mut state = self.0.lock();
        let state = &mut *state;
        for wire in state.wires.values_mut().filter(|wire| wire.owner == process && !wire.is_broken) {
            cut_off(&mut wire.up, &mut state.chance);
            cut_off(&mut wire.down, &mut state.chance);
            let last = wire.up.back().map_or(state.now_us, |(due, _)| *due);
            wire.closed_us = Some(last);
            wire.break_off();
        }
    }

    /// Breaks all connections from Redis' side: it has gone. What was under way to it is lost.
    pub(crate) fn drop_all(&self) {
        for wire in self.0.lock().wires.values_mut() {
            wire.up.clear();
            wire.closed_us = Some(0);
            wire.break_off();
        }
    }

    /// What has reached Redis by now, in the order of arrival. Connections that both ends have left are forgotten.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        let mut state = self.0.lock();
        let state = &mut *state;
        let (now_us, held) = (state.now_us, &state.held);
        let mut found: Vec<(i64, WireId, Arrival)> = Vec::new();
        state.wires.retain(|id, wire| {
            if held.get(&wire.owner).is_some_and(|until| *until > now_us) {
                return true;
            }
            while wire.up.front().is_some_and(|(due, _)| *due <= now_us) {
                let Some((due, bytes)) = wire.up.pop_front() else { break };
                found.push((due, *id, Arrival::Bytes(*id, bytes)));
            }
            let is_over = wire.up.is_empty() && wire.closed_us.is_some_and(|due| due <= now_us);
            if is_over {
                found.push((now_us, *id, Arrival::Closed(*id)));
            }
            !is_over || !wire.arrived.is_empty()
        });
        found.sort_by_key(|(due, id, _)| (*due, *id));
        found.into_iter().map(|(_, _, arrival)| arrival).collect()
    }

    /// Redis answers on a connection. What nobody waits for any more is lost.
    pub(crate) fn answer(&self, id: WireId, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let delay_us = state.delay_us();
        let now_us = state.now_us;
        if let Some(wire) = state.wires.get_mut(&id).filter(|wire| !wire.is_broken) {
            let due = (now_us + delay_us).max(wire.down.back().map_or(0, |(due, _)| *due));
            wire.down.push_back((due, bytes));
        }
    }

    /// Hands to the processes what has reached them by now.
    pub(crate) fn deliver(&self) {
        let mut state = self.0.lock();
        let state = &mut *state;
        let (now_us, held) = (state.now_us, &state.held);
        for wire in state.wires.values_mut() {
            if held.get(&wire.owner).is_some_and(|until| *until > now_us) {
                continue;
            }
            while wire.down.front().is_some_and(|(due, _)| *due <= now_us) {
                let Some((_, bytes)) = wire.down.pop_front() else { break };
                wire.arrived.extend(bytes);
                wire.wake();
            }
        }
    }
}

impl State {
    fn delay_us(&mut self) -> i64 {
        let (until, most) = self.slow;
        let usual = self.chance.random_range(30..600);
        match self.chance.random_range(0..200) {
            _ if self.now_us < until => self.chance.random_range(0..most.max(1)),
            0 => self.chance.random_range(0..40_000),
            _ => usual,
        }
    }
}

impl Wire {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn break_off(&mut self) {
        self.down.clear();
        self.is_broken = true;
        self.wake();
    }
}

/// Loses the end of what is under way, from a random byte on.
fn cut_off(under_way: &mut VecDeque<(i64, Vec<u8>)>, chance: &mut StdRng) {
    let kept = chance.random_range(0..=under_way.len());
    under_way.truncate(kept);
    if let Some((_, bytes)) = under_way.back_mut() {
        let kept = chance.random_range(0..=bytes.len());
        bytes.truncate(kept);
    }
}

/// A process' end of a connection.
#[derive(Debug)]
pub(crate) struct Stream {
    net: Net,
    id: WireId,
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.net.0.lock();
        let Some(wire) = state.wires.get_mut(&self.id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if wire.arrived.is_empty() {
            if wire.is_broken {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            wire.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = wire.arrived.len().min(buf.remaining());
        for byte in wire.arrived.drain(..count) {
            buf.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.net.0.lock();
        let delay_us = state.delay_us();
        let now_us = state.now_us;
        let Some(wire) = state.wires.get_mut(&self.id).filter(|wire| !wire.is_broken) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let due = (now_us + delay_us).max(wire.up.back().map_or(0, |(due, _)| *due));
        wire.up.push_back((due, bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    /// What was sent is under way, and may be for long: a program that has given a connection up, or has died, does not
    /// take its bytes back.
    fn drop(&mut self) {
        let mut state = self.net.0.lock();
        let state = &mut *state;
        let (now_us, late) = (state.now_us, state.chance.random_range(0..state.late_us.max(1)));
        let Some(wire) = state.wires.get_mut(&self.id) else { return };
        wire.arrived.clear();
        wire.break_off();
        if let Some((due, _)) = wire.up.front_mut() {
            *due += late;
        }
        let mut last = 0;
        for (due, _) in &mut wire.up {
            *due = last.max(*due);
            last = *due;
        }
        wire.closed_us.get_or_insert(last.max(now_us));
    }
}
