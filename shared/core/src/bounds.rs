//! Bounds and retention times from the configuration that decisions apply.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// A consumer counts as crashed if its last heartbeat is older than this time (ms).
    pub lease_ms: i64,
    pub retain_ms: i64,
    /// Time (ms) for which an ID that a producer chose is kept after its turn ended.
    pub dedupe_ms: i64,
    pub audit_entries_max: u64,
    /// True if audit entries report the counters that were debited for their calls.
    pub audit_admissions: bool,
    pub dead_entries_max: u64,
    /// Maximum number of entries in an inbound stream.
    pub turns_max: u64,
    /// Unfinished turns and tasks.
    pub tenant_turns_max: u64,
    /// Bytes of unfinished turns and tasks.
    pub tenant_bytes_max: u64,
    /// Slices that are on queues or with workers.
    pub tenant_in_flight_max: u64,
    pub inbox_unread_max: u64,
    pub inboxes_max: u64,
    /// Number of crashes after which a slice is quarantined.
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
