//! Runs a Prometheus with the chart's rules. A scrape takes place every two seconds.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

const START: Duration = Duration::from_secs(120);
const ANSWER: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

pub struct Target {
    pub job: &'static str,
    pub port: u16,
}

pub struct Prometheus {
    child: Child,
    port: u16,
    dir: TempDir,
}

/// Returns a port below the range from which the system assigns ports, so no other process gets it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that run at the same time start their search at different ports.
    let first = 10_000 + u16::try_from(std::process::id() * 7 % 20_000).unwrap();
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::SeqCst);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

impl Prometheus {
    /// All scraped series get the label `namespace`.
    pub async fn start(namespace: &str, targets: &[Target], rules: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("tickfleet-prometheus-").tempdir().unwrap();
        let configuration = configuration(namespace, targets, &rules.canonicalize().unwrap());
        std::fs::write(dir.path().join("prometheus.yaml"), configuration).unwrap();
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
        let server = Self { child, port, dir };
        server.until(START, "Prometheus is ready", async |this| this.get("/-/ready").await.is_ok()).await;
        server
    }

    pub async fn query(&self, query: &str) -> Vec<Value> {
        let answer =
            self.get(&format!("/api/v1/query?query={}", encoded(query))).await.unwrap_or_else(|e| panic!("{e}"));
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    pub async fn rules(&self) -> Vec<Value> {
        let answer = self.get("/api/v1/rules").await.unwrap_or_else(|error| panic!("{error}"));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let groups = answer["data"]["groups"].as_array().unwrap();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
    }

    pub async fn until(&self, patience: Duration, what: &str, condition: impl AsyncFn(&Self) -> bool) {
        let deadline = Instant::now() + patience;
        while !condition(self).await {
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                panic!("not within {patience:?}: {what}. Prometheus says:\n{log}");
            }
            // Prometheus does not report the end of a scrape or an evaluation, so it is polled.
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn get(&self, path: &str) -> Result<String, String> {
        let asked = timeout(ANSWER, ask(self.port, path)).await;
        let answer = asked.map_err(|_| format!("no answer within {ANSWER:?}"))?.map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
        if head.split(' ').nth(1) == Some("200") { Ok(body.to_owned()) } else { Err(answer) }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As in HTTP 1.0, the response ends when the connection closes.
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

fn configuration(namespace: &str, targets: &[Target], rules: &Path) -> String {
    let mut text = format!(
        "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}}\n\
         rule_files: ['{}/*.yaml']\nscrape_configs:\n",
        rules.display()
    );
    let jobs: BTreeSet<&str> = targets.iter().map(|target| target.job).collect();
    for job in jobs {
        let addresses: Vec<String> =
            targets.iter().filter(|t| t.job == job).map(|t| format!("'127.0.0.1:{}'", t.port)).collect();
        text += &format!(
            "  - job_name: {job}\n    static_configs:\n      - targets: [{}]\n        labels: {{namespace: {namespace}}}\n",
            addresses.join(", ")
        );
    }
    text
}
