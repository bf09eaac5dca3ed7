//! The processes of the scaling runs. The schedulers report the backlog. The run starts and stops the workers.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The cap of `crowd` is the maximum, 200 calls per second. The cap of `capped` is ten calls per tick.
const AGENTS: &str = "agents:\n  crowd: {calls_per_tick: 1000, max_actions_per_day: 1000000}\n  capped: {calls_per_tick: 10, max_actions_per_day: 1000000}\n";
const PERMISSIONS: &str = "permissions:\n  sleep: {everyone: true}\n";
const SETTINGS: [(&str, &str); 2] = [("TICKFLEET_QUEUES_INBOX_UNREAD_MAX", "1000000"), ("TICKFLEET_LOG_LEVEL", "warn")];

struct Node {
    child: Child,
    metrics: SocketAddr,
}

pub struct Processes {
    url: String,
    slots: u32,
    folder: PathBuf,
    schedulers: Vec<Node>,
    workers: Vec<Node>,
    leaving: Vec<Node>,
    /// `signaled` counts the workers that received SIGTERM. `left` counts the workers that then exited with code 0.
    pub signaled: u32,
    pub left: u32,
}

impl Processes {
    /// Starts no worker yet. The tenants are `demo` and `t1` to `t<tenants>`.
    pub fn start(url: &str, slots: u32, folder: &Path, tenants: usize) -> Self {
        let more: String = (1..=tenants).map(|n| format!("  t{n}: {{}}\n")).collect();
        let files = [
            ("agents.yaml", AGENTS.to_owned()),
            ("tenants.yaml", format!("tenants:\n  demo: {{plan: trial}}\n{more}")),
            ("permissions.yaml", PERMISSIONS.to_owned()),
            ("tools.yaml", "tools: {}\n".to_owned()),
        ];
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
        let mut fleet = Self {
            url: url.to_owned(),
            slots,
            folder: folder.to_owned(),
            schedulers: Vec::new(),
            workers: Vec::new(),
            leaving: Vec::new(),
            signaled: 0,
            left: 0,
        };
        for _ in 0..2 {
            let node = fleet.spawn("scheduler");
            fleet.schedulers.push(node);
        }
        fleet
    }

    fn spawn(&self, role: &str) -> Node {
        let metrics = free_address();
        let log = File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tickfleet"));
        command.args([role, "--config"]).arg(&self.folder).envs(SETTINGS).env("REDIS_URL", &self.url);
        command.env("TICKFLEET_HTTP_ADDRESS", metrics.to_string());
        command.env("TICKFLEET_WORKER_SLOTS", self.slots.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Node { child: command.spawn().unwrap(), metrics }
    }

    /// Does not count workers that are stopping.
    pub fn workers(&self) -> u32 {
        u32::try_from(self.workers.len()).unwrap()
    }

    pub fn scale(&mut self, wanted: u32) {
        while self.workers() < wanted {
            let node = self.spawn("worker");
            self.workers.push(node);
        }
        while self.workers() > wanted {
            let node = self.workers.remove(0);
            terminate(&node.child);
            self.signaled += 1;
            self.leaving.push(node);
        }
    }

    /// Each stopped worker must have exited with code 0. No other process may have ended.
    pub fn collect(&mut self) {
        let mut waiting = Vec::new();
        for mut node in self.leaving.drain(..) {
            match node.child.try_wait().unwrap() {
                Some(status) => {
                    assert!(status.success(), "a worker that was told to go ended with {status}");
                    self.left += 1;
                }
                None => waiting.push(node),
            }
        }
        self.leaving = waiting;
        for node in self.workers.iter_mut().chain(&mut self.schedulers) {
            assert_eq!(node.child.try_wait().unwrap(), None, "a process ended by itself: {}", self.log_of());
        }
    }

    pub fn all_gone(&self) -> bool {
        self.leaving.is_empty()
    }

    fn log_of(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// `sum(max by (state) (tickfleet_backlog{state=~"ready|running|suspect"}))`. No worker dies here, so `suspect` is
    /// empty. `None` while no scheduler reports the backlog.
    pub fn backlog(&self) -> Option<f64> {
        Some(self.backlog_of("ready")? + self.backlog_of("running")?)
    }

    pub fn parked(&self) -> f64 {
        self.backlog_of("parked_capped").unwrap_or(0.0)
    }

    fn backlog_of(&self, state: &str) -> Option<f64> {
        let series = format!("tickfleet_backlog{{state=\"{state}\"}}");
        self.schedulers.iter().filter_map(|node| value(&scrape(node.metrics)?, &series)).reduce(f64::max)
    }

    pub fn counter(&self, series: &str) -> f64 {
        self.schedulers.iter().filter_map(|node| value(&scrape(node.metrics)?, series)).sum()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for node in self.schedulers.iter_mut().chain(&mut self.workers).chain(&mut self.leaving) {
            // Fails only if the process has already ended.
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

fn terminate(child: &Child) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn scrape(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
}
