use redis::InfoDict;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerLoad {
    pub version: String,
    pub used_memory: u64,
    /// In bytes; 0 means unlimited.
    pub maxmemory: u64,
    /// Per second, as averaged by the server.
    pub ops: u64,
    pub clients: u64,
    pub cpu_seconds: f64,
}

pub(super) fn server_load(info: &InfoDict) -> ServerLoad {
    let number = |name| info.get(name).unwrap_or(0);
    let seconds = |name| info.get(name).unwrap_or(0.0);
    ServerLoad {
        version: info.get("valkey_version").or_else(|| info.get("redis_version")).unwrap_or_default(),
        used_memory: number("used_memory"),
        maxmemory: number("maxmemory"),
        ops: number("instantaneous_ops_per_sec"),
        clients: number("connected_clients"),
        cpu_seconds: seconds("used_cpu_sys") + seconds("used_cpu_user"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_load_is_parsed_from_info() {
        let load = server_load(&InfoDict::new(
            "# Server\r\nredis_version:7.0.15\r\nused_memory:1024\r\nused_memory_human:1K\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.25\r\n",
        ));
        assert_eq!((load.version.as_str(), load.used_memory, load.maxmemory), ("7.0.15", 1_024, 0));
        assert!((load.cpu_seconds - 3.75).abs() < 1e-9);
    }
}
