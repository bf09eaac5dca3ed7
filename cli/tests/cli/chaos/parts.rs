//! What stands around the fleet: the tools' server with its ledger, a proxy before Redis, and what append-only files say.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::judge::{Admitted, Run};

/// The server that all tools reach. It writes down each call when it comes.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Run>>>);

impl Ledger {
    /// Starts it; answers its address, too.
    pub async fn start() -> (Self, String) {
        let ledger = Self::default();
        let router = Router::new().fallback(Self::enter).with_state(ledger.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (ledger, address)
    }

    async fn enter(State(ledger): State<Self>, Json(body): Json<Value>) -> Json<Value> {
        let (agent, tool) = (body["agent"].as_str().unwrap().to_owned(), body["tool"].as_str().unwrap());
        let run = Run { agent, number: body["number"].as_u64().unwrap(), once: tool == "pay" };
        ledger.0.lock().unwrap().push(run);
        // So that kills fall between effect and answer.
        tokio::time::sleep(Duration::from_millis(15)).await;
        Json(json!({"number": body["number"]}))
    }

    pub fn runs(&self) -> Vec<Run> {
        self.0.lock().unwrap().clone()
    }
}

/// What the proxy does with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Open,
    /// Connections end, and none is made.
    Cut,
    /// Each piece takes 150 ms more.
    Slow,
    /// Connections stay, and nothing comes through.
    HalfOpen,
}

/// A TCP proxy before Redis.
pub struct Proxy {
    pub address: String,
    wire: watch::Sender<Wire>,
}

impl Proxy {
    pub async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = watch::Sender::new(Wire::Open);
        let seen = wire.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *seen.borrow() == Wire::Cut {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(carry(from_client, to_server, seen.clone()));
                tokio::spawn(carry(from_server, to_client, seen.clone()));
            }
        });
        Self { address, wire }
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            Ok(_) = wire.wait_for(|wire| *wire == Wire::Cut) => return,
        };
        let now = *wire.borrow();
        if now == Wire::HalfOpen {
            // What was under way when the wire died is lost with it.
            drop(wire.wait_for(|wire| *wire != Wire::HalfOpen).await);
            return;
        }
        if now == Wire::Slow {
            // The delay is the fault that is played.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// When each call went out first, as the append-only files of a server have it.
pub fn admitted(dir: &Path) -> Vec<Admitted> {
    let mut first: BTreeMap<(String, u64), Admitted> = BTreeMap::new();
    let mut files: Vec<_> = fs::read_dir(dir.join("appendonlydir")).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".incr.aof"));
    for file in files {
        for words in commands(&fs::read(file).unwrap()) {
            let is_slice = words.len() > 4 && words[0] == b"XADD" && words[1].windows(7).any(|part| part == b":ready:");
            if !is_slice {
                continue;
            }
            let Some(id) = words.iter().position(|word| is_entry_id(word)) else { continue };
            let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
            let (at_ms, mut turn, mut position) =
                (text(words[id].split(|b| *b == b'-').next().unwrap()).parse().unwrap(), String::new(), 0);
            for pair in words[id + 1..].chunks_exact(2) {
                match pair[0].as_slice() {
                    b"t" => turn = text(&pair[1]),
                    b"p" => position = text(&pair[1]).parse().unwrap(),
                    b"c" => {
                        // Turns are named <agent>-<number>.
                        let agent = turn.split([':', '-']).nth(1).unwrap_or_default().to_owned();
                        let call = Admitted { agent, at_ms };
                        let seen = first.entry((turn.clone(), position)).or_insert_with(|| call.clone());
                        *seen = seen.clone().min(call);
                        position += 1;
                    }
                    _ => {}
                }
            }
        }
    }
    first.into_values().collect()
}

fn is_entry_id(word: &[u8]) -> bool {
    let mut parts = word.split(|b| *b == b'-');
    let digits = |part: Option<&[u8]>| part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    word.len() > 13 && digits(parts.next()) && digits(parts.next()) && parts.next().is_none()
}

/// The commands of a file; a line beginning with `#` is none, and a last one that is cut off neither.
fn commands(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    fn line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        *bytes = rest;
        Some(line)
    }
    fn number(line: &[u8]) -> Option<usize> {
        std::str::from_utf8(line.get(1..)?).ok()?.parse().ok()
    }
    let mut all = Vec::new();
    while let Some(head) = line(&mut bytes) {
        if head.first() != Some(&b'*') {
            continue;
        }
        let mut words = Vec::new();
        for _ in 0..number(head).unwrap_or(0) {
            let Some(length) = line(&mut bytes).and_then(number) else { return all };
            let Some(word) = bytes.get(..length) else { return all };
            words.push(word.to_vec());
            bytes = bytes.get(length + 2..).unwrap_or_default();
        }
        all.push(words);
    }
    all
}
