//! Connections to the primary that sentinels name: they are asked anew for each connection, and whoever they name has
//! to say itself that it is the primary. After a failover a sentinel may lag behind, and so may the server that it names.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::dial::{Dial, SentinelSays};
use super::role::{Role, role};
use super::tls::{Server, TlsFiles};

/// Longest wait for one sentinel, to be connected to and to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often sentinels are asked whether the primary is still the same. An old primary that nobody has told yet goes
/// on taking writes, and loses them when it is told; so long at most it is written to by this process.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the server that a sentinel names, to be connected to and to say that it is the primary.
const PRIMARY_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes connections to the primary that goes by one name with these sentinels.
pub(super) struct Sentinels {
    /// How each sentinel is reached.
    sentinels: Vec<Server>,
    /// What they call the primary.
    name: String,
    /// What connections to the primary need beside its address, which stands here for none.
    primary: ConnectionInfo,
    /// The files that they need for TLS.
    tls: TlsFiles,
    /// The sentinel that led to the primary last: it is asked first.
    first: AtomicUsize,
    /// A kept connection to a sentinel, and which: for the looks between two connections to the primary.
    looking: Mutex<Option<(usize, MultiplexedConnection)>>,
    /// Where the primary was found last, or why it was not; none before the first look.
    found: watch::Sender<Option<Result<String, String>>>,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sentinels({})", self.address())
    }
}

impl Sentinels {
    #[cfg(test)]
    pub(super) const fn info(&self) -> &ConnectionInfo {
        &self.primary
    }

    #[cfg(test)]
    pub(super) fn servers(&self) -> &[Server] {
        &self.sentinels
    }

    pub(super) fn new(sentinels: Vec<Server>, name: String, primary: ConnectionInfo, tls: TlsFiles) -> Self {
        Self {
            sentinels,
            name,
            primary,
            tls,
            first: AtomicUsize::new(0),
            looking: Mutex::default(),
            found: watch::Sender::new(None),
        }
    }

    /// Where this sentinel says that the primary is; else why it does not.
    async fn ask(&self, sentinel: &Server) -> Result<(String, u16), String> {
        self.ask_over(Self::reach(sentinel).await?).await
    }

    /// A connection to a sentinel.
    async fn reach(sentinel: &Server) -> Result<MultiplexedConnection, String> {
        // The bound is on all of it, not on each step.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let reached = timeout(ASK_TIMEOUT, sentinel.dial(config)).await;
        reached.map_err(|_| silent())?.map_err(|error| error.to_string())
    }

    /// As [`Self::ask`], over a connection to the sentinel.
    async fn ask_over(&self, mut connection: MultiplexedConnection) -> Result<(String, u16), String> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let answer = command.query_async::<Option<(String, u16)>>(&mut connection);
        let answer = timeout(ASK_TIMEOUT, answer).await.map_err(|_| silent())?;
        answer.map_err(|error| error.to_string())?.ok_or_else(|| format!("it knows no {:?}", self.name))
    }

    /// Where the sentinel says that the primary is that led to it last, or the next one that answers. It is asked over
    /// a connection that is kept.
    async fn look(&self) -> Option<String> {
        let mut looking = self.looking.lock().await;
        let first = self.first.load(Ordering::Relaxed);
        if let Some((index, connection)) = looking.take().filter(|(index, _)| *index == first)
            && let Ok((host, port)) = self.ask_over(connection.clone()).await
        {
            *looking = Some((index, connection));
            return Some(self.place(host, port).to_string());
        }
        for (index, sentinel) in self.in_turn() {
            let Ok(connection) = Self::reach(sentinel).await else { continue };
            if let Ok((host, port)) = self.ask_over(connection.clone()).await {
                *looking = Some((index, connection));
                return Some(self.place(host, port).to_string());
            }
        }
        None
    }

    /// A connection to the server at this place, if it says that it is the primary; else why not.
    async fn connect(
        &self,
        place: ConnectionAddr,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, String> {
        let connect = async {
            let client = self.tls.client(self.primary.clone().set_addr(place))?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let role = role(&mut connection).await?;
            RedisResult::Ok((connection, role))
        };
        match timeout(PRIMARY_TIMEOUT, connect).await {
            Ok(Ok((connection, Role::Primary))) => Ok(connection),
            Ok(Ok((_, Role::Other(role)))) => Err(format!("it says that it is a {role}")),
            Ok(Ok((_, Role::Untold))) => Err("it does not tell its role: the user needs the command ROLE".into()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {PRIMARY_TIMEOUT:?}")),
        }
    }

    /// The address of a server as connections of this fleet reach it: with TLS, if the URL says so.
    fn place(&self, host: String, port: u16) -> ConnectionAddr {
        match self.primary.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        }
    }

    /// A connection to the primary that this sentinel names, with its address; else why there is none. Those who were
    /// `refused` are not tried once more: several sentinels may lag behind in the same way.
    async fn by(
        &self,
        sentinel: &Server,
        refused: &mut Vec<String>,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, String), String> {
        let (host, port) = self.ask(sentinel).await?;
        let place = self.place(host, port);
        let named = place.to_string();
        if refused.contains(&named) {
            return Err(format!("names {named}, too"));
        }
        match self.connect(place, config.clone()).await {
            Ok(connection) => Ok((connection, named)),
            Err(why) => {
                let reason = format!("names {named}: {why}");
                refused.push(named);
                Err(reason)
            }
        }
    }

    /// All sentinels, the one first that led to the primary last.
    fn in_turn(&self) -> impl Iterator<Item = (usize, &Server)> {
        let first = self.first.load(Ordering::Relaxed);
        let (before, from) = self.sentinels.split_at(first.min(self.sentinels.len()));
        from.iter().enumerate().map(move |(i, s)| (first + i, s)).chain(before.iter().enumerate())
    }
}

#[async_trait]
impl Dial for Sentinels {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let (mut reasons, mut refused) = (Vec::new(), Vec::new());
        for (index, sentinel) in self.in_turn() {
            match self.by(sentinel, &mut refused, &config).await {
                Ok((connection, named)) => {
                    self.first.store(index, Ordering::Relaxed);
                    self.found.send_replace(Some(Ok(named)));
                    return Ok(connection);
                }
                Err(why) => reasons.push(format!("{}: {why}", sentinel.address())),
            }
        }
        let why = format!("no sentinel leads to a primary {}: {}", self.name, reasons.join("; "));
        self.found.send_replace(Some(Err(why.clone())));
        Err(std::io::Error::new(std::io::ErrorKind::NotConnected, why).into())
    }

    fn address(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(Dial::address).collect();
        format!("{} (sentinels {})", self.name, sentinels.join(", "))
    }

    fn primary(&self) -> Option<Result<String, String>> {
        self.found.borrow().clone()
    }

    fn looks_every(&self) -> Option<Duration> {
        Some(LOOK_EVERY)
    }

    async fn has_moved(&self, from: &str) -> bool {
        self.look().await.is_some_and(|named| named != from)
    }

    async fn sentinels(&self) -> Vec<SentinelSays> {
        let mut says = Vec::with_capacity(self.sentinels.len());
        for sentinel in &self.sentinels {
            let primary = self.ask(sentinel).await.map(|(host, port)| self.place(host, port).to_string());
            says.push(SentinelSays { sentinel: sentinel.address(), primary });
        }
        says
    }
}

fn silent() -> String {
    format!("no answer within {ASK_TIMEOUT:?}")
}
