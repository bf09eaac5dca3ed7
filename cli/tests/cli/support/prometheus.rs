//! A Prometheus of a test's own: it scrapes every second, and its rules are those of the chart in fast motion.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// How long the server may take to start on a busy machine, and each answer of it.
const START: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);
/// Pause between two questions of a wait.
const PAUSE: Duration = Duration::from_millis(200);

/// A process to scrape.
pub struct Target {
    pub job: &'static str,
    pub port: u16,
}

/// The server; it ends when it is dropped.
pub struct Prometheus {
    child: Child,
    port: u16,
    /// Alerts count from here.
    since: Instant,
    dir: TempDir,
}

/// A port of 127.0.0.1 that was free just now.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Prometheus {
    /// Starts it with the rule files in `rules`, each text changed by `adapt`, and waits until it answers.
    pub async fn start(targets: &[Target], rules: &Path, adapt: impl Fn(&str) -> String) -> Self {
        let dir = tempfile::Builder::new().prefix("tickfleet-prometheus-").tempdir().unwrap();
        for file in rules.read_dir().unwrap() {
            let file = file.unwrap();
            let text = adapt(&std::fs::read_to_string(file.path()).unwrap());
            std::fs::write(dir.path().join(file.file_name()).with_extension("rules.yaml"), text).unwrap();
        }
        std::fs::write(dir.path().join("prometheus.yaml"), configuration(targets)).unwrap();
        let port = free_port();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let spawned = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--log.level=warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = match spawned {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("prometheus is not on the PATH; Debian has it in the package prometheus: make prepare")
            }
            spawned => spawned.unwrap(),
        };
        let mut server = Self { child, port, since: Instant::now(), dir };
        server.until(START, "Prometheus is ready", async |this| this.get("/-/ready").await.is_ok()).await;
        // Before its first scrape of all targets, everything seems to be down.
        let up = format!("sum(up) == {} unless on () (ALERTS offset 1s)", targets.len());
        server.until(START, "all is scraped", async |this| this.number(&up).await.is_some()).await;
        server.since = Instant::now();
        server
    }

    /// The result of an instant query, one value for each series.
    ///
    /// # Panics
    /// Prometheus refuses the query.
    pub async fn query(&self, query: &str) -> Vec<Value> {
        let answer =
            self.get(&format!("/api/v1/query?query={}", encoded(query))).await.unwrap_or_else(|e| panic!("{e}"));
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The single number that a query gives; none where it gives nothing.
    pub async fn number(&self, query: &str) -> Option<f64> {
        self.query(query).await.first()?["value"][1].as_str()?.parse().ok()
    }

    /// The names of the alerts that fire now.
    pub async fn firing(&self) -> BTreeSet<String> {
        self.alerts("ALERTS{alertstate=\"firing\"}").await
    }

    /// The names of the alerts that have fired since everything was scraped for the first time.
    pub async fn fired(&self) -> BTreeSet<String> {
        let seconds = self.since.elapsed().as_secs().max(1);
        self.alerts(&format!("last_over_time(ALERTS{{alertstate=\"firing\"}}[{seconds}s])")).await
    }

    async fn alerts(&self, series: &str) -> BTreeSet<String> {
        let found = self.query(&format!("count by (alertname) ({series})")).await;
        found.iter().map(|series| series["metric"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// All rules with their health and the alerts that they fire, as the API tells them.
    pub async fn rules(&self) -> Value {
        let answer = self.get("/api/v1/rules").await.unwrap_or_else(|error| panic!("{error}"));
        serde_json::from_str(&answer).unwrap()
    }

    /// Waits until all these alerts have fired at some time.
    ///
    /// # Panics
    /// They have not after `patience`.
    pub async fn until_fired(&self, patience: Duration, names: &[&str]) {
        let names: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
        let fired = async |this: &Self| names.is_subset(&this.fired().await);
        self.until(patience, &format!("{names:?} fire"), fired).await;
    }

    /// Waits until `condition`.
    ///
    /// # Panics
    /// It does not hold after `patience`.
    pub async fn until(&self, patience: Duration, what: &str, condition: impl AsyncFn(&Self) -> bool) {
        let deadline = Instant::now() + patience;
        while !condition(self).await {
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                panic!(
                    "not within {patience:?}: {what}. Firing: {:?}. Prometheus says:\n{log}",
                    self.get_firing().await
                );
            }
            // Prometheus tells nobody when it has scraped or evaluated: it has to be asked again.
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// For a message: also where it does not answer.
    async fn get_firing(&self) -> String {
        self.get(&format!("/api/v1/query?query={}", encoded("ALERTS"))).await.unwrap_or_else(|error| error)
    }

    /// One GET; the body of an answer 200, else what went wrong.
    async fn get(&self, path: &str) -> Result<String, String> {
        let asked = timeout(ANSWER, ask(self.port, path)).await;
        let answer = asked.map_err(|_| format!("no answer within {ANSWER:?}"))?.map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
        if head.split(' ').nth(1) == Some("200") { Ok(body.to_owned()) } else { Err(answer) }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Fails only where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In HTTP 1.0 the end of the answer is the end of the connection.
async fn ask(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: prometheus\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn configuration(targets: &[Target]) -> String {
    let mut text = String::from(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n\
         rule_files: ['*.rules.yaml']\nscrape_configs:\n",
    );
    let jobs: BTreeSet<&str> = targets.iter().map(|target| target.job).collect();
    for job in jobs {
        let addresses: Vec<String> =
            targets.iter().filter(|t| t.job == job).map(|t| format!("'127.0.0.1:{}'", t.port)).collect();
        text += &format!(
            "  - job_name: {job}\n    static_configs:\n      - targets: [{}]\n        labels: {{namespace: watched}}\n",
            addresses.join(", ")
        );
    }
    text
}
