//! The files with which a TLS connection authenticates itself and verifies the server. They are read for each
//! connection, so a renewed certificate needs no restart.

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionInfo, ErrorKind, RedisError, RedisResult, TlsCertificates,
};

use super::dial::Dial;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    /// With the intermediate certificates of its authority.
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    /// Replaces the system's authorities.
    ca: Option<PathBuf>,
}

impl TlsFiles {
    pub(super) fn take(query: &str) -> RedisResult<(Self, String)> {
        let mut files = Self::default();
        let mut rest = Vec::new();
        for pair in query.split('&') {
            let place = match pair.split_once('=') {
                Some(("tls_cert", _)) => &mut files.cert,
                Some(("tls_key", _)) => &mut files.key,
                Some(("tls_ca", _)) => &mut files.ca,
                _ => {
                    rest.push(pair);
                    continue;
                }
            };
            let path = pair.split_once('=').map(|(_, path)| path).unwrap_or_default();
            if path.is_empty() || place.replace(path.into()).is_some() {
                return Err(refused("tls_cert, tls_key and tls_ca name one file each", ""));
            }
        }
        match files.cert.is_some() == files.key.is_some() {
            true => Ok((files, rest.join("&"))),
            false => Err(refused("tls_cert and tls_key go together", "")),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the files again for each client. An error contains neither the content of a file nor the path of the key.
    pub(super) fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        if self.is_empty() {
            return Client::open(info);
        }
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: certificates("tls_cert", cert)?,
                client_key: std::fs::read(key).map_err(|e| refused("the file that tls_key names", &e.to_string()))?,
            }),
            _ => None,
        };
        let root_cert = self.ca.as_ref().map(|ca| certificates("tls_ca", ca)).transpose()?;
        if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            return Err(refused("tls_cert, tls_key and tls_ca need rediss://", ""));
        }
        // Replace the library's message, because it might contain lines of the key.
        let built = Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
        built.map_err(|_| {
            refused("tls_cert, tls_key, tls_ca", "expected certificates and a key without password, in PEM")
        })
    }
}

/// Blocks the thread, because a file has a few KiB and another thread would cost more.
fn certificates(name: &'static str, path: &Path) -> RedisResult<Vec<u8>> {
    let invalid = |why: &str| refused("a file of certificates", &format!("{name}={}: {why}", path.display()));
    let text = std::fs::read(path).map_err(|error| invalid(&error.to_string()))?;
    match String::from_utf8_lossy(&text).contains(CERTIFICATE) {
        true => Ok(text),
        // Report a file without certificates: the library would read it as an empty list.
        false => Err(invalid("it holds no certificate in PEM")),
    }
}

fn refused(what: &'static str, why: &str) -> RedisError {
    match why {
        "" => (ErrorKind::InvalidClientConfig, what).into(),
        why => (ErrorKind::InvalidClientConfig, what, why.to_owned()).into(),
    }
}

pub(super) struct Server {
    info: ConnectionInfo,
    tls: TlsFiles,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address())
    }
}

impl Server {
    pub(super) fn new(info: ConnectionInfo, tls: TlsFiles) -> RedisResult<Self> {
        // Report a missing file at the start, and not at the first connection.
        tls.client(info.clone())?;
        Ok(Self { info, tls })
    }

    #[cfg(test)]
    pub(super) const fn info(&self) -> &ConnectionInfo {
        &self.info
    }
}

#[async_trait]
impl Dial for Server {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        self.tls.client(self.info.clone())?.get_multiplexed_async_connection_with_config(&config).await
    }

    fn address(&self) -> String {
        self.info.addr().to_string()
    }
}
