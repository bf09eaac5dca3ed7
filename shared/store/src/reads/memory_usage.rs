#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUsage {
    pub used: u64,
    /// In bytes; 0 means unlimited.
    pub max: u64,
}

impl MemoryUsage {
    /// True if at least 80 % of `maxmemory` is in use. New work is then not admitted, so that admitted work can be
    /// finished.
    #[must_use]
    pub const fn is_nearly_full(self) -> bool {
        self.max > 0 && self.used / 4 >= self.max / 5
    }
}

pub(crate) fn memory_of(info: &redis::InfoDict) -> MemoryUsage {
    let read = |name| info.get(name).unwrap_or(0);
    MemoryUsage { used: read("used_memory"), max: read("maxmemory") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_tight_from_80_percent_on_and_never_without_a_bound() {
        let tight = |used, max| MemoryUsage { used, max }.is_nearly_full();
        assert_eq!([tight(799, 1_000), tight(800, 1_000), tight(u64::MAX, 0)], [false, true, false]);
    }
}
