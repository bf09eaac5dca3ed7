//! Numbers and texts as bytes: the library `struct`.

use mlua::Value;

/// What is wrong, and with which argument.
pub(super) struct Wrong {
    pub(super) argument: usize,
    pub(super) text: String,
}

/// What was unpacked.
pub(super) enum Unpacked {
    Number(f64),
    Text(Vec<u8>),
}

type Result<T> = std::result::Result<T, Wrong>;

/// One item of a format.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Item {
    /// A whole number of so many bytes.
    Int {
        bytes: usize,
        signed: bool,
    },
    Float,
    Double,
    /// So many characters; 0: as many as there are, or as the number before says.
    Chars(usize),
    /// Up to a zero byte.
    Zeroed,
    Pad,
}

/// Reads a format.
struct Format<'a> {
    rest: &'a [u8],
    big: bool,
    align: usize,
}

fn wrong<T>(argument: usize, why: impl Into<String>) -> Result<T> {
    Err(Wrong { argument, text: why.into() })
}

impl<'a> Format<'a> {
    const fn new(rest: &'a [u8]) -> Self {
        Self { rest, big: false, align: 1 }
    }

    fn number(&mut self, default: usize) -> Result<usize> {
        let digits = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        match std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()) {
            Some(number) if number < 1 << 30 => Ok(number),
            _ => wrong(1, "integral size overflow"),
        }
    }

    fn int(&mut self, default: usize, signed: bool) -> Result<Item> {
        let bytes = self.number(default)?;
        if !(1..=32).contains(&bytes) {
            return wrong(1, format!("integral size {bytes} is larger than limit of 32"));
        }
        Ok(Item::Int { bytes, signed })
    }

    /// The next item; none at the end.
    fn next(&mut self) -> Result<Option<Item>> {
        while let Some((letter, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(Some(match letter {
                b'<' | b'=' | b'>' => {
                    self.big = *letter == b'>';
                    continue;
                }
                b' ' => continue,
                b'!' => {
                    self.align = self.number(8)?;
                    if !self.align.is_power_of_two() {
                        return wrong(1, "alignment is not a power of 2");
                    }
                    continue;
                }
                b'b' | b'B' => Item::Int { bytes: 1, signed: *letter == b'b' },
                b'h' | b'H' => Item::Int { bytes: 2, signed: *letter == b'h' },
                b'l' | b'L' => Item::Int { bytes: 8, signed: *letter == b'l' },
                b'T' => Item::Int { bytes: 8, signed: false },
                b'i' => self.int(4, true)?,
                b'I' => self.int(4, false)?,
                b'f' => Item::Float,
                b'd' => Item::Double,
                b'c' => Item::Chars(self.number(1)?),
                b's' => Item::Zeroed,
                b'x' => Item::Pad,
                other => return wrong(1, format!("invalid format option '{}'", char::from(*other))),
            }));
        }
        Ok(None)
    }

    /// Bytes that precede an item so that it stands where it should.
    fn padding(&self, item: Item, at: usize) -> usize {
        let bytes = match item {
            Item::Int { bytes, .. } => bytes,
            Item::Float => 4,
            Item::Double => 8,
            _ => 1,
        };
        let align = bytes.min(self.align);
        if align > 1 && item != Item::Pad { (align - (at & (align - 1))) & (align - 1) } else { 0 }
    }
}

fn number(value: &Value, argument: usize) -> Result<f64> {
    match value {
        Value::Integer(number) => Ok(*number as f64),
        Value::Number(number) => Ok(*number),
        Value::String(text) => {
            let number = std::str::from_utf8(&text.as_bytes()).ok().and_then(|text| text.trim().parse().ok());
            number.map_or_else(|| wrong(argument, "number expected, got string"), Ok)
        }
        other => wrong(argument, format!("number expected, got {}", other.type_name())),
    }
}

fn put(out: &mut Vec<u8>, mut bytes: Vec<u8>, big: bool) {
    if big {
        bytes.reverse();
    }
    out.append(&mut bytes);
}

/// Packs values.
pub(super) fn pack(format: &[u8], values: &[Value]) -> Result<Vec<u8>> {
    let (mut format, mut out, mut values) = (Format::new(format), Vec::new(), values.iter().zip(2..));
    while let Some(item) = format.next()? {
        out.resize(out.len() + format.padding(item, out.len()), 0);
        if item == Item::Pad {
            out.push(0);
            continue;
        }
        let (value, argument) = values.next().unwrap_or((&Value::Nil, 2));
        match item {
            Item::Int { bytes, .. } => {
                let number = number(value, argument)?;
                let whole = if number < 0.0 { number as i64 as u64 } else { number as u64 };
                let mut little = whole.to_le_bytes().to_vec();
                little.resize(bytes, if number < 0.0 { 0xFF } else { 0 });
                put(&mut out, little, format.big);
            }
            Item::Float => put(&mut out, (number(value, argument)? as f32).to_le_bytes().to_vec(), format.big),
            Item::Double => put(&mut out, number(value, argument)?.to_le_bytes().to_vec(), format.big),
            Item::Chars(_) | Item::Zeroed => {
                let Value::String(text) = value else { return wrong(argument, "string expected") };
                let text = text.as_bytes();
                let length = if let Item::Chars(length @ 1..) = item { length } else { text.len() };
                let Some(part) = text.get(..length) else { return wrong(argument, "string too short") };
                out.extend_from_slice(part);
                if item == Item::Zeroed {
                    out.push(0);
                }
            }
            Item::Pad => {}
        }
    }
    Ok(out)
}

fn whole(bytes: &[u8], signed: bool, big: bool) -> f64 {
    let mut little = bytes.to_vec();
    if big {
        little.reverse();
    }
    let negative = signed && little.last().is_some_and(|last| *last >= 0x80);
    little.resize(8, if negative { 0xFF } else { 0 });
    let number = little.iter().take(8).rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    if signed { number as i64 as f64 } else { number as f64 }
}

fn array<const N: usize>(bytes: &[u8], big: bool) -> [u8; N] {
    let mut array = [0; N];
    array.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    if big {
        array.reverse();
    }
    array
}

/// Unpacks values, from the 1-based `from` on; last comes where it stopped.
pub(super) fn unpack(format: &[u8], text: &[u8], from: usize) -> Result<Vec<Unpacked>> {
    let (mut format, mut values) = (Format::new(format), Vec::new());
    let Some(mut at) = from.checked_sub(1) else { return wrong(3, "offset must be 1 or greater") };
    while let Some(item) = format.next()? {
        at += format.padding(item, at);
        let rest = text.get(at..).unwrap_or_default();
        let length = match item {
            Item::Int { bytes, .. } => bytes,
            Item::Float => 4,
            Item::Double => 8,
            Item::Pad => 1,
            Item::Chars(length @ 1..) => length,
            Item::Chars(_) => match values.pop() {
                Some(Unpacked::Number(length)) if length >= 0.0 => length as usize,
                _ => return wrong(1, "format 'c0' needs a previous size"),
            },
            Item::Zeroed => match rest.iter().position(|byte| *byte == 0) {
                Some(end) => end + 1,
                None => return wrong(2, "unfinished string in data"),
            },
        };
        let Some(part) = rest.get(..length) else { return wrong(2, "data string too short") };
        at += length;
        match item {
            Item::Int { signed, .. } => values.push(Unpacked::Number(whole(part, signed, format.big))),
            Item::Float => values.push(Unpacked::Number(f32::from_le_bytes(array(part, format.big)).into())),
            Item::Double => values.push(Unpacked::Number(f64::from_le_bytes(array(part, format.big)))),
            Item::Chars(_) => values.push(Unpacked::Text(part.to_vec())),
            Item::Zeroed => {
                let text = part.get(..length - 1).unwrap_or_default();
                values.push(Unpacked::Text(text.to_vec()));
            }
            Item::Pad => {}
        }
    }
    values.push(Unpacked::Number((at + 1) as f64));
    Ok(values)
}

/// Bytes that a format takes.
pub(super) fn size(format: &[u8]) -> Result<usize> {
    let (mut format, mut at) = (Format::new(format), 0);
    while let Some(item) = format.next()? {
        at += format.padding(item, at);
        at += match item {
            Item::Int { bytes, .. } => bytes,
            Item::Float => 4,
            Item::Double => 8,
            Item::Pad => 1,
            Item::Chars(length @ 1..) => length,
            Item::Chars(_) | Item::Zeroed => return wrong(1, "variable-size format in struct.size"),
        };
    }
    Ok(at)
}
