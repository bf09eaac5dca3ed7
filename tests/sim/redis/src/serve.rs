//! A server for clients of the network: for tests that put a simulated Redis in the place of a real one.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::{Answer, Redis, Reply, decode};

/// What happens at the socket.
enum Event {
    Came(UnixStream),
    Sent(u64, Vec<u8>),
    Left(u64),
}

/// A read that waits.
struct Blocked {
    command: Vec<Vec<u8>>,
    until_us: Option<i64>,
}

/// A connection.
struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    blocked: Option<Blocked>,
    /// Commands since `MULTI`.
    queued: Option<Vec<Vec<Vec<u8>>>>,
}

/// Longest wait between two looks at the clock.
const LOOK: Duration = Duration::from_millis(20);

/// Serves clients until one sends `SHUTDOWN`. `seed` makes the server's run id, `clock` tells its time, µs since 1970.
pub fn serve(listener: UnixListener, seed: u64, clock: impl Fn() -> i64) {
    let (sender, events) = channel();
    let doors = sender.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if doors.send(Event::Came(stream)).is_err() {
                break;
            }
        }
    });
    let server = Server { redis: Redis::new(seed), clients: BTreeMap::new(), seen: 0, next: 0 };
    server.run(&sender, &events, clock);
}

struct Server {
    redis: Redis,
    clients: BTreeMap<u64, Client>,
    /// The changes after which blocked reads were asked last.
    seen: u64,
    next: u64,
}

impl Server {
    fn run(mut self, sender: &Sender<Event>, events: &Receiver<Event>, clock: impl Fn() -> i64) {
        loop {
            let event = events.recv_timeout(LOOK);
            let now_us = clock();
            self.redis.set_time_us(now_us);
            match event {
                Ok(Event::Came(stream)) => self.welcome(stream, sender),
                Ok(Event::Left(id)) => drop(self.clients.remove(&id)),
                Ok(Event::Sent(id, bytes)) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.input.extend_from_slice(&bytes);
                    }
                    if !self.answer(id) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.wake(now_us);
        }
    }

    fn welcome(&mut self, stream: UnixStream, sender: &Sender<Event>) {
        let Ok(mut reads) = stream.try_clone() else { return };
        let (id, sender) = (self.next, sender.clone());
        self.next += 1;
        self.clients.insert(id, Client { stream, input: Vec::new(), blocked: None, queued: None });
        thread::spawn(move || {
            let mut bytes = [0; 16_384];
            while let Ok(length @ 1..) = reads.read(&mut bytes) {
                let sent = bytes.get(..length).unwrap_or_default().to_vec();
                if sender.send(Event::Sent(id, sent)).is_err() {
                    return;
                }
            }
            // Nobody to tell: the server has ended.
            let _ended = sender.send(Event::Left(id));
        });
    }

    /// Carries out what a client sent, up to a read that waits. Answers false where it is to end.
    fn answer(&mut self, id: u64) -> bool {
        let mut out = Vec::new();
        while let Some(client) = self.clients.get_mut(&id).filter(|client| client.blocked.is_none()) {
            let Ok(Some(command)) = decode(&mut client.input) else { break };
            let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
            match (name.as_slice(), &mut client.queued) {
                (b"SHUTDOWN", _) => return false,
                (b"MULTI", queued @ None) => {
                    *queued = Some(Vec::new());
                    Reply::ok().encode(&mut out);
                }
                (b"EXEC", queued @ Some(_)) => {
                    let commands = queued.take().unwrap_or_default();
                    let replies = commands.iter().map(|command| match self.redis.execute(command) {
                        Answer::Now(reply) => reply,
                        Answer::Block { .. } => Reply::NilArray,
                    });
                    Reply::Array(replies.collect()).encode(&mut out);
                }
                (_, Some(queued)) => {
                    queued.push(command);
                    Reply::Status("QUEUED".into()).encode(&mut out);
                }
                _ => match self.redis.execute(&command) {
                    Answer::Now(reply) => reply.encode(&mut out),
                    Answer::Block { until_us } => {
                        client.blocked = Some(Blocked { command: self.redis.settled(&command), until_us });
                    }
                },
            }
        }
        self.send(id, &out);
        true
    }

    fn send(&mut self, id: u64, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !bytes.is_empty() && client.stream.write_all(bytes).is_err() {
            self.clients.remove(&id);
        }
    }

    /// Asks blocked reads again after a write, and ends those whose time is over.
    fn wake(&mut self, now_us: i64) {
        let has_news = self.seen != self.redis.changes();
        self.seen = self.redis.changes();
        let blocked = self.clients.iter().filter(|(_, client)| client.blocked.is_some());
        for id in blocked.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let Some(waiting) = client.blocked.take() else { continue };
            let is_over = waiting.until_us.is_some_and(|until| until <= now_us);
            let answer = if has_news { self.redis.retry(&waiting.command) } else { Answer::Block { until_us: None } };
            let reply = match answer {
                Answer::Now(reply) => reply,
                Answer::Block { .. } if is_over => Reply::NilArray,
                Answer::Block { .. } => {
                    client.blocked = Some(waiting);
                    continue;
                }
            };
            let mut out = Vec::new();
            reply.encode(&mut out);
            self.send(id, &out);
            self.answer(id);
        }
    }
}
