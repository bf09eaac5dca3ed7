//! Replies, and the protocol that requests and replies travel in (RESP2).

/// What a command answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A short word, such as `OK`.
    Status(String),
    /// An error, its code first.
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// No bytes.
    Nil,
    /// No list.
    NilArray,
    /// A list.
    Array(Vec<Self>),
}

impl Reply {
    pub(crate) fn ok() -> Self {
        Self::Status("OK".into())
    }

    pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Self {
        Self::Bulk(text.as_ref().to_vec())
    }

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub(crate) const fn int(n: usize) -> Self {
        Self::Int(n as i64)
    }

    pub(crate) fn bulk_or_nil(text: Option<impl AsRef<[u8]>>) -> Self {
        text.map_or(Self::Nil, Self::bulk)
    }

    /// Appends the reply as a server sends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(text) => line(out, b'+', text.as_bytes()),
            Self::Error(text) => line(out, b'-', text.as_bytes()),
            Self::Int(n) => line(out, b':', n.to_string().as_bytes()),
            Self::Bulk(bytes) => {
                line(out, b'$', bytes.len().to_string().as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil => line(out, b'$', b"-1"),
            Self::NilArray => line(out, b'*', b"-1"),
            Self::Array(items) => {
                line(out, b'*', items.len().to_string().as_bytes());
                for item in items {
                    item.encode(out);
                }
            }
        }
    }
}

fn line(out: &mut Vec<u8>, mark: u8, text: &[u8]) {
    out.push(mark);
    // A line break in an error would end it early.
    out.extend(text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }));
    out.extend_from_slice(b"\r\n");
}

/// Takes one whole request off the front of `input`; none while it is not whole.
///
/// # Errors
/// What is wrong with bytes that are no request: such a connection is to be closed.
pub fn decode(input: &mut Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, String> {
    let mut at = 0;
    let Some(count) = header(input, &mut at, b'*')? else { return Ok(None) };
    let mut args = Vec::new();
    for _ in 0..count {
        let Some(length) = header(input, &mut at, b'$')? else { return Ok(None) };
        let Some(bytes) = input.get(at..at + length) else { return Ok(None) };
        if input.len() < at + length + 2 {
            return Ok(None);
        }
        args.push(bytes.to_vec());
        at += length + 2;
    }
    input.drain(..at);
    Ok(Some(args))
}

/// Reads a line such as `*3`, moves `at` behind it.
fn header(input: &[u8], at: &mut usize, mark: u8) -> Result<Option<usize>, String> {
    let rest = input.get(*at..).unwrap_or_default();
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let line = rest.get(..end).unwrap_or_default();
    let number = line.strip_prefix(&[mark]).and_then(|n| std::str::from_utf8(n).ok()).and_then(|n| n.parse().ok());
    let number = number.ok_or_else(|| format!("no request: {:?}", String::from_utf8_lossy(line)))?;
    *at += end + 2;
    Ok(Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_only_when_it_is_whole() {
        let whole = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        for cut in 0..whole.len() {
            assert_eq!(decode(&mut whole[..cut].to_vec()), Ok(None), "{cut}");
        }
        let mut two = [&whole[..], &whole[..], b"*"].concat();
        for _ in 0..2 {
            assert_eq!(decode(&mut two), Ok(Some(vec![b"GET".to_vec(), b"k".to_vec()])));
        }
        assert_eq!(two, b"*");
        assert!(decode(&mut b"GET k\r\n".to_vec()).is_err());
    }
}
