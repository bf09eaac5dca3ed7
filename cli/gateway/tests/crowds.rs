//! One caller cannot use up a gateway: the gateway still serves other callers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use support::{TestGateway, exchange, key};
use tickfleet_gateway::TlsFiles;
use tickfleet_tests::fleet::{Fleet, Plan};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

fn certificate(folder: &Path) -> TlsFiles {
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    TlsFiles::open(&certificate, &key).unwrap()
}

#[tokio::test]
async fn a_thousand_silent_connections_do_not_block_tls_clients() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificate(folder.path());
    let fleet = Fleet::start(Plan::default()).await;
    let (row, secret) = key("kelly", "acme", &["kelly"], &["submit", "read"]);
    let front = TestGateway::over(&fleet, &[row], Some(files)).await;
    let mut silent = Vec::new();
    for _ in 0..1_000 {
        silent.push(TcpStream::connect(front.address).await.unwrap());
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.path().join("cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let connector = TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()));
    let body = json!({"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]}).to_string();
    for _ in 0..2 {
        let stream = TcpStream::connect(front.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        // If handshakes ran one after another, this one would wait ten seconds for each silent connection.
        let stream = connector.connect(name, stream).await.unwrap();
        let request = format!(
            "POST /v1/turns?wait=30 HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {secret}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(stream, &request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    drop(silent);
    fleet.stop().await;
}

#[tokio::test]
async fn an_authenticated_connection_survives_a_thousand_silent_ones() {
    let fleet = Fleet::start(Plan::default()).await;
    let (row, secret) = key("kelly", "acme", &["kelly"], &["submit", "read"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let ask = |close: &str| {
        format!("GET /v1/turns/none HTTP/1.1\r\nhost: x\r\n{close}authorization: Bearer {secret}\r\n\r\n")
    };
    let mut known = TcpStream::connect(front.address).await.unwrap();
    known.write_all(ask("").as_bytes()).await.unwrap();
    let mut first = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut known, &mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 404");
    let mut silent = Vec::new();
    for _ in 0..1_000 {
        silent.push(TcpStream::connect(front.address).await.unwrap());
    }
    let answer = exchange(TcpStream::connect(front.address).await.unwrap(), &ask("connection: close\r\n")).await;
    assert_eq!(answer.status, 404, "{answer:?}");
    let answer = exchange(known, &ask("connection: close\r\n")).await;
    assert!(answer.body.contains("HTTP/1.1 404") || answer.status == 404, "the first one is still there: {answer:?}");
    fleet.stop().await;
}
