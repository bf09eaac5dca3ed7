//! Starts a private Redis server as a child process, for `tickfleet dev` and the tests. A separate process group
//! protects the child from Ctrl-C, and a `Watchdog` ends the child after this process.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::redis_binary;
pub use super::redis_binary::{ServerNotFound, find_binary};
use super::redis_watchdog::Watchdog;

/// Maximum length of a socket's path on Linux (`sun_path` without its terminator).
const SOCKET_PATH_BYTES_MAX: usize = 107;
const STEP: Duration = Duration::from_millis(10);
/// Number of attempts to start, because another process can take a free port first.
const PORT_TRIES: usize = 5;
const LOG_LINES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// `redis.sock` in the server's folder, with access only for the current user.
    #[default]
    Socket,
    /// On 127.0.0.1. Port 0 means any free port. Restarts keep the port.
    Loopback(u16),
}

#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// For socket, data and log. Created if missing. The path of a socket must be short (about 90 bytes).
    pub dir: PathBuf,
    pub listen: Listen,
    pub appendonly: bool,
    /// Bytes. `None` means no limit.
    pub maxmemory: Option<u64>,
    /// Absolute path. Arguments override the file. A sentinel rewrites the file.
    pub config: Option<PathBuf>,
    /// For example `["--io-threads", "2"]`. Overrides the defaults.
    pub extra_args: Vec<String>,
    /// If `None`, [`find_binary`] finds the program.
    pub binary: Option<PathBuf>,
    /// Maximum time to the first response, including the load of an append-only file.
    pub ready_within: Duration,
    /// Maximum time from SIGTERM to the end, including the save of data.
    pub stop_within: Duration,
}

impl ServerOptions {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            listen: Listen::Socket,
            appendonly: false,
            maxmemory: None,
            config: None,
            extra_args: Vec::new(),
            binary: None,
            ready_within: Duration::from_secs(10),
            stop_within: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    NoBinary(#[from] ServerNotFound),
    #[error(
        "the path of the socket {0:?} has more than {SOCKET_PATH_BYTES_MAX} bytes; choose a folder with a shorter path"
    )]
    PathTooLong(PathBuf),
    #[error("cannot use the folder {dir:?} for Redis: {source}")]
    Folder { dir: PathBuf, source: io::Error },
    #[error("a running Redis uses the folder {0:?}: stop the other Tickfleet, or wait until it has saved")]
    InUse(PathBuf),
    #[error("cannot start {binary:?}: {source}")]
    Spawn { binary: PathBuf, source: io::Error },
    #[error("{binary:?} exited at once ({status}); its output:\n{log}")]
    Ended {
        binary: PathBuf,
        status: ExitStatus,
        /// The end of the log.
        log: String,
    },
    #[error("the port {0} of 127.0.0.1 is taken: choose another one")]
    PortTaken(u16),
    #[error("{binary:?} did not respond within {waited:?}; its output:\n{log}")]
    Silent {
        binary: PathBuf,
        waited: Duration,
        /// The end of the log.
        log: String,
    },
    /// The system rejected a signal, or waiting for the process failed.
    #[error("cannot control the Redis child process: {0}")]
    Control(#[from] io::Error),
}

/// Dropping this value kills the server without saving; [`Self::stop`] lets the server save.
#[derive(Debug)]
pub struct PrivateRedis {
    options: ServerOptions,
    binary: PathBuf,
    port: Option<u16>,
    lock: File,
    child: Child,
    watchdog: Option<Watchdog>,
}

impl PrivateRedis {
    pub async fn start(mut options: ServerOptions) -> Result<Self, ServerError> {
        let binary = options.binary.clone().map_or_else(redis_binary::find_binary, Ok)?;
        options.dir = own_folder(&options.dir).map_err(|source| folder_error(&options, source))?;
        let socket = socket_in(&options.dir);
        if options.listen == Listen::Socket && socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(ServerError::PathTooLong(socket));
        }
        let mut tries = if options.listen == Listen::Loopback(0) { PORT_TRIES } else { 1 };
        loop {
            let port = port_for(options.listen).await?;
            tries -= 1;
            let outcome = Self::launch(options.clone(), binary.clone(), port).await;
            match (&outcome, options.listen) {
                (Err(ServerError::Ended { log, .. }), listen) if log.contains("Address already in use") => match listen
                {
                    Listen::Loopback(port) if port != 0 => return Err(ServerError::PortTaken(port)),
                    _ if tries > 0 => {}
                    _ => return outcome,
                },
                _ => return outcome,
            }
        }
    }

    async fn launch(options: ServerOptions, binary: PathBuf, port: Option<u16>) -> Result<Self, ServerError> {
        let lock = lock(&options)?;
        let child = spawn(&options, &binary, port, &lock)?;
        let mut server = Self { options, binary, port, lock, child, watchdog: None };
        server.watchdog = Watchdog::watch(server.pid());
        server.until_ready().await?;
        Ok(server)
    }

    /// `unix:///…/redis.sock` or `redis://127.0.0.1:PORT/`. Redis clients in every language support both forms.
    #[must_use]
    pub fn url(&self) -> String {
        match self.port {
            Some(port) => format!("redis://127.0.0.1:{port}/"),
            None => format!("unix://{}", socket_in(&self.options.dir).display()),
        }
    }

    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        self.port.is_none().then(|| socket_in(&self.options.dir))
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Fails if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ServerError> {
        // A child keeps its process ID until it is reaped. Later, another process can have the ID.
        if let Some(status) = self.child.try_wait()? {
            return Err(io::Error::other(format!("it has ended ({status})")).into());
        }
        let pid = i32::try_from(self.pid()).map_err(io::Error::other)?;
        Ok(kill(Pid::from_raw(pid), signal).map_err(io::Error::from)?)
    }

    /// Does not save, as in a crash.
    pub fn kill9(&mut self) -> Result<(), ServerError> {
        self.watchdog = None;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Lets the server save. After `stop_within`, kills the server.
    pub async fn stop(&mut self) -> Result<(), ServerError> {
        if self.child.try_wait()?.is_none() {
            // A stopped process does not handle SIGTERM, so it must continue first.
            self.signal(Signal::SIGCONT)?;
            self.signal(Signal::SIGTERM)?;
        }
        let deadline = Instant::now() + self.options.stop_within;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                tracing::warn!(waited = ?self.options.stop_within, "private Redis did not stop in time; killed");
                return self.kill9();
            }
            sleep(STEP).await;
        }
        self.watchdog = None;
        Ok(())
    }

    /// Keeps folder, port and options. Stops a running server first.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.stop().await?;
        self.child = spawn(&self.options, &self.binary, self.port, &self.lock)?;
        self.watchdog = Watchdog::watch(self.pid());
        self.until_ready().await
    }

    async fn until_ready(&mut self) -> Result<(), ServerError> {
        let deadline = Instant::now() + self.options.ready_within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Err(ServerError::Ended { binary: self.binary.clone(), status, log: self.log_tail() });
            }
            if matches!(timeout(Duration::from_secs(1), self.is_responding()).await, Ok(Ok(true))) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let binary = self.binary.clone();
                let waited = self.options.ready_within;
                return Err(ServerError::Silent { binary, waited, log: self.log_tail() });
            }
            sleep(STEP).await;
        }
    }

    /// True after PONG, or if the server requires a login. A LOADING error does not count.
    async fn is_responding(&self) -> io::Result<bool> {
        match self.port {
            Some(port) => ping(TcpStream::connect(("127.0.0.1", port)).await?).await,
            None => ping(UnixStream::connect(socket_in(&self.options.dir)).await?).await,
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(log_in(&self.options.dir)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for PrivateRedis {
    fn drop(&mut self) {
        if let Err(error) = self.kill9() {
            tracing::debug!(%error, "private Redis had already stopped");
        }
    }
}

fn folder_error(options: &ServerOptions, source: io::Error) -> ServerError {
    ServerError::Folder { dir: options.dir.clone(), source }
}

/// The path is absolute, because the server and its clients can have different working folders.
fn own_folder(dir: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    dir.canonicalize()
}

/// Two servers in one folder would destroy each other's data. The server inherits the lock as its standard input, so
/// the lock lasts until both processes have ended.
fn lock(options: &ServerOptions) -> Result<File, ServerError> {
    let lock = File::create(options.dir.join("redis.lock")).map_err(|source| folder_error(options, source))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServerError::InUse(options.dir.clone())),
        Err(TryLockError::Error(source)) => Err(folder_error(options, source)),
    }
}

#[allow(clippy::disallowed_methods, reason = "it is handed on to a child process, and decides nothing here")]
fn spawn(options: &ServerOptions, binary: &Path, port: Option<u16>, lock: &File) -> Result<Child, ServerError> {
    let fail = |source| folder_error(options, source);
    let log = File::create(log_in(&options.dir)).map_err(fail)?;
    let errors = log.try_clone().map_err(fail)?;
    let lock = lock.try_clone().map_err(fail)?;
    Command::new(binary)
        .args(arguments(options, port))
        // Other processes of this user can read the server's environment, and the environment can contain secrets.
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .current_dir(&options.dir)
        .stdin(lock)
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|source| ServerError::Spawn { binary: binary.to_owned(), source })
}

fn arguments(options: &ServerOptions, port: Option<u16>) -> Vec<String> {
    let mut args: Vec<String> = options.config.iter().map(|file| file.display().to_string()).collect();
    args.extend(["--port".into(), port.unwrap_or(0).to_string()]);
    let mut set = |name: &str, value: &str| args.extend([format!("--{name}"), value.to_owned()]);
    match port {
        Some(_) => set("bind", "127.0.0.1"),
        None => {
            set("unixsocket", &socket_in(&options.dir).display().to_string());
            set("unixsocketperm", "700");
        }
    }
    set("dir", &options.dir.display().to_string());
    set("daemonize", "no");
    set("save", "");
    set("appendonly", if options.appendonly { "yes" } else { "no" });
    // An evicted key could be an accepted call. Tickfleet rejects work before memory is full.
    set("maxmemory-policy", "noeviction");
    if let Some(bytes) = options.maxmemory {
        set("maxmemory", &bytes.to_string());
    }
    args.extend(options.extra_args.iter().cloned());
    args
}

async fn port_for(listen: Listen) -> Result<Option<u16>, ServerError> {
    match listen {
        Listen::Socket => Ok(None),
        Listen::Loopback(0) => Ok(Some(TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port())),
        Listen::Loopback(port) => Ok(Some(port)),
    }
}

async fn ping(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<bool> {
    stream.write_all(b"PING\r\n").await?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await?;
    Ok(&answer == b"+PONG\r\n" || &answer == b"-NOAUTH")
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

fn log_in(dir: &Path) -> PathBuf {
    dir.join("redis.log")
}

#[cfg(test)]
mod tests;
