//! Connections to the primary that sentinels report. After a failover, a sentinel may be out of date. So this module
//! prefers the server with the highest `config-epoch`, as sentinels do among themselves.

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

use super::dial::{Dial, SentinelReport};
use super::role::{Role, role};
use super::tls::{Server, TlsFiles};

const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// The wait for the other sentinels after most sentinels have replied. So an unavailable sentinel causes only this
/// delay.
const GRACE: Duration = Duration::from_millis(250);
/// Check this often for a new primary. An old primary accepts writes until other nodes notify it, and then loses these
/// writes. So this interval limits the loss.
const POLL_EVERY: Duration = Duration::from_secs(1);
const PRIMARY_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Sentinels {
    sentinels: Vec<Server>,
    name: String,
    primary: ConnectionInfo,
    tls: TlsFiles,
    kept: Vec<ReusedConnection>,
    /// The primary at the last search, or why the search failed. `None` before the first search ends.
    found: watch::Sender<Option<Result<String, String>>>,
}

type ReusedConnection = Mutex<Option<MultiplexedConnection>>;

struct SentinelQuery<'a> {
    kept: &'a ReusedConnection,
    was_answered: bool,
}

impl Drop for SentinelQuery<'_> {
    fn drop(&mut self) {
        if !self.was_answered {
            *locked(self.kept) = None;
        }
    }
}

fn locked(kept: &ReusedConnection) -> MutexGuard<'_, Option<MultiplexedConnection>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportedPrimary {
    host: String,
    port: u16,
    /// Increases with each failover. 0 if the sentinel does not report it.
    epoch: u64,
}

type PrimaryReports = Vec<Result<ReportedPrimary, String>>;

/// The newest configuration comes first, then the server that most sentinels report.
fn ranked(answers: &PrimaryReports) -> Vec<(String, u16)> {
    let mut found: Vec<(u64, usize, (String, u16))> = Vec::new();
    for named in answers.iter().flatten() {
        let place = (named.host.clone(), named.port);
        match found.iter_mut().find(|(.., known)| *known == place) {
            Some((epoch, count, _)) => (*epoch, *count) = (named.epoch.max(*epoch), *count + 1),
            None => found.push((named.epoch, 1, place)),
        }
    }
    // The sort is stable, so equal servers keep the order of the URL.
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
        let kept = sentinels.iter().map(|_| ReusedConnection::default()).collect();
        Self { sentinels, name, primary, tls, kept, found: watch::Sender::new(None) }
    }

    /// After most sentinels have replied, waits at most `grace` for the others.
    async fn ask_all(&self, grace: Duration) -> PrimaryReports {
        let mut answers: PrimaryReports = self.sentinels.iter().map(|_| Err(silent())).collect();
        let ask = |index: usize| async move { (index, self.ask(index).await) };
        let mut asked: FuturesUnordered<_> = (0..self.sentinels.len()).map(ask).collect();
        let mut until = Instant::now() + 2 * ASK_TIMEOUT;
        let mut replies = 0;
        while let Ok(Some((index, answer))) = timeout_at(until, asked.next()).await {
            replies += usize::from(answer.is_ok());
            if replies * 2 > self.sentinels.len() {
                until = until.min(Instant::now() + grace);
            }
            if let Some(reply) = answers.get_mut(index) {
                *reply = answer;
            }
        }
        answers
    }

    async fn ask(&self, index: usize) -> Result<ReportedPrimary, String> {
        let (Some(sentinel), Some(kept)) = (self.sentinels.get(index), self.kept.get(index)) else {
            return Err(silent());
        };
        let mut asking = SentinelQuery { kept, was_answered: false };
        let reply = timeout(ASK_TIMEOUT, async {
            let used = locked(kept).clone();
            if let Some(connection) = used
                && let Ok(named) = self.ask_over(connection).await
            {
                return Ok(named);
            }
            // The steps have no timeouts, because a time limit applies to the whole exchange.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let connection = sentinel.dial(config).await.map_err(|error| error.to_string())?;
            *locked(kept) = Some(connection.clone());
            self.ask_over(connection).await
        });
        let reply = reply.await.unwrap_or_else(|_| Err(silent()));
        asking.was_answered = reply.is_ok();
        reply
    }

    async fn ask_over(&self, connection: MultiplexedConnection) -> Result<ReportedPrimary, String> {
        let mut place = redis::cmd("SENTINEL");
        let mut state = redis::cmd("SENTINEL");
        place.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        state.arg("MASTER").arg(&self.name);
        let mut of_place = connection.clone();
        let mut of_state = connection;
        let (place, state) = futures::join!(
            place.query_async::<Option<(String, u16)>>(&mut of_place),
            state.query_async::<HashMap<String, String>>(&mut of_state)
        );
        let (host, port) =
            place.map_err(|error| error.to_string())?.ok_or_else(|| format!("it does not monitor {:?}", self.name))?;
        // Most Redis users may not run this command, so its errors are ignored.
        let epoch = state.ok().and_then(|state| state.get("config-epoch")?.parse().ok());
        Ok(ReportedPrimary { host, port, epoch: epoch.unwrap_or(0) })
    }

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
            Ok(Ok((_, Role::Unreported))) => Err("it does not report its role: the user needs the command ROLE".into()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {PRIMARY_TIMEOUT:?}")),
        }
    }

    fn place(&self, host: String, port: u16) -> ConnectionAddr {
        match self.primary.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        }
    }

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

    fn check_interval(&self) -> Option<Duration> {
        Some(POLL_EVERY)
    }

    async fn has_moved(&self, from: &str) -> bool {
        for (host, port) in ranked(&self.ask_all(GRACE).await) {
            let place = self.place(host, port);
            if place.to_string() == from {
                return false;
            }
            // Connect, to check the role: an outdated sentinel may report a server that is no longer a primary.
            if self.connect(place, AsyncConnectionConfig::new()).await.is_ok() {
                return true;
            }
        }
        false
    }

    async fn sentinels(&self) -> Vec<SentinelReport> {
        let answers = self.ask_all(2 * ASK_TIMEOUT).await;
        let says = self.sentinels.iter().zip(answers).map(|(sentinel, answer)| SentinelReport {
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
    fn primaries_rank_by_epoch_then_votes_then_url_order() {
        let named = |port, epoch| Ok(ReportedPrimary { host: "a".into(), port, epoch });
        let cases: [(PrimaryReports, &[u16]); 5] = [
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
