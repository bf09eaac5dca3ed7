//! Scans JSON byte by byte. A scan needs almost no memory, so it can run before a parser.

use tickfleet_model::limits;

/// A deeper text could overflow the stack of a JSON parser.
const DEPTH_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 8;

/// Returns a flaw: nesting that is too deep, or text that is not valid Unicode. `json` must have valid syntax.
pub(super) fn flaw(json: &str) -> Option<String> {
    if depth(json) > DEPTH_MAX {
        return Some(format!("it nests deeper than {DEPTH_MAX} levels"));
    }
    has_half_pair(json).then(|| "one of its strings has a lone surrogate".to_owned())
}

fn outside_texts(json: &str, mut see: impl FnMut(u8)) {
    let mut in_text = false;
    let mut escaped = false;
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            byte => see(byte),
        }
    }
}

pub(super) fn depth(json: &str) -> usize {
    let mut depth = 0_usize;
    let mut most = 0;
    outside_texts(json, |byte| match byte {
        b'{' | b'[' => {
            depth += 1;
            most = most.max(depth);
        }
        b'}' | b']' => depth = depth.saturating_sub(1),
        _ => {}
    });
    most
}

fn has_half_pair(json: &str) -> bool {
    let bytes = json.as_bytes();
    let unit = |at: usize| match bytes.get(at..at + 6) {
        Some([b'\\', b'u', digits @ ..]) => {
            std::str::from_utf8(digits).ok().and_then(|digits| u16::from_str_radix(digits, 16).ok())
        }
        _ => None,
    };
    let mut at = 0;
    // A backslash occurs only inside strings.
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += found;
        match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => return true,
            Some(_) => at += 6,
            None => at += 2,
        }
    }
    false
}

/// Removes whitespace outside of strings. Preserves every digit.
pub(super) fn compact(json: &str) -> String {
    let mut compact = String::with_capacity(json.len());
    let mut in_text = false;
    let mut escaped = false;
    for c in json.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            ' ' | '\t' | '\r' | '\n' if !in_text => continue,
            _ => {}
        }
        compact.push(c);
    }
    compact
}

/// Finds out whether a message is a response, and to which request. Only members at the top level count, because a
/// result can contain any JSON.
#[derive(Debug, Default)]
pub(super) struct MessageScan {
    pub(super) bytes: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
    text: Vec<u8>,
    member: Member,
    id: Option<u64>,
    has_result: bool,
    is_odd: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Member {
    Id,
    #[default]
    Other,
}

impl MessageScan {
    pub(super) fn take_all(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.take(*byte));
    }

    fn take(&mut self, byte: u8) {
        self.bytes = self.bytes.saturating_add(1);
        let of_message = self.depth == 1;
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_text => self.escaped = true,
            b'"' => {
                self.in_text = !self.in_text;
                if self.in_text && of_message {
                    self.text.clear();
                    // This client's ids are numbers, so a string is not one of them.
                    self.is_odd |= self.member == Member::Id;
                }
            }
            _ if self.in_text => self.letter(byte),
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if of_message => self.named(),
            b',' if of_message => self.member = Member::Other,
            _ if of_message && self.member == Member::Id => self.digit(byte),
            _ => {}
        }
    }

    fn letter(&mut self, byte: u8) {
        if self.depth == 1 && self.text.len() < NAME_BYTES_MAX {
            self.text.push(byte);
        }
    }

    fn named(&mut self) {
        self.member = if self.text == b"id" { Member::Id } else { Member::Other };
        self.has_result |= self.text == b"result" || self.text == b"error";
        // A message with `method` is a request from the server, and the server has assigned its id. Two ids are
        // ambiguous.
        self.is_odd |= self.text == b"method" || (self.member == Member::Id && self.id.is_some());
    }

    fn digit(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' => {
                let id = self.id.unwrap_or(0).checked_mul(10).and_then(|id| id.checked_add(u64::from(byte - b'0')));
                self.is_odd |= id.is_none();
                self.id = id;
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.is_odd = true,
        }
    }

    /// The id of the request that the message responds to. `None` if the message is not a response, or if the request
    /// is unclear.
    pub(super) fn response_id(&self) -> Option<u64> {
        self.id.filter(|_| self.is_answer())
    }

    /// True also for a response to an unknown request.
    pub(super) fn is_answer(&self) -> bool {
        self.has_result && !self.is_odd
    }

    pub(super) fn is_open(&self) -> bool {
        self.depth > 0 && self.bytes <= limits::MCP_MESSAGE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_id_is_read_only_at_the_top_level() {
        let response_id = |line: &str| {
            let mut read = MessageScan::default();
            read.take_all(line.as_bytes());
            read.response_id()
        };
        assert_eq!(response_id(r#"{"jsonrpc":"2.0","id":12,"result":{"id":7,"method":"x"}}"#), Some(12));
        assert_eq!(response_id(r#"{"result":{"a":[{"id":7}],"b":"\"}],\"id\":8"}, "id" : 12 }"#), Some(12));
        assert_eq!(response_id(r#"{"result":"id","id":3}"#), Some(3), "a value is no name");
        for none in [
            r#"{"id":12,"method":"sampling/createMessage","params":{}}"#,
            r#"{"id":12}"#,
            r#"{"result":{"id":7}}"#,
            r#"{"id":"12","result":1}"#,
            r#"{"id":-1,"result":1}"#,
            r#"{"id":1.5,"result":1}"#,
            r#"{"id":null,"error":{}}"#,
            r#"{"id":1,"id":2,"result":1}"#,
            r#"{"id":99999999999999999999,"result":1}"#,
            r#"[{"id":1,"result":1}]"#,
            "id:1",
        ] {
            assert_eq!(response_id(none), None, "{none}");
        }
    }

    #[test]
    fn lone_surrogates_and_deep_nesting_are_flaws() {
        let nest = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for fine in [r#""\ud83d\ude00 \\ud83d \u00e9""#.to_owned(), format!(r#""{}""#, nest(500)), nest(128)] {
            assert_eq!(flaw(&fine), None, "{fine}");
        }
        assert!(flaw(&nest(129)).is_some());
        for half in [r#""\ud83d""#, r#""\ude00\ud83d""#, r#""\ud83dx""#, r#"{"\udc00":1}"#] {
            assert!(flaw(half).is_some(), "{half}");
        }
    }

    #[test]
    fn compacting_removes_only_whitespace_between_values() {
        let json = "{ \"a b\" : [ 1.0 ,\n\t2e400 ] , \"c\\\" \" : \"d  e\" }";
        assert_eq!(compact(json), r#"{"a b":[1.0,2e400],"c\" ":"d  e"}"#);
        assert!(tickfleet_outbound::json_values(json.as_bytes()) >= 5);
    }
}
