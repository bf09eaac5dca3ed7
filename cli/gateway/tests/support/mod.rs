//! A fleet with a gateway in front of it, in one process.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_client::rules::ConfiguredRule;
use tickfleet_client::verbs::{FleetNames, VerbError};
use tickfleet_client::{Approval, ApprovalError, Client};
use tickfleet_gateway::{BackendFuture, Gateway, KeysFile, LimitFilter, NewKey, OperatorBackend, TlsFiles};
use tickfleet_model::approval::NarrowedValues;
use tickfleet_model::day::Tz;
use tickfleet_model::{Redactor, TenantId};
use tickfleet_store::Observer;
use tickfleet_tests::fleet::Fleet;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const ANSWER: Duration = Duration::from_secs(60);

/// Knows only the fleet's names; all other methods fail.
struct TestBackend(FleetNames);

fn unavailable<'a, T: Send + 'a>() -> BackendFuture<'a, T> {
    async { Err(VerbError::Unavailable("this desk has no configuration".into())) }.boxed()
}

impl OperatorBackend for TestBackend {
    fn overview(&self) -> BackendFuture<'_> {
        unavailable()
    }

    fn explain<'a>(&'a self, _: Option<&'a TenantId>, _: &'a str) -> BackendFuture<'a, Box<RawValue>> {
        unavailable()
    }

    fn limits<'a>(&'a self, _: &'a LimitFilter) -> BackendFuture<'a> {
        unavailable()
    }

    fn configuration(&self) -> BackendFuture<'_> {
        unavailable()
    }

    fn rules(&self) -> BackendFuture<'_, Vec<ConfiguredRule>> {
        unavailable()
    }

    fn names(&self) -> BackendFuture<'_, FleetNames> {
        async { Ok(self.0.clone()) }.boxed()
    }

    fn zones(&self) -> BackendFuture<'_, BTreeMap<TenantId, Tz>> {
        unavailable()
    }

    fn approver<'a>(&'a self, _: &'a str) -> BackendFuture<'a, Option<BTreeSet<String>>> {
        async { Ok(Some(BTreeSet::new())) }.boxed()
    }

    fn check_narrowed<'a>(
        &'a self,
        _: &'a Approval,
        _: &'a NarrowedValues,
    ) -> BoxFuture<'a, Result<(), ApprovalError>> {
        async { Ok(()) }.boxed()
    }

    fn redactor(&self) -> Arc<Redactor> {
        Arc::default()
    }
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }
}

pub struct TestGateway {
    pub address: SocketAddr,
    pub client: Client,
    pub draining: CancellationToken,
}

pub fn key(id: &str, tenant: &str, agents: &[&str], verbs: &[&str]) -> (Value, String) {
    let key = NewKey::random().unwrap();
    let mut row = json!({"id": id, "sha256": key.sha256, "tenant": tenant, "agents": agents, "verbs": verbs});
    if verbs.contains(&"approve") {
        row["approver"] = json!(id);
    }
    (row, key.secret)
}

impl TestGateway {
    pub async fn of(fleet: &Fleet, rows: &[Value]) -> Self {
        Self::over(fleet, rows, None).await
    }

    pub async fn over(fleet: &Fleet, rows: &[Value], tls: Option<TlsFiles>) -> Self {
        Self::serve(fleet, Client::over(vec![fleet.store.clone()]), rows, tls).await
    }

    pub async fn observed(fleet: &Fleet, rows: &[Value], observer: Arc<dyn Observer>) -> Self {
        Self::serve(fleet, Client::over(vec![fleet.store.clone()]).observed_by(observer), rows, None).await
    }

    async fn serve(fleet: &Fleet, client: Client, rows: &[Value], tls: Option<TlsFiles>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.yaml");
        // JSON is valid YAML.
        std::fs::write(&file, Value::from(rows.to_vec()).to_string()).unwrap();
        let keys = KeysFile::open(&file).unwrap();
        let draining = CancellationToken::new();
        let backend = Arc::new(TestBackend(FleetNames::new(&fleet.active.load().policy, [], None)));
        let gateway = Gateway::new(client.clone(), keys, backend, Arc::clone(&fleet.metrics), draining.clone(), None);
        let (address, _) = gateway.serve("127.0.0.1:0".parse().unwrap(), tls).await.unwrap();
        Self { address, client, draining }
    }

    pub async fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> HttpResponse {
        self.ask_with(key, method, path, &[], body).await
    }

    pub async fn ask_with(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> HttpResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask_in(key, method, path, headers, &body).await
    }

    pub async fn ask_in(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> HttpResponse {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n");
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        write!(head, "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        exchange(TcpStream::connect(self.address).await.unwrap(), &head).await
    }
}

pub async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> HttpResponse {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    timeout(ANSWER, stream.read_to_end(&mut bytes)).await.expect("an answer in time").unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    HttpResponse { status, head: head.to_owned(), body: body.to_owned() }
}
