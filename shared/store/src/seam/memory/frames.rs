//! Frames: groups of effects in a file. A reader applies a frame completely or not at all.
//!
//! Format: `<length: 4 bytes> <CRC-32 of length and effects: 4 bytes> <effects>`.

use std::io::{self, Read};

use super::effects::{Effect, Wire};

pub const MAGIC: &[u8; 8] = b"tickfl01";

const HEAD: usize = 8;

/// Fails if the effects exceed 4 GiB.
pub fn write_frame(effects: &[Effect], out: &mut Vec<u8>) -> io::Result<()> {
    let begin = out.len();
    out.extend_from_slice(&[0; HEAD]);
    effects.iter().for_each(|effect| effect.put(out));
    let frame = out.get_mut(begin..).unwrap_or_default();
    let length = u32::try_from(frame.len() - HEAD).map_err(|_| io::ErrorKind::FileTooLarge)?.to_le_bytes();
    if let Some((head, payload)) = frame.split_at_mut_checked(HEAD) {
        head.copy_from_slice(&[length, checksum(length, payload).to_le_bytes()].concat());
    }
    Ok(())
}

fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(payload);
    hasher.finalize()
}

/// Ends at the first incomplete frame.
pub struct Frames<R> {
    from: R,
    /// Bytes in complete frames so far.
    pub good: u64,
}

impl<R: Read> Frames<R> {
    pub fn of(mut from: R) -> io::Result<Option<Self>> {
        let magic = read_up_to(&mut from, MAGIC.len())?;
        Ok((magic == MAGIC).then_some(Self { from, good: MAGIC.len() as u64 }))
    }

    /// `None` at the end, or if the remaining bytes are incomplete or damaged.
    pub fn next_frame(&mut self) -> io::Result<Option<Vec<Effect>>> {
        let head = read_up_to(&mut self.from, HEAD)?;
        let (Some(&length), Some(&sum)) = (head.first_chunk::<4>(), head.last_chunk::<4>()) else { return Ok(None) };
        if head.len() < HEAD {
            return Ok(None);
        }
        let payload = read_up_to(&mut self.from, u32::from_le_bytes(length) as usize)?;
        let is_whole = payload.len() == u32::from_le_bytes(length) as usize;
        if !is_whole || checksum(length, &payload) != u32::from_le_bytes(sum) {
            return Ok(None);
        }
        let mut rest = &payload[..];
        let mut effects = Vec::new();
        while !rest.is_empty() {
            let Some(effect) = Effect::get(&mut rest) else { return Ok(None) };
            effects.push(effect);
        }
        self.good += (HEAD + payload.len()) as u64;
        Ok(Some(effects))
    }
}

fn read_up_to(from: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
