//! Reads an event stream with size limits. A bad event does not affect later events.

use sse_stream::Sse;
use tickfleet_model::limits;

/// The maximum length of an event's name or id. The id is sent to the server when a stream is resumed.
const WORD_BYTES_MAX: usize = 1_024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Data {
    Bytes(Vec<u8>),
    TooLarge,
}

#[derive(Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    is_too_large: bool,
    event: Option<String>,
    id: Option<String>,
    retry: Option<u64>,
    /// After a carriage return, a line feed belongs to the same line end.
    after_return: bool,
}

impl Events {
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<(Sse, Option<Data>)> {
        let mut complete = Vec::new();
        let mut rest = bytes;
        while let Some((first, behind)) = rest.split_first() {
            if std::mem::take(&mut self.after_return) && *first == b'\n' {
                rest = behind;
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.add(&rest[..end.unwrap_or(rest.len())]);
            let Some(end) = end else { break };
            self.after_return = rest[end] == b'\r';
            complete.extend(self.end_line());
            rest = &rest[end + 1..];
        }
        complete
    }

    fn add(&mut self, part: &[u8]) {
        if self.line.len() + self.data.len() + part.len() <= limits::MCP_MESSAGE_BYTES_MAX + WORD_BYTES_MAX {
            self.line.extend_from_slice(part);
        } else {
            self.is_too_large = true;
            (self.data, self.line) = (Vec::new(), b"data:".to_vec());
        }
    }

    fn end_line(&mut self) -> Option<(Sse, Option<Data>)> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.end_event();
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (&line[..], &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let word = || String::from_utf8(value.to_vec()).ok().filter(|word| word.len() <= WORD_BYTES_MAX);
        match name {
            b"data" if self.data.len() + value.len() > limits::MCP_MESSAGE_BYTES_MAX => self.is_too_large = true,
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            b"event" => self.event = word(),
            b"id" => self.id = word().filter(|id| !id.contains('\0')),
            b"retry" => self.retry = word().and_then(|retry| retry.parse().ok()),
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<(Sse, Option<Data>)> {
        let bytes = std::mem::take(&mut self.data);
        let has_data = std::mem::take(&mut self.has_data);
        let is_too_large = std::mem::take(&mut self.is_too_large);
        let sse = Sse { event: self.event.take(), data: None, id: self.id.take(), retry: self.retry.take() };
        let data = if is_too_large { Some(Data::TooLarge) } else { has_data.then_some(Data::Bytes(bytes)) };
        (data.is_some() || sse.id.is_some() || sse.retry.is_some()).then_some((sse, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(stream: &[u8], chunk: usize) -> Vec<Option<Data>> {
        let mut events = Events::default();
        stream.chunks(chunk).flat_map(|bytes| events.take(bytes)).map(|(_, data)| data).collect()
    }

    #[test]
    fn event_parsing_does_not_depend_on_chunk_size() {
        let stream =
            b": hi\r\nevent: message\r\nid: 7\r\ndata: {\r\ndata:}\r\n\r\ndata: caf\xe9\n\nid: 8\n\n\rdata:x\r\r";
        let expected = [
            Some(Data::Bytes(b"{\n}".to_vec())),
            Some(Data::Bytes(b"caf\xe9".to_vec())),
            None,
            Some(Data::Bytes(b"x".to_vec())),
        ];
        for chunk in [1, 2, 3, 1_000] {
            assert_eq!(data(stream, chunk), expected);
        }
        let (sse, _) = Events::default().take(stream).swap_remove(0);
        assert_eq!((sse.event.as_deref(), sse.id.as_deref()), (Some("message"), Some("7")));
    }

    #[test]
    fn an_oversized_event_does_not_affect_the_next_one() {
        let most = limits::MCP_MESSAGE_BYTES_MAX;
        for (bytes, lines, fits) in [(most, 1, true), (most + 1, 1, false), (3 * most, 1, false), (most / 2, 3, false)]
        {
            let line = [b"data: ".as_slice(), &vec![b'x'; bytes], b"\n"].concat();
            let stream = [line.repeat(lines).as_slice(), b"\ndata: y\n\n"].concat();
            let got = data(&stream, 64 * 1024);
            assert_eq!(got.len(), 2);
            assert_eq!(got[0] != Some(Data::TooLarge), fits, "{bytes}");
            assert_eq!(got[1], Some(Data::Bytes(b"y".to_vec())));
        }
    }
}
