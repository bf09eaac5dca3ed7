use std::time::Duration;

use nix::sys::signal::Signal;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use tickfleet_ops::redis_server::{Listen, PrivateRedis, ServerError, ServerOptions};

/// For each command, even a blocking one. The library's default of 500 ms is too short on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    /// True if the server fsyncs every write, so that its data survives [`RedisServer::restart`] and
    /// [`RedisServer::kill9`].
    pub appendonly: bool,
    /// True if the server listens on a free port of 127.0.0.1 instead of a Unix socket. Proxies need a port.
    pub tcp: bool,
    /// In bytes; `None` means no limit.
    pub maxmemory: Option<u64>,
    pub extra_args: Vec<String>,
    pub program: Option<std::path::PathBuf>,
}

impl RedisOptions {
    #[must_use]
    pub fn with(extra_args: &[&str]) -> Self {
        Self { extra_args: extra_args.iter().map(|arg| (*arg).to_owned()).collect(), ..Self::default() }
    }
}

/// Dropping this value ends the server and deletes its folder. If the test process is killed, a watchdog ends the
/// server, but does not delete the folder.
#[derive(Debug)]
pub struct RedisServer {
    // Declared before `_dir`, so that the server ends before its folder is deleted.
    server: PrivateRedis,
    _dir: TempDir,
}

impl RedisServer {
    /// The server persists nothing, and listens on a Unix socket.
    pub async fn start() -> Self {
        Self::start_with(RedisOptions::default()).await
    }

    pub async fn start_with(options: RedisOptions) -> Self {
        match Self::try_start_with(options).await {
            Ok(server) => server,
            Err(error) => panic!("a test needs a Redis server: {error}"),
        }
    }

    pub(crate) async fn try_start_with(options: RedisOptions) -> Result<Self, ServerError> {
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder for Redis");
        let mut extra_args: Vec<String> = ["--enable-debug-command", "yes"].map(String::from).into();
        if options.appendonly {
            extra_args.extend(["--appendfsync", "always"].map(String::from));
        }
        extra_args.extend(options.extra_args);
        let server = PrivateRedis::start(ServerOptions {
            listen: if options.tcp { Listen::Loopback(0) } else { Listen::Socket },
            appendonly: options.appendonly,
            maxmemory: options.maxmemory,
            extra_args,
            binary: options.program,
            ..ServerOptions::new(dir.path())
        });
        Ok(Self { server: server.await?, _dir: dir })
    }

    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        self.server.dir()
    }

    /// Each command has a timeout of two minutes, so do not use the connection for longer blocking reads.
    pub async fn connection(&self) -> MultiplexedConnection {
        match connect(&self.url()).await {
            Ok(connection) => connection,
            Err(error) => panic!("the test's Redis does not answer: {error}"),
        }
    }

    /// After a later [`Self::restart`], the server only has the data from its append-only file.
    pub fn kill9(&mut self) {
        self.server.kill9().expect("kill the test's Redis");
    }

    /// The socket or port and the folder stay the same. A running server first saves and ends.
    pub async fn restart(&mut self) {
        if let Err(error) = self.server.restart().await {
            panic!("the test's Redis does not start again: {error}");
        }
    }

    /// Disconnects the replicas, and refuses their new connections. A paused replica would still read the data that had
    /// reached its connection.
    pub async fn cut_replicas(&self) {
        let mut connection = self.connection().await;
        let mut pipe = redis::pipe();
        pipe.cmd("ACL").arg(&["SETUSER", "default", "-psync", "-sync"]).ignore();
        pipe.cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).ignore();
        let () = pipe.query_async(&mut connection).await.expect("cut the replicas off");
    }

    /// Connections stay open, but the server does not respond.
    pub fn pause(&mut self) {
        self.server.signal(Signal::SIGSTOP).expect("pause the test's Redis");
        crate::until_stopped(self.server.pid());
    }

    /// The server runs the commands that it received during the pause.
    pub fn resume(&mut self) {
        self.server.signal(Signal::SIGCONT).expect("resume the test's Redis");
    }
}

/// Has the timeouts of [`RedisServer::connection`]. Use this to connect as a certain user, or to retry while the server
/// is down.
pub async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}
