//! Computes the slot of a key.

pub(crate) const SLOTS: u16 = 16_384;

/// If the key has a hash tag, only the tag determines the slot.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_servers_keyslot_results() {
        // Results of `CLUSTER KEYSLOT` in Redis 7.0.15.
        for (key, slot) in [("foo", 12_182), ("{foo}:bar", 12_182), ("a{}b", 13_694), ("", 0), ("123456789", 12_739)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }
}
