//! Connections to the primary that sentinels name: all of them are asked anew for each connection, and whoever they name
//! has to say itself that it is the primary. After a failover a sentinel may lag behind, and so may the server that it names.
//! One that is cut off from the others lags for as long as that lasts, and so does a primary that is cut off with it: the
//! newest configuration counts (`config-epoch`), as it does among sentinels themselves.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::dial::{Dial, SentinelSays};
use super::role::{Role, role};
use super::tls::{Server, TlsFiles};

/// Longest wait for one sentinel, to be connected to and to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// When most sentinels have answered, how long the others are waited for: one that is down, or far away, holds nobody up.
const GRACE: Duration = Duration::from_millis(250);
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
    /// A kept connection to each sentinel.
    kept: Vec<Kept>,
    /// Where the primary was found last, or why it was not; none before the first look.
    found: watch::Sender<Option<Result<String, String>>>,
}

/// A connection to a sentinel that is kept from one question to the next.
type Kept = Mutex<Option<MultiplexedConnection>>;

/// A question to a sentinel. One that fails, or is given up, gives its connection up.
struct Asking<'a> {
    kept: &'a Kept,
    was_answered: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.was_answered {
            *locked(self.kept) = None;
        }
    }
}

fn locked(kept: &Kept) -> MutexGuard<'_, Option<MultiplexedConnection>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a sentinel says of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    host: String,
    port: u16,
    /// The number of its configuration: each failover has a higher one. 0 where it does not tell.
    epoch: u64,
}

/// What each sentinel says, or why it says nothing.
type Answers = Vec<Result<Named, String>>;

/// Whom the sentinels name, each once: first as the newest configuration has it, then whom most of them name.
fn ranked(answers: &Answers) -> Vec<(String, u16)> {
    let mut found: Vec<(u64, usize, (String, u16))> = Vec::new();
    for named in answers.iter().flatten() {
        let place = (named.host.clone(), named.port);
        match found.iter_mut().find(|(.., known)| *known == place) {
            Some((epoch, count, _)) => (*epoch, *count) = (named.epoch.max(*epoch), *count + 1),
            None => found.push((named.epoch, 1, place)),
        }
    }
    // Where all else is equal, as the URL has them.
    found.sort_by_key(|(epoch, count, _)| std::cmp::Reverse((*epoch, *count)));
    found.into_iter().map(|(.., place)| place).collect()
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
        let kept = sentinels.iter().map(|_| Kept::default()).collect();
        Self { sentinels, name, primary, tls, kept, found: watch::Sender::new(None) }
    }

    /// What all sentinels say. When most of them have answered, the others have `grace` for it.
    async fn ask_all(&self, grace: Duration) -> Answers {
        let mut answers: Answers = self.sentinels.iter().map(|_| Err(silent())).collect();
        let ask = |index: usize| async move { (index, self.ask(index).await) };
        let mut asked: FuturesUnordered<_> = (0..self.sentinels.len()).map(ask).collect();
        // Each question has a bound of its own.
        let (mut until, mut heard) = (Instant::now() + 2 * ASK_TIMEOUT, 0);
        while let Ok(Some((index, answer))) = timeout_at(until, asked.next()).await {
            heard += usize::from(answer.is_ok());
            if heard * 2 > self.sentinels.len() {
                until = until.min(Instant::now() + grace);
            }
            if let Some(said) = answers.get_mut(index) {
                *said = answer;
            }
        }
        answers
    }

    /// What this sentinel says of the primary; else why it does not. It is asked over a connection that is kept.
    async fn ask(&self, index: usize) -> Result<Named, String> {
        let (Some(sentinel), Some(kept)) = (self.sentinels.get(index), self.kept.get(index)) else {
            return Err(silent());
        };
        let mut asking = Asking { kept, was_answered: false };
        let said = timeout(ASK_TIMEOUT, async {
            let used = locked(kept).clone();
            if let Some(connection) = used
                && let Ok(named) = self.ask_over(connection).await
            {
                return Ok(named);
            }
            // The bound is on all of it, not on each step.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let connection = sentinel.dial(config).await.map_err(|error| error.to_string())?;
            *locked(kept) = Some(connection.clone());
            self.ask_over(connection).await
        });
        let said = said.await.unwrap_or_else(|_| Err(silent()));
        asking.was_answered = said.is_ok();
        said
    }

    /// As [`Self::ask`], over a connection to the sentinel.
    async fn ask_over(&self, connection: MultiplexedConnection) -> Result<Named, String> {
        let (mut place, mut state) = (redis::cmd("SENTINEL"), redis::cmd("SENTINEL"));
        place.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        state.arg("MASTER").arg(&self.name);
        let (mut of_place, mut of_state) = (connection.clone(), connection);
        let (place, state) = futures::join!(
            place.query_async::<Option<(String, u16)>>(&mut of_place),
            state.query_async::<HashMap<String, String>>(&mut of_state)
        );
        let (host, port) =
            place.map_err(|error| error.to_string())?.ok_or_else(|| format!("it does not monitor {:?}", self.name))?;
        // A user who may not ask this is told by most of them.
        let epoch = state.ok().and_then(|state| state.get("config-epoch")?.parse().ok());
        Ok(Named { host, port, epoch: epoch.unwrap_or(0) })
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
            Ok(Ok((_, Role::Other(role)))) => Err(format!("it reports the role {role}")),
            Ok(Ok((_, Role::Untold))) => Err("it does not report its role: the user needs the command ROLE".into()),
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

    /// A connection to the primary that the sentinels name, and its address; else why each of them leads to none.
    async fn find(&self, config: &AsyncConnectionConfig) -> Result<(MultiplexedConnection, String), String> {
        let answers = self.ask_all(GRACE).await;
        let mut refused = HashMap::new();
        for (host, port) in ranked(&answers) {
            let place = self.place(host, port);
            let named = place.to_string();
            match self.connect(place, config.clone()).await {
                Ok(connection) => return Ok((connection, named)),
                Err(why) => drop(refused.insert(named, why)),
            }
        }
        let reasons = self.sentinels.iter().zip(answers).map(|(sentinel, answer)| {
            let named = answer.map(|named| self.place(named.host, named.port).to_string());
            let why = named.map_or_else(
                |why| why,
                |named| match refused.remove(&named) {
                    Some(why) => format!("names {named}: {why}"),
                    None => format!("names {named}, too"),
                },
            );
            format!("{}: {why}", sentinel.address())
        });
        let reasons: Vec<String> = reasons.collect();
        Err(format!("cannot find the primary {}: {}", self.name, reasons.join("; ")))
    }
}

#[async_trait]
impl Dial for Sentinels {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        match self.find(&config).await {
            Ok((connection, named)) => {
                self.found.send_replace(Some(Ok(named)));
                Ok(connection)
            }
            Err(why) => {
                self.found.send_replace(Some(Err(why.clone())));
                Err(std::io::Error::new(std::io::ErrorKind::NotConnected, why).into())
            }
        }
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
        for (host, port) in ranked(&self.ask_all(GRACE).await) {
            let place = self.place(host, port);
            if place.to_string() == from {
                return false;
            }
            // A sentinel that lags behind names one that is no primary any more.
            if self.connect(place, AsyncConnectionConfig::new()).await.is_ok() {
                return true;
            }
        }
        false
    }

    async fn sentinels(&self) -> Vec<SentinelSays> {
        let answers = self.ask_all(2 * ASK_TIMEOUT).await;
        let says = self.sentinels.iter().zip(answers).map(|(sentinel, answer)| SentinelSays {
            sentinel: sentinel.address(),
            primary: answer.map(|named| self.place(named.host, named.port).to_string()),
        });
        says.collect()
    }
}

fn silent() -> String {
    format!("no answer within {ASK_TIMEOUT:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_configuration_counts_then_most_voices_then_the_order_of_the_url() {
        let named = |port, epoch| Ok(Named { host: "a".into(), port, epoch });
        let cases: [(Answers, &[u16]); 5] = [
            (vec![named(1, 3), named(1, 3), named(2, 4)], &[2, 1]),
            (vec![named(1, 0), named(2, 0), named(2, 0)], &[2, 1]),
            (vec![named(1, 0), named(2, 0)], &[1, 2]),
            (vec![Err("away".into()), named(2, 7)], &[2]),
            (vec![Err("away".into())], &[]),
        ];
        for (answers, expected) in cases {
            let found: Vec<u16> = ranked(&answers).into_iter().map(|(_, port)| port).collect();
            assert_eq!(found, expected, "{answers:?}");
        }
    }
}
