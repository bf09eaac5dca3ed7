//! Bounds and retention times from the configuration.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// A consumer with an older heartbeat counts as crashed.
    pub lease_ms: i64,
    pub retain_ms: i64,
    /// How long a producer's ID is kept after its turn ended.
    pub dedupe_ms: i64,
    pub audit_entries_max: u64,
    pub audit_admissions: bool,
    pub dead_entries_max: u64,
    /// For each inbound stream.
    pub turns_max: u64,
    pub tenant_turns_max: u64,
    pub tenant_bytes_max: u64,
    /// Slices in queues or with workers.
    pub tenant_in_flight_max: u64,
    pub inbox_unread_max: u64,
    pub inboxes_max: u64,
    pub crashes_max: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            lease_ms: 10_000,
            retain_ms: 3_600_000,
            dedupe_ms: 3_600_000,
            audit_entries_max: 1_000_000,
            audit_admissions: false,
            dead_entries_max: 10_000,
            turns_max: 100_000,
            tenant_turns_max: 20_000,
            tenant_bytes_max: 256 << 20,
            tenant_in_flight_max: 5_000,
            inbox_unread_max: 10_000,
            inboxes_max: 1_000,
            crashes_max: tickfleet_model::limits::CRASHES_MAX,
        }
    }
}
