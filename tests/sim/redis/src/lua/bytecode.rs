//! Compiled scripts, as `string.dump` of Lua 5.1 writes them: which lines hold code, and calls without tail calls.

use std::collections::BTreeSet;

/// Reads along the bytes; none where they end early.
struct Reader<'a> {
    bytes: &'a [u8],
    length: usize,
    /// Where functions' instructions begin, and how many there are.
    code: Vec<(usize, usize)>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn int(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(bytes)).ok()
    }

    fn text(&mut self) -> Option<()> {
        let bytes = self.take(8)?.try_into().ok()?;
        self.take(usize::try_from(u64::from_le_bytes(bytes)).ok()?).map(drop)
    }

    fn constants(&mut self) -> Option<()> {
        for _ in 0..self.int()? {
            match self.byte()? {
                0 => {}
                1 => drop(self.take(1)?),
                3 => drop(self.take(8)?),
                4 => self.text()?,
                _ => return None,
            }
        }
        Some(())
    }

    /// Reads a function and those within it.
    fn function(&mut self, lines: &mut BTreeSet<usize>) -> Option<()> {
        self.text()?;
        // First and last line; upvalues, parameters, whether it is variadic, stack.
        self.take(4 + 4 + 4)?;
        let code = self.int()?;
        self.code.push((self.length - self.bytes.len(), code));
        self.take(code.checked_mul(4)?)?;
        self.constants()?;
        for _ in 0..self.int()? {
            self.function(lines)?;
        }
        for _ in 0..self.int()? {
            lines.insert(self.int()?);
        }
        for _ in 0..self.int()? {
            self.text()?;
            self.take(4 + 4)?;
        }
        for _ in 0..self.int()? {
            self.text()?;
        }
        Some(())
    }
}

/// Instructions of Lua 5.1.
const CALL: u8 = 28;
const TAIL_CALL: u8 = 29;

/// A compiled script whose calls all come back to it, and the lines that hold code, as Lua's debug library would name
/// them. Redis' functions are written in C, which Lua never calls in its caller's stead; ours are written in Lua, and an
/// error must name the line that called them.
pub(super) fn without_tail_calls(mut dump: Vec<u8>) -> (Vec<u8>, BTreeSet<usize>) {
    let mut lines = BTreeSet::new();
    // The header: signature, version, format, byte order, sizes.
    let body = dump.get(12..).unwrap_or_default();
    let mut reader = Reader { bytes: body, length: dump.len(), code: Vec::new() };
    // What cannot be read is left as it is.
    let _unread = reader.function(&mut lines);
    for (from, instructions) in reader.code {
        for instruction in dump.iter_mut().skip(from).step_by(4).take(instructions) {
            if *instruction & 0x3F == TAIL_CALL {
                *instruction = *instruction & 0xC0 | CALL;
            }
        }
    }
    (dump, lines)
}
