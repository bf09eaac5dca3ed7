use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tickfleet_store::seam::redis::RedisStore;

pub struct Server {
    child: Child,
    program: PathBuf,
    dir: TempDir,
    persists: bool,
}

/// Programs in `TICKFLEET_REDIS_SERVERS`, separated by `:`.
#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside it")]
pub fn programs() -> Vec<PathBuf> {
    let named = std::env::var("TICKFLEET_REDIS_SERVERS").unwrap_or_else(|_| "redis-server".to_owned());
    named.split(':').map(PathBuf::from).collect()
}

impl Server {
    pub async fn start(program: &Path, persists: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = launch(program, dir.path(), persists);
        let server = Self { child, program: program.to_owned(), dir, persists };
        server.wait().await;
        server
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.dir.path().join("s").display())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn connection(&self) -> MultiplexedConnection {
        redis::Client::open(self.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
    }

    pub fn store(&self) -> RedisStore {
        RedisStore::open(&self.url(), 0, "test", 10_000).unwrap()
    }

    pub async fn restart(&mut self) {
        let mut connection = self.connection().await;
        let _ = redis::cmd("SHUTDOWN").query_async::<()>(&mut connection).await;
        self.child.wait().unwrap();
        self.child = launch(&self.program, self.dir.path(), self.persists);
        self.wait().await;
    }

    async fn wait(&self) {
        for _ in 0..500 {
            if let Ok(client) = redis::Client::open(self.url())
                && let Ok(mut connection) = client.get_multiplexed_async_connection().await
                && redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
            {
                return;
            }
            // A server does not report when it listens, so poll it.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} does not start", self.program.display());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(program: &Path, dir: &Path, persists: bool) -> Child {
    Command::new(program)
        .current_dir(dir)
        .args(["--port", "0", "--unixsocket", "s", "--save", "", "--dir", "."])
        .args(["--appendonly", if persists { "yes" } else { "no" }])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
