//! A private Redis as a child process: what `tickfleet dev` and the tests run on.
//!
//! The child listens on a unix socket in its own folder (or on a port of the loopback interface), is in a
//! process group of its own, so that Ctrl-C reaches us and not it, and does not outlive us: see `Watchdog`.

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
pub use super::redis_binary::{NoServerFound, find_binary};
use super::redis_watchdog::Watchdog;

/// Longest path of a unix socket on Linux, bytes (`sun_path` less its terminator).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Wait between two looks at a server that starts or stops.
const STEP: Duration = Duration::from_millis(10);
/// The number of times that a free port is tried: another process may take it between our look and the server's.
const PORT_TRIES: usize = 5;
/// Lines of the server's log that an error shows.
const LOG_LINES: usize = 8;

/// The place where the server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// On the unix socket `redis.sock` in the server's folder, which only our user may open.
    #[default]
    Socket,
    /// On this port of 127.0.0.1; 0 takes a free one and keeps it over restarts.
    Loopback(u16),
}

/// The server to start, and its settings.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Folder of socket, data and log; made if missing. For a socket its path must be short (about 90 bytes).
    pub dir: PathBuf,
    /// The place where it listens.
    pub listen: Listen,
    /// True if it keeps an append-only file in `dir`, and so its data over a restart.
    pub appendonly: bool,
    /// Bytes of memory; none means no bound.
    pub maxmemory: Option<u64>,
    /// A file of settings, full path, which arguments win over; a sentinel needs one that it may rewrite.
    pub config: Option<PathBuf>,
    /// More arguments, `["--io-threads", "2"]`; they win over ours.
    pub extra_args: Vec<String>,
    /// The program; none looks it up with [`find_binary`].
    pub binary: Option<PathBuf>,
    /// The time that it may take to answer: a large append-only file takes its time to load.
    pub ready_within: Duration,
    /// The time that it may take to end after SIGTERM, while it saves.
    pub stop_within: Duration,
}

impl ServerOptions {
    /// A server in `dir` on a unix socket that persists nothing.
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

/// Why the server did not start or stop as asked.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// There is no program to start.
    #[error(transparent)]
    NoBinary(#[from] NoServerFound),
    /// The socket's path does not fit.
    #[error(
        "the path of the socket {0:?} has more than {SOCKET_PATH_BYTES_MAX} bytes; choose a folder with a shorter path"
    )]
    PathTooLong(PathBuf),
    /// Its folder cannot be used.
    #[error("cannot use the folder {dir:?} for Redis: {source}")]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server keeps its data there.
    #[error("a running Redis uses the folder {0:?}: stop the other Tickfleet, or wait until it has saved")]
    InUse(PathBuf),
    /// The program cannot be started.
    #[error("cannot start {binary:?}: {source}")]
    Spawn {
        /// The program.
        binary: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It ended instead of answering.
    #[error("{binary:?} exited at once ({status}); its output:\n{log}")]
    Ended {
        /// The program.
        binary: PathBuf,
        /// The exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// The port that was asked for is taken.
    #[error("the port {0} of 127.0.0.1 is taken: choose another one")]
    PortTaken(u16),
    /// It runs and does not answer.
    #[error("{binary:?} did not respond within {waited:?}; its output:\n{log}")]
    Silent {
        /// The program.
        binary: PathBuf,
        /// The time for which the server was waited for.
        waited: Duration,
        /// The end of its log.
        log: String,
    },
    /// The system refuses to signal it or to wait for it.
    #[error("cannot control the Redis child process: {0}")]
    Control(#[from] io::Error),
}

/// A running private server. Dropping it kills it without saving; [`Self::stop`] lets it save.
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
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// [`ServerError`]; the server's own words are in it where it said any.
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
        server.watchdog = Watchdog::over(server.pid());
        server.until_ready().await?;
        Ok(server)
    }

    /// Returns the URL that clients connect to: `unix:///…/redis.sock`, which clients of every language know, or
    /// `redis://127.0.0.1:PORT/`.
    #[must_use]
    pub fn url(&self) -> String {
        match self.port {
            Some(port) => format!("redis://127.0.0.1:{port}/"),
            None => format!("unix://{}", socket_in(&self.options.dir).display()),
        }
    }

    /// Its socket; none where it listens on a port.
    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        self.port.is_none().then(|| socket_in(&self.options.dir))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Sends a signal to the server (SIGSTOP makes it a server that hangs, SIGCONT mends it).
    ///
    /// # Errors
    /// [`ServerError::Control`] where the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ServerError> {
        // Only a child that was not waited for keeps its id; a reaped one's could be somebody else's by now.
        if let Some(status) = self.child.try_wait()? {
            return Err(io::Error::other(format!("it has ended ({status})")).into());
        }
        let pid = i32::try_from(self.pid()).map_err(io::Error::other)?;
        Ok(kill(Pid::from_raw(pid), signal).map_err(io::Error::from)?)
    }

    /// Kills the server as a crash would: nothing is saved.
    ///
    /// # Errors
    /// [`ServerError::Control`] where the system refuses.
    pub fn kill9(&mut self) -> Result<(), ServerError> {
        self.watchdog = None;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks the server to save and end, and kills it if it takes longer than `stop_within`.
    ///
    /// # Errors
    /// [`ServerError::Control`] where the system refuses.
    pub async fn stop(&mut self) -> Result<(), ServerError> {
        if self.child.try_wait()?.is_none() {
            // First of all awake: a stopped process takes no notice of SIGTERM.
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

    /// Starts the server again with the same folder, port and options, after [`Self::kill9`] or [`Self::stop`];
    /// one that still runs is stopped first.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.stop().await?;
        self.child = spawn(&self.options, &self.binary, self.port, &self.lock)?;
        self.watchdog = Watchdog::over(self.pid());
        self.until_ready().await
    }

    async fn until_ready(&mut self) -> Result<(), ServerError> {
        let deadline = Instant::now() + self.options.ready_within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Err(ServerError::Ended { binary: self.binary.clone(), status, log: self.last_words() });
            }
            if matches!(timeout(Duration::from_secs(1), self.answers()).await, Ok(Ok(true))) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let (binary, waited) = (self.binary.clone(), self.options.ready_within);
                return Err(ServerError::Silent { binary, waited, log: self.last_words() });
            }
            sleep(STEP).await;
        }
    }

    /// Returns true if the server answers PING with PONG, or asks for a login. It says LOADING while it reads its file.
    async fn answers(&self) -> io::Result<bool> {
        match self.port {
            Some(port) => ping(TcpStream::connect(("127.0.0.1", port)).await?).await,
            None => ping(UnixStream::connect(socket_in(&self.options.dir)).await?).await,
        }
    }

    fn last_words(&self) -> String {
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

/// Makes the folder, for our user only, and gives its full path: the server and its clients may see the path
/// from different folders.
fn own_folder(dir: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    dir.canonicalize()
}

/// Two servers in one folder would share a socket and ruin each other's data. The server inherits the lock with
/// its standard input, so it stays locked until both of us are gone, in whatever order.
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
        // Our environment may hold secrets, and another process of this user can read that of a server.
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
    // Tickfleet refuses work itself before memory is full; evicting keys would lose accepted calls.
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
