//! The environment of the fleet: the tools' server with its ledger, and a proxy in front of Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::verdict::ToolRun;
use crate::support::serve::serve;

#[derive(Clone, Default)]
pub struct ToolServer {
    entries: Arc<Mutex<Vec<ToolRun>>>,
}

impl ToolServer {
    pub async fn start() -> (Self, String) {
        let ledger = Self::default();
        let router = Router::new().fallback(Self::enter).with_state(ledger.clone());
        (ledger, serve(router).await)
    }

    async fn enter(State(ledger): State<Self>, Json(body): Json<Value>) -> Json<Value> {
        let agent = body["agent"].as_str().unwrap().to_owned();
        let tool = body["tool"].as_str().unwrap();
        let turn = body["turn"].as_str().unwrap().to_owned();
        let run = ToolRun { agent, turn, number: body["number"].as_u64().unwrap(), once: tool == "pay" };
        ledger.entries.lock().unwrap().push(run);
        // Leaves time to kill a worker between the effect and the response.
        tokio::time::sleep(Duration::from_millis(15)).await;
        Json(json!({"number": body["number"]}))
    }

    pub fn runs(&self) -> Vec<ToolRun> {
        self.entries.lock().unwrap().clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyState {
    Open,
    Cut,
    Slow,
    /// Connections stay open, but no data is forwarded.
    HalfOpen,
}

pub struct Proxy {
    pub address: String,
    wire: watch::Sender<ProxyState>,
}

impl Proxy {
    pub async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = watch::Sender::new(ProxyState::Open);
        let seen = wire.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *seen.borrow() == ProxyState::Cut {
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

    pub fn set(&self, wire: ProxyState) {
        self.wire.send_replace(wire);
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut wire: watch::Receiver<ProxyState>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            Ok(_) = wire.wait_for(|wire| *wire == ProxyState::Cut) => return,
        };
        let now = *wire.borrow();
        if now == ProxyState::HalfOpen {
            drop(wire.wait_for(|wire| *wire != ProxyState::HalfOpen).await);
            return;
        }
        if now == ProxyState::Slow {
            // The delay is the simulated fault.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
