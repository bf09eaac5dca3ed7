//! Decodes base64, hexadecimal digits and lists of decimal numbers in a text, and skips separators.

use super::escapes;

#[derive(Debug, Clone, Copy)]
pub(super) enum Encoding {
    /// In the standard or URL-safe alphabet, with lines of any length.
    Base64,
    /// In upper or lower case: `4142`, `41:42`, `41 42`, `0x41, 0x42`.
    Hexadecimal,
    /// As programs write a buffer into JSON: `65, 66, 67`.
    Decimal,
}

/// Maps each byte to its value as a digit, or to one of the constants below.
type DigitTable = [u8; 256];
const SEPARATOR: u8 = 0xfd;
/// A byte that may begin an escape, a longer separator or a number.
const LONGER: u8 = 0xfe;
const OTHER: u8 = 0xff;

static BASE64: DigitTable = Encoding::Base64.kinds();
static HEXADECIMAL: DigitTable = Encoding::Hexadecimal.kinds();
static DECIMAL: DigitTable = Encoding::Decimal.kinds();

#[derive(Debug, Default)]
pub(super) struct DigitRun {
    digits: Vec<u8>,
    digit_spans: Vec<DigitSpan>,
}

#[derive(Debug)]
struct DigitSpan {
    first_digit: usize,
    at: usize,
    width: usize,
}

impl Encoding {
    pub(super) const ALL: [Self; 3] = [Self::Base64, Self::Hexadecimal, Self::Decimal];

    const fn bits(self) -> usize {
        match self {
            Self::Base64 => 6,
            Self::Hexadecimal => 4,
            Self::Decimal => 8,
        }
    }

    /// The number of alignments to try. Other bytes can precede the secret, so the secret can begin at any of the run's
    /// first digits.
    pub(super) const fn phases(self) -> usize {
        match self {
            Self::Base64 => 4,
            Self::Hexadecimal => 2,
            Self::Decimal => 1,
        }
    }

    pub(super) fn each_run(self, text: &[u8], bytes_min: usize, see: &mut dyn FnMut(&DigitRun)) {
        let kinds = match self {
            Self::Base64 => &BASE64,
            Self::Hexadecimal => &HEXADECIMAL,
            Self::Decimal => &DECIMAL,
        };
        let mut run = DigitRun::default();
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            let (kind, width) = match kinds[usize::from(*byte)] {
                LONGER => self.longer(kinds, text, at),
                kind => (kind, 1),
            };
            match kind {
                OTHER => run.end(self, bytes_min, see),
                SEPARATOR => {}
                digit => run.push(digit, at, width),
            }
            at += width;
        }
        run.end(self, bytes_min, see);
    }

    fn longer(self, kinds: &DigitTable, text: &[u8], at: usize) -> (u8, usize) {
        match (self, text.get(at)) {
            (Self::Decimal, Some(b'0'..=b'9')) => decimal(text, at),
            (Self::Hexadecimal, Some(b'0')) => match text.get(at + 1) {
                Some(b'x' | b'X') => (SEPARATOR, 2),
                _ => (0, 1),
            },
            _ => match escapes::resolved(text, at) {
                None => (OTHER, 1),
                Some((b'0', width)) if matches!(self, Self::Hexadecimal) => (0, width),
                Some((byte, width)) => match kinds[usize::from(byte)] {
                    LONGER => (OTHER, width),
                    kind => (kind, width),
                },
            },
        }
    }

    const fn kinds(self) -> DigitTable {
        let mut kinds = [OTHER; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            kinds[byte as usize] = match (self, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') | (Self::Decimal, b',') => SEPARATOR,
                (Self::Hexadecimal, b':' | b'-' | b',' | b'.' | b';' | b'_') => SEPARATOR,
                (_, b'\\' | b'%' | b'&') | (Self::Hexadecimal, b'0') | (Self::Decimal, b'0'..=b'9') => LONGER,
                (Self::Base64, b'A'..=b'Z') => byte - b'A',
                (Self::Base64, b'a'..=b'z') => byte - b'a' + 26,
                (Self::Base64, b'0'..=b'9') => byte - b'0' + 52,
                (Self::Base64, b'+' | b'-') => 62,
                (Self::Base64, b'/' | b'_') => 63,
                (Self::Hexadecimal, b'1'..=b'9') => byte - b'0',
                (Self::Hexadecimal, b'a'..=b'f') => byte - b'a' + 10,
                (Self::Hexadecimal, b'A'..=b'F') => byte - b'A' + 10,
                _ => OTHER,
            };
            byte += 1;
        }
        kinds
    }
}

/// Returns the number and its width. The number is [`OTHER`] if it is [`SEPARATOR`] or larger.
fn decimal(text: &[u8], at: usize) -> (u8, usize) {
    let digits = text.get(at..).unwrap_or_default();
    let width = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = digits.get(..width).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u8>().ok());
    // Larger numbers would be read as the constants above. No UTF-8 text contains such bytes.
    (number.filter(|number| *number < SEPARATOR).unwrap_or(OTHER), width)
}

impl DigitRun {
    fn push(&mut self, value: u8, at: usize, width: usize) {
        let follows = self.digit_spans.last().is_some_and(|stretch| {
            stretch.width == width && stretch.at + (self.digits.len() - stretch.first_digit) * width == at
        });
        if !follows {
            self.digit_spans.push(DigitSpan { first_digit: self.digits.len(), at, width });
        }
        self.digits.push(value);
    }

    fn end(&mut self, encoding: Encoding, bytes_min: usize, see: &mut dyn FnMut(&Self)) {
        if self.digits.len() * encoding.bits() >= bytes_min * 8 {
            see(self);
        }
        self.digits.clear();
        self.digit_spans.clear();
    }

    pub(super) fn decoded(&self, encoding: Encoding, phase: usize) -> Vec<u8> {
        let digits = self.digits.get(phase..).unwrap_or_default();
        let mut decoded = Vec::with_capacity(digits.len() * encoding.bits() / 8);
        let mut bits = 0_u32;
        let mut held = 0;
        for digit in digits {
            bits = bits << encoding.bits() | u32::from(*digit);
            held += encoding.bits();
            if held >= 8 {
                held -= 8;
                let [.., byte] = (bits >> held).to_be_bytes();
                decoded.push(byte);
                bits &= (1 << held) - 1;
            }
        }
        decoded
    }

    pub(super) fn span(&self, encoding: Encoding, phase: usize, (from, to): (usize, usize)) -> (usize, usize) {
        let digit = |bit: usize| phase + bit / encoding.bits();
        (self.place(digit(from * 8)).0, self.place(digit((to * 8).saturating_sub(1))).1)
    }

    fn place(&self, digit: usize) -> (usize, usize) {
        let behind = self.digit_spans.partition_point(|stretch| stretch.first_digit <= digit);
        let Some(stretch) = self.digit_spans.get(behind.saturating_sub(1)) else { return (0, 0) };
        let at = stretch.at + (digit - stretch.first_digit) * stretch.width;
        (at, at + stretch.width)
    }
}
