//! Compiled scripts, as `string.dump` of Lua 5.1 writes them: the line and the conditions of their instructions, and
//! calls without tail calls.

/// A condition: an instruction that goes on in one of two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    /// The instruction, counted from the script's first; functions within a function follow it.
    pub(super) at: usize,
    /// The instruction that comes next where the jump behind the condition is left out: what is written next.
    pub(super) on: usize,
    /// The one where it is not.
    pub(super) past: usize,
}

/// A compiled script.
#[derive(Debug, Default)]
pub(super) struct Compiled {
    /// As Lua takes it. Calls all come back to it: Redis' functions are written in C, which Lua never calls in its
    /// caller's stead; ours are written in Lua, and an error must name the line that called them.
    pub(super) code: Vec<u8>,
    /// The line of each instruction.
    pub(super) lines: Vec<usize>,
    /// In the order of their instructions.
    pub(super) conditions: Vec<Condition>,
    /// Where the line of each instruction stands in the code.
    line_at: Vec<usize>,
}

/// What a script's instructions are numbered from, where numbers take the place of lines: no script has as many lines.
pub(super) const FIRST_NUMBER: usize = 1 << 20;

/// Reads along the bytes; none where they end early.
struct Reader<'a> {
    bytes: &'a [u8],
    length: usize,
    found: Compiled,
    /// Where functions' instructions begin in the bytes, the number of the first, and how many there are.
    functions: Vec<(usize, usize, usize)>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }

    const fn at(&self) -> usize {
        self.length - self.bytes.len()
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
    fn function(&mut self) -> Option<()> {
        self.text()?;
        // First and last line; upvalues, parameters, whether it is variadic, stack.
        self.take(4 + 4 + 4)?;
        let code = self.int()?;
        let first = self.found.lines.len();
        self.functions.push((self.at(), first, code));
        self.take(code.checked_mul(4)?)?;
        self.found.lines.resize(first + code, 0);
        self.found.line_at.resize(first + code, 0);
        self.constants()?;
        for _ in 0..self.int()? {
            self.function()?;
        }
        for number in first..first + self.int()? {
            *self.found.line_at.get_mut(number)? = self.at();
            *self.found.lines.get_mut(number)? = self.int()?;
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
const LOAD_CONSTANT: u8 = 1;
const JUMP: u8 = 22;
/// `EQ`, `LT`, `LE`, `TEST`, `TESTSET`: each does the jump behind it, or leaves it out.
const TESTS: std::ops::RangeInclusive<u8> = 23..=27;
const TEST: u8 = 26;
const TEST_SET: u8 = 27;
const CALL: u8 = 28;
const TAIL_CALL: u8 = 29;
const FOR_LOOP: u8 = 31;
const FOR_EACH_LOOP: u8 = 33;

const fn operation(instruction: u32) -> u8 {
    (instruction & 0x3F) as u8
}

/// The instruction that a jump at `at` leads to.
fn target(instruction: u32, at: usize) -> Option<usize> {
    // The distance is kept as a number of 18 bits without a sign.
    let distance = isize::try_from(instruction >> 14).ok()? - 0x1_FFFF;
    (at + 1).checked_add_signed(distance)
}

/// Whether a test is of a constant, which is in its place just before: the `'x'` of `a and 'x' or b` is asked, too, and
/// only ever goes one way.
fn is_of_constant(instruction: u32, before: u32) -> bool {
    let tested = match operation(instruction) {
        TEST => instruction >> 6 & 0xFF,
        TEST_SET => instruction >> 23,
        _ => return false,
    };
    operation(before) == LOAD_CONSTANT && before >> 6 & 0xFF == tested
}

/// The condition at an instruction, given what is behind it.
fn condition(instruction: u32, next: u32, at: usize) -> Option<Condition> {
    match operation(instruction) {
        // A loop goes on with its body, by jumping back, or is over.
        FOR_LOOP => Some(Condition { at, on: target(instruction, at)?, past: at + 1 }),
        FOR_EACH_LOOP if operation(next) == JUMP => Some(Condition { at, on: target(next, at + 1)?, past: at + 2 }),
        kind if TESTS.contains(&kind) && operation(next) == JUMP => {
            Some(Condition { at, on: at + 2, past: target(next, at + 1)? })
        }
        _ => None,
    }
}

impl Compiled {
    /// Reads what Lua compiled.
    pub(super) fn of(mut code: Vec<u8>) -> Self {
        // The header: signature, version, format, byte order, sizes.
        let body = code.get(12..).unwrap_or_default();
        let found = Self::default();
        let mut reader = Reader { bytes: body, length: code.len(), found, functions: Vec::new() };
        // What cannot be read is left as it is.
        let _unread = reader.function();
        let Reader { mut found, functions, .. } = reader;
        for (from, first, count) in functions {
            let words = code.get_mut(from..from + count * 4).unwrap_or_default().as_chunks_mut::<4>().0;
            for word in &mut *words {
                if operation(u32::from_le_bytes(*word)) == TAIL_CALL {
                    word[0] = word[0] & 0xC0 | CALL;
                }
            }
            let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
            // Before the first there is none.
            let before = std::iter::once(&0).chain(&words);
            let pairs = words.windows(2).zip(before).zip(first..);
            found.conditions.extend(pairs.filter_map(|((pair, before), at)| match pair {
                [instruction, next] if !is_of_constant(*instruction, *before) => condition(*instruction, *next, at),
                _ => None,
            }));
        }
        Self { code, ..found }
    }

    /// The code with a number of its own at each instruction, in the place of its line.
    pub(super) fn numbered(&self) -> Vec<u8> {
        let mut code = self.code.clone();
        for (number, at) in self.line_at.iter().enumerate() {
            if let (Some(line), Ok(number)) = (code.get_mut(*at..at + 4), u32::try_from(FIRST_NUMBER + number)) {
                line.copy_from_slice(&number.to_le_bytes());
            }
        }
        code
    }
}
