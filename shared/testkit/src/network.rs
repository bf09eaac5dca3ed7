//! A network between servers that a test can partition. A proxy ("door") accepts the connections to each port, and each
//! server calls the others from its own address. All of 127.0.0.0/8 must be local.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

type Pair = (usize, usize);

/// After the network is dropped, it carries no data.
#[derive(Debug)]
pub struct Network {
    cuts: watch::Sender<BTreeSet<Pair>>,
    doors: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct PortProxy {
    pub(crate) port: u16,
    pub(crate) behind: Arc<OnceLock<u16>>,
}

/// For the option `bind-source-addr` of a server.
pub(crate) fn address_of(server: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(server + 1).expect("a few servers"))
}

/// `None` for a client.
fn caller(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(address) = address else { return None };
    let [127, 0, 1, number] = address.octets() else { return None };
    usize::from(number).checked_sub(1)
}

const fn pair(a: usize, b: usize) -> Pair {
    if a < b { (a, b) } else { (b, a) }
}

impl Network {
    pub(crate) fn new() -> Self {
        Self { cuts: watch::Sender::default(), doors: Vec::new() }
    }

    pub async fn is_possible() -> bool {
        TcpListener::bind((address_of(0), 0)).await.is_ok()
    }

    pub(crate) async fn door(&mut self, server: usize) -> PortProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its number").port();
        let behind = Arc::new(OnceLock::new());
        let target = behind.clone();
        let cuts = self.cuts.subscribe();
        self.doors.push(tokio::spawn(async move {
            while let Ok((calling, from)) = listener.accept().await {
                let Some(port) = target.get().copied() else { continue };
                let between = caller(from.ip()).map(|other| pair(server, other));
                tokio::spawn(connect(calling, port, between, cuts.clone()));
            }
        }));
        PortProxy { port, behind }
    }

    /// Cuts the traffic between `servers` and the others; `of` is the number of all servers. Data in transit arrives
    /// after [`Self::join`]. Clients still reach all servers.
    pub fn isolate(&self, servers: &[usize], of: usize) {
        let others = (0..of).filter(|other| !servers.contains(other));
        let cut = others.flat_map(|other| servers.iter().map(move |server| pair(*server, other)));
        self.cuts.send_modify(|cuts| cuts.extend(cut));
    }

    pub fn part(&self, one: usize, other: usize) {
        self.cuts.send_if_modified(|cuts| cuts.insert(pair(one, other)));
    }

    pub fn join(&self) {
        self.cuts.send_replace(BTreeSet::new());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for door in &self.doors {
            door.abort();
        }
    }
}

async fn connect(calling: TcpStream, port: u16, between: Option<Pair>, cuts: watch::Receiver<BTreeSet<Pair>>) {
    let Ok(called) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    // One-line responses must not wait for more data (Nagle's algorithm).
    let _ = (calling.set_nodelay(true), called.set_nodelay(true));
    let ((from_calling, to_calling), (from_called, to_called)) = (calling.into_split(), called.into_split());
    tokio::spawn(carry(from_calling, to_called, between, cuts.clone()));
    carry(from_called, to_calling, between, cuts).await;
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    between: Option<Pair>,
    mut cuts: watch::Receiver<BTreeSet<Pair>>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let is_cut = |cuts: &BTreeSet<Pair>| between.is_some_and(|pair| cuts.contains(&pair));
        if cuts.wait_for(|cuts| !is_cut(cuts)).await.is_err() {
            return;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
