//! Counters as scripts pack them.

/// An agent's counters as `budget.lua` packs them: numbers of eight bytes each (used and end of the tick, used and
/// end of the day, and the tick's begin, which nobody asks for here). Zeros where there are none.
pub(crate) fn unpacked(packed: &[u8]) -> [i64; 4] {
    let mut counters = [0; 4];
    for (counter, bytes) in counters.iter_mut().zip(packed.chunks_exact(8)) {
        *counter = <[u8; 8]>::try_from(bytes).map_or(0, |bytes| f64::from_le_bytes(bytes) as i64);
    }
    counters
}
