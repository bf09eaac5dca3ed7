//! The processes of the measured fleet.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

use super::BenchArgs;
use super::server::{NAMESPACE, PREFIX, Server};

/// Memory of the largest process of each kind, in MB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rss {
    pub(crate) scheduler: Memory,
    pub(crate) worker: Memory,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// Excludes the program's pages, because processes share them and the kernel can drop them.
    pub(crate) own: f64,
}

pub(super) struct Fleet {
    schedulers: Vec<Child>,
    workers: Vec<Child>,
    dir: PathBuf,
}

impl Fleet {
    pub(super) async fn start(server: &Server, args: &BenchArgs) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tickfleet-bench-fleet-{}", std::process::id()));
        let program = args.program()?;
        write_config(&dir, args).context("writing the bench's configuration")?;
        let mut fleet = Self { schedulers: Vec::new(), workers: Vec::new(), dir: dir.clone() };
        for _ in 0..args.schedulers {
            fleet.schedulers.push(process(&program, "scheduler", &dir, server)?);
        }
        for _ in 0..args.workers {
            fleet.workers.push(process(&program, "worker", &dir, server)?);
        }
        fleet.ready(server, args.schedulers + args.workers).await?;
        Ok(fleet)
    }

    async fn ready(&mut self, server: &Server, processes: usize) -> Result<()> {
        let mut connection = server.connection().await?;
        for _ in 0..600 {
            let beats: usize =
                redis::cmd("ZCARD").arg(format!("{PREFIX}consumers")).query_async(&mut connection).await?;
            if beats >= processes {
                return Ok(());
            }
            for child in self.schedulers.iter_mut().chain(&mut self.workers) {
                if let Some(status) = child.try_wait()? {
                    bail!("a process of the fleet ended at once ({status}); its message is above");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the fleet did not start within 30 s")
    }

    pub(super) fn rss_mb(&self) -> Rss {
        let larger = |a: Memory, b: Memory| if b.resident > a.resident { b } else { a };
        let largest =
            |children: &[Child]| children.iter().filter_map(Child::id).map(memory_of).fold(Memory::default(), larger);
        Rss { scheduler: largest(&self.schedulers), worker: largest(&self.workers) }
    }

    pub(super) async fn stop(mut self) {
        for child in self.schedulers.iter_mut().chain(&mut self.workers) {
            drop(child.kill().await);
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn process(program: &Path, role: &str, dir: &Path, server: &Server) -> Result<Child> {
    Command::new(program)
        .arg(role)
        .arg("--config")
        .arg(dir)
        .arg("--redis-url")
        .arg(&server.url)
        .env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting a {role}"))
}

/// The queues of the fleet are long, because the benchmark itself bounds the turns in flight.
fn write_config(dir: &Path, args: &BenchArgs) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let settings = format!(
        "redis:\n  namespace: {NAMESPACE}\n  shards: 1\n\
         caps:\n  tick: 5s\n  max_calls_per_tick: 10\n  max_actions_per_day: 1000000\n\
         worker:\n  slots: {slots}\n\
         queues:\n  turns_max: 1000000\n  tenant_turns_max: 1000000\n  tenant_ready_max: 1000000\n  inbox_unread_max: 1000000\n\
         log:\n  level: warn\n",
        slots = args.slots,
    );
    std::fs::write(dir.join("tickfleet.yaml"), settings)?;
    let mut agents = String::from("agents:\n");
    for agent in 0..args.agents {
        let _ = writeln!(agents, "  a{agent}: {{}}");
    }
    std::fs::write(dir.join("agents.yaml"), agents)?;
    std::fs::write(dir.join("tenants.yaml"), "tenants:\n  bench: {}\n")?;
    std::fs::write(dir.join("tools.yaml"), "tools: {}\n")?;
    std::fs::write(dir.join("permissions.yaml"), "permissions:\n  echo: {everyone: true}\n")?;
    Ok(())
}

fn memory_of(pid: u32) -> Memory {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kb = line.and_then(|l| l.split_whitespace().next()).and_then(|kb| kb.parse::<f64>().ok());
        kb.unwrap_or(0.0) / 1024.0
    };
    Memory { resident: mb("VmRSS:"), own: mb("RssAnon:") }
}
