//! TLS of the gateway. Each handshake runs in its own task, so that a client that never completes its handshake does
//! not delay others.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::connections::{ConnectionStream, Connections, RequestConnection};
use super::peer::Peer;

/// Kubernetes changes a mounted Secret without a file event, so the files are polled.
const POLL_EVERY: Duration = Duration::from_secs(5);
const FILE_BYTES_MAX: u64 = 1 << 20;
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after a failed accept, for example if no socket is free.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}: {source}")]
    File { path: String, source: io::Error },
    #[error("the file {path}: {problem}")]
    Invalid { path: String, problem: String },
}

/// If a reload fails, the previous certificate and key stay in use.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl TlsFiles {
    /// Takes PEM files. The certificate comes first, followed by its chain up to the root.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = config(certificate, key, &read(certificate)?, &read(key)?)?;
        let config = Arc::new(ArcSwap::from_pointee(config));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), config })
    }

    /// Connections use a new certificate a few seconds after the change.
    pub async fn follow(self, stop: CancellationToken) {
        let both = || Ok::<_, TlsError>((read(&self.certificate)?, read(&self.key)?));
        let mut known = both().ok();
        while stop.run_until_cancelled(tokio::time::sleep(POLL_EVERY)).await.is_some() {
            let found = both();
            let texts = found.as_ref().ok().cloned();
            if texts == known {
                continue;
            }
            known = texts;
            match found.and_then(|(certificate, key)| config(&self.certificate, &self.key, &certificate, &key)) {
                Ok(config) => {
                    tracing::info!("certificate reloaded");
                    self.config.store(Arc::new(config));
                }
                Err(error) => {
                    tracing::error!(%error, "certificate not reloaded; the previous certificate stays in use")
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let shown = path.display().to_string();
    let failed = |source| TlsError::File { path: path.display().to_string(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        let problem = format!("it has {length} bytes; at most {FILE_BYTES_MAX} are read");
        return Err(TlsError::Invalid { path: shown, problem });
    }
    std::fs::read(path).map_err(failed)
}

fn config(certificate: &Path, key: &Path, certificates: &[u8], secret: &[u8]) -> Result<ServerConfig, TlsError> {
    let wrong = |path: &Path, problem: String| TlsError::Invalid { path: path.display().to_string(), problem };
    let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| wrong(certificate, format!("expected PEM certificates: {error}")))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "expected a PEM certificate; found none".into()));
    }
    // The message about an invalid key must not contain any part of the key.
    let secret = PrivateKeyDer::from_pem_slice(secret);
    let secret = secret.map_err(|_| wrong(key, "expected an unencrypted PEM private key".into()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let built = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let built = built.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret));
    let mut config =
        built.map_err(|error| wrong(key, format!("it does not match {}: {error}", certificate.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

type Accepted = (ConnectionStream<TlsStream<TcpStream>>, RequestConnection);

pub(crate) struct TlsListener {
    ready: mpsc::Receiver<Accepted>,
    address: SocketAddr,
    connections: Connections,
    accepting: JoinHandle<()>,
}

impl TlsListener {
    pub(crate) fn new(listener: TcpListener, files: TlsFiles, connections: Connections) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (ended, ready) = mpsc::channel(1);
        let accepting = tokio::spawn(accept(listener, files, connections.clone(), ended));
        Ok(Self { ready, address, connections, accepting })
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for RequestConnection {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        stream.remote_addr().clone()
    }
}

impl Listener for TlsListener {
    type Io = ConnectionStream<TlsStream<TcpStream>>;
    type Addr = RequestConnection;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // Not reached: the accepting task owns the sender, and lives as long as this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<RequestConnection> {
        Ok(RequestConnection(self.connections.register(Peer::of(self.address))))
    }
}

fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Unknown connections are bounded, so incomplete handshakes are bounded too.
async fn accept(listener: TcpListener, files: TlsFiles, connections: Connections, ready: mpsc::Sender<Accepted>) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(connection) => connection,
            Err(error) if is_client_error(&error) => continue,
            Err(error) => {
                tracing::debug!(%error, "connection not accepted");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(files.config.load_full());
        let ready = ready.clone();
        let connection = connections.register(Peer::of(from));
        tokio::spawn(async move {
            let shaking = tokio::time::timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream));
            match connection.until_closed(shaking).await {
                Some(Ok(Ok(stream))) => {
                    let connection_stream = ConnectionStream::new(stream, Arc::clone(&connection));
                    drop(ready.send((connection_stream, RequestConnection(connection))).await);
                }
                Some(Ok(Err(error))) => tracing::debug!(%error, %from, "TLS negotiation failed"),
                Some(Err(_)) => tracing::debug!(%from, "TLS handshake timed out"),
                None => tracing::debug!(%from, "TLS handshake dropped to make room for other connections"),
            }
        });
    }
}
