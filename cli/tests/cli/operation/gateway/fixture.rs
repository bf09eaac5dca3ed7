use std::path::PathBuf;

use tempfile::TempDir;
use tickfleet_testkit::RedisServer;

use super::{Gateway, add_key};
use crate::support::binary::DevFleet;

/// A Redis, a configuration and a file of keys, for gateways and a fleet.
pub struct GatewayFixture {
    pub redis: RedisServer,
    pub folder: TempDir,
    pub conf: PathBuf,
    pub keys: PathBuf,
    has_configuration: bool,
}

impl GatewayFixture {
    /// Without files, the fleet and the gateways have the built-in configuration.
    pub async fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [conf, keys] = ["conf", "keys.yaml"].map(|name| folder.path().join(name));
        std::fs::create_dir(&conf).unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(conf.join(name), text).unwrap());
        Self { redis: RedisServer::start().await, folder, conf, keys, has_configuration: !files.is_empty() }
    }

    fn config(&self) -> Vec<&str> {
        if self.has_configuration { vec!["--config", self.conf.to_str().unwrap()] } else { Vec::new() }
    }

    pub fn fleet(&self) -> DevFleet {
        DevFleet::start(&[&["--redis-url", &self.redis.url()], &self.config()[..]].concat())
    }

    pub fn gateway(&self) -> Gateway {
        self.gateway_with(&[])
    }

    pub fn gateway_with(&self, more: &[&str]) -> Gateway {
        Gateway::start_with(&self.redis.url(), &self.keys, &[&self.config()[..], more].concat())
    }

    /// A key of the tenant demo, for gateways that start later.
    pub fn key(&self, id: &str, more: &[&str]) -> String {
        add_key(&self.keys, &[&["--id", id, "--tenant", "demo"], more].concat())
    }
}
