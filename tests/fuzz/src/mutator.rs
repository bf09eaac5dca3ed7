//! Mutates inputs. The same seed makes the same mutations on every machine.

const NUMBERS: [&str; 14] = [
    "0",
    "-1",
    "1e999",
    "-0.0",
    "0.1",
    "127",
    "256",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
    "123456789012345678901234567890",
];

const PIECES: [&str; 26] = [
    "{}",
    "[]",
    "\"\"",
    "null",
    "true",
    "\"",
    "\\",
    "\\ud800",
    "\\u0000",
    "\\u002b",
    "\\/",
    ",",
    ":",
    "\n",
    "\r\n",
    "\u{0}",
    "\u{feff}",
    "é",
    "\u{2028}",
    "😀",
    "${SET}",
    "{{id}}",
    "%2F",
    "../",
    "[REDACTED]",
    "password=",
];

const BYTES_MAX: usize = 64 * 1024;
/// Depths of nesting. Parsers stop at 64 or 128.
const NESTING: [usize; 4] = [3, 60, 70, 2_000];

/// Generates numbers with xorshift64*.
pub(crate) struct Mutator {
    state: u64,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub(crate) fn new(seed: u64, words: Vec<Vec<u8>>) -> Self {
        Self { state: seed | 1, words }
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let high = self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(high).unwrap_or(0).checked_rem(bound).unwrap_or(0)
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        list.get(self.below(list.len())).copied()
    }

    pub(crate) fn mutate(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, other);
        }
        bytes.truncate(BYTES_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        match self.below(11) {
            0 => self.flip(bytes, at),
            1 => bytes.truncate(at),
            2 => insert(bytes, at, &[u8::try_from(self.below(256)).unwrap_or(0)]),
            3 => {
                let end = bytes.len().min(at + 1 + self.below(16));
                bytes.drain(at..end);
            }
            4 => insert(bytes, at, self.one_of(&PIECES).unwrap_or_default().as_bytes()),
            5 => {
                let word = self.below(self.words.len());
                insert(bytes, at, self.words.get(word).map_or(b",", Vec::as_slice));
            }
            6 => self.number(bytes, at),
            7 => self.splice(bytes, at, other),
            8 => self.nest(bytes, at),
            9 => self.swap_lines(bytes),
            _ => self.repeat(bytes, at),
        }
    }

    fn flip(&mut self, bytes: &mut [u8], at: usize) {
        let bit = 1 << self.below(8);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= bit;
        }
    }

    fn number(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let number = self.one_of(&NUMBERS).unwrap_or_default();
        let begins = bytes.iter().skip(from).position(u8::is_ascii_digit).map_or(from, |ahead| from + ahead);
        let digits = bytes.iter().skip(begins).take_while(|byte| byte.is_ascii_digit()).count();
        bytes.splice(begins..begins + digits, number.bytes());
    }

    fn splice(&mut self, bytes: &mut Vec<u8>, at: usize, other: &[u8]) {
        let from = self.below(other.len());
        let piece = &other[from..other.len().min(from + 1 + self.below(200))];
        let end = if self.below(2) == 0 { at } else { bytes.len().min(at + piece.len()) };
        bytes.splice(at..end, piece.iter().copied());
    }

    fn nest(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let depth = self.one_of(&NESTING).unwrap_or(3);
        let (open, close) = self.one_of(&[("[", "]"), ("{\"a\":", "}"), ("<think>", "</think>")]).unwrap_or(("[", "]"));
        let end = bytes.len().min(at + self.below(20));
        insert(bytes, end, close.repeat(depth).as_bytes());
        insert(bytes, at, open.repeat(depth).as_bytes());
    }

    fn swap_lines(&mut self, bytes: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let one = self.below(lines.len());
        let two = self.below(lines.len());
        lines.swap(one, two);
        *bytes = lines.join(&b'\n');
    }

    fn repeat(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let end = bytes.len().min(at + 1 + self.below(40));
        let piece = bytes[at..end].repeat(1 + self.below(150));
        insert(bytes, at, &piece);
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}
