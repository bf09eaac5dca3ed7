use std::path::PathBuf;

use tokio::net::TcpListener;

#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub ca: PathBuf,
    /// The certificate must name `localhost` and 127.0.0.1.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TlsFiles {
    pub(crate) async fn arguments(&self) -> (Vec<String>, u16) {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = free.local_addr().expect("its number").port();
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let files = [("ca-cert-file", &self.ca), ("cert-file", &self.certificate), ("key-file", &self.key)];
        let mut arguments: Vec<String> =
            files.iter().flat_map(|(name, file)| [format!("--tls-{name}"), path(file)]).collect();
        let port_text = port.to_string();
        let more = ["--tls-port", &port_text, "--tls-auth-clients", "no", "--tls-replication", "yes"];
        arguments.extend(more.map(str::to_owned));
        (arguments, port)
    }
}
