//! Both servers, given the same commands.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tickfleet_sim_redis::{Answer, Redis, Reply};
use tickfleet_testkit::RedisServer;

/// A connection to the real server that shows replies as they are.
struct Real {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Real {
    fn ask(&mut self, args: &[Vec<u8>]) -> Reply {
        let mut request = Vec::new();
        Reply::Array(args.iter().cloned().map(Reply::Bulk).collect()).encode(&mut request);
        self.stream.write_all(&request).unwrap();
        loop {
            if let Some((reply, length)) = parse(&self.read) {
                self.read.drain(..length);
                return reply;
            }
            let mut more = [0; 65_536];
            let length = self.stream.read(&mut more).unwrap();
            assert!(
                length > 0,
                "the server closed the connection after {}",
                show(&Reply::Array(args.iter().map(|arg| Reply::Bulk(arg.clone())).collect()))
            );
            self.read.extend_from_slice(&more[..length]);
        }
    }
}

/// The reply at the front, and its length; none while it is not whole.
fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, mut at) = (std::str::from_utf8(&bytes[1..end]).unwrap(), end + 2);
    let number = || line.parse::<i64>().unwrap();
    let reply = match bytes[0] {
        b'+' => Reply::Status(line.to_owned()),
        b'-' => Reply::Error(line.to_owned()),
        b':' => Reply::Int(number()),
        b'$' if number() < 0 => Reply::Nil,
        b'*' if number() < 0 => Reply::NilArray,
        b'$' => {
            let length = number() as usize;
            bytes.get(..at + length + 2)?;
            at += length + 2;
            Reply::Bulk(bytes[at - length - 2..at - 2].to_vec())
        }
        b'*' => {
            let mut items = Vec::new();
            for _ in 0..number() {
                let (item, length) = parse(&bytes[at..])?;
                items.push(item);
                at += length;
            }
            Reply::Array(items)
        }
        other => panic!("no reply begins with {other}"),
    };
    Some((reply, at))
}

/// A real server and a simulated one.
pub struct Pair {
    _server: RedisServer,
    real: Real,
    pub sim: Redis,
}

impl Pair {
    pub async fn new() -> Self {
        let server = RedisServer::start().await;
        let url = server.url();
        let path = url.split_once("://").unwrap().1.split('?').next().unwrap().to_owned();
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { _server: server, real: Real { stream, read: Vec::new() }, sim: Redis::new(1) }
    }

    /// Sets the simulated clock by the real one.
    pub fn set_clock(&mut self) {
        let Reply::Array(time) = self.real.ask(&[b"TIME".to_vec()]) else { panic!("no time") };
        let number = |part: &Reply| match part {
            Reply::Bulk(text) => std::str::from_utf8(text).unwrap().parse::<i64>().unwrap(),
            other => panic!("{other:?}"),
        };
        self.sim.set_time_us(number(&time[0]) * 1_000_000 + number(&time[1]));
    }

    /// What both answer; a read that would block answers nothing.
    pub fn ask(&mut self, args: &[Vec<u8>]) -> (Reply, Reply) {
        let sim = match self.sim.execute(args) {
            Answer::Now(reply) => reply,
            Answer::Block { .. } => Reply::NilArray,
        };
        (self.real.ask(args), sim)
    }

    /// Both must answer the same.
    pub fn same(&mut self, args: &[Vec<u8>], mask: fn(&mut Reply)) -> Result<(), String> {
        let (mut real, mut sim) = self.ask(args);
        mask(&mut real);
        mask(&mut sim);
        if real == sim {
            return Ok(());
        }
        let shown: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        Err(format!("{shown:?}\n  real {}\n  sim  {}", show(&real), show(&sim)))
    }
}

/// A reply as one reads it.
pub fn show(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
        Reply::Array(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", ")),
        other => format!("{other:?}"),
    }
}

/// Makes alike what may differ: the order of replies that have none.
pub fn sorted(reply: &mut Reply) {
    if let Reply::Array(items) = reply {
        items.iter_mut().for_each(sorted);
        items.sort_by_key(show);
    }
}

/// Makes alike what time or memory make differ: numbers after these names, and idle times of pending entries.
pub fn timeless(reply: &mut Reply) {
    let Reply::Array(items) = reply else { return };
    for at in 0..items.len() {
        let named = at > 0
            && [&b"idle"[..], b"radix-tree-nodes"].iter().any(|name| items[at - 1] == Reply::Bulk(name.to_vec()));
        if named {
            items[at] = Reply::Nil;
        }
        timeless(&mut items[at]);
    }
    if let [Reply::Bulk(_), Reply::Bulk(_), idle @ Reply::Int(_), Reply::Int(_)] = items.as_mut_slice() {
        *idle = Reply::Nil;
    }
}

/// The words of a line; `''` is an empty one.
pub fn words(line: &str) -> Vec<Vec<u8>> {
    line.split_whitespace().map(|word| if word == "''" { Vec::new() } else { word.as_bytes().to_vec() }).collect()
}
