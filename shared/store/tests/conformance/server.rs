//! A real server with a wall clock that the game sets, so that times and entry IDs can be compared exactly.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

const SOURCE: &str = include_str!("clock.c");
const PROGRAM: &str = "TICKFLEET_REDIS_SERVER";

pub struct Server {
    child: Child,
    clock: File,
    connection: MultiplexedConnection,
    program: PathBuf,
    dir: TempDir,
}

impl Server {
    pub async fn start(now_ms: i64) -> Self {
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder");
        let source = dir.path().join("clock.c");
        let library = dir.path().join("clock.so");
        std::fs::write(&source, SOURCE).unwrap();
        let built = Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
        let built = built.expect("cc, which builds the stopped clock");
        assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        let clock = OpenOptions::new().create(true).truncate(true).write(true).open(dir.path().join("clock")).unwrap();
        clock.write_all_at(&now_ms.to_ne_bytes(), 0).unwrap();
        #[allow(clippy::disallowed_methods, reason = "which server a test runs on is the environment's to say")]
        let program = std::env::var_os(PROGRAM).map_or_else(|| "redis-server".into(), PathBuf::from);
        let child = Self::spawn(&program, &dir);
        let connection = Self::until_ready(&dir).await;
        Self { child, clock, connection, program, dir }
    }

    fn spawn(program: &PathBuf, dir: &TempDir) -> Child {
        let arguments = [
            ["--port", "0"],
            ["--unixsocket", "redis.sock"],
            ["--save", ""],
            ["--appendonly", "no"],
            ["--logfile", "log"],
            // With one entry per node, approximate trimming is exact.
            ["--stream-node-max-entries", "1"],
        ];
        Command::new(program)
            .args(arguments.as_flattened())
            .current_dir(dir.path())
            .env("LD_PRELOAD", dir.path().join("clock.so"))
            .env("STOPPED_CLOCK", dir.path().join("clock"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
    }

    async fn until_ready(dir: &TempDir) -> MultiplexedConnection {
        let client = redis::Client::open(Self::url_in(dir)).unwrap();
        for _ in 0..2_000 {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await
                && redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
            {
                return connection;
            }
            // A server does not report readiness, so this polls.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        panic!("the server does not answer:\n{log}");
    }

    fn url_in(dir: &TempDir) -> String {
        format!("unix://{}", dir.path().join("redis.sock").display())
    }

    pub fn url(&self) -> String {
        Self::url_in(&self.dir)
    }

    pub fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Waits until the server reports the new time, because Valkey reads the clock only once a millisecond.
    pub async fn set_clock(&mut self, now_ms: i64) {
        self.clock.write_all_at(&now_ms.to_ne_bytes(), 0).unwrap();
        loop {
            let time = redis::cmd("TIME");
            let (seconds, micros): (i64, i64) = time.query_async(&mut self.connection).await.unwrap();
            if seconds * 1_000 + micros / 1_000 == now_ms {
                return;
            }
        }
    }

    /// The server keeps its data.
    pub async fn restart(&mut self) {
        let _ended: redis::RedisResult<()> = redis::cmd("SHUTDOWN").arg("SAVE").query_async(&mut self.connection).await;
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.program, &self.dir);
        self.connection = Self::until_ready(&self.dir).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}
