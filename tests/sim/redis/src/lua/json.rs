//! Values as JSON: `cjson.encode`, for scripts of tests that look at much.

use mlua::{Table, Value};

use crate::number::write_g;

/// Digits of a number.
const DIGITS: usize = 14;

/// Appends a value. What is no data is null.
pub(super) fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Boolean(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::Integer(number) => write_g(*number as f64, DIGITS, out),
        Value::Number(number) => write_g(*number, DIGITS, out),
        Value::String(text) => quote(&text.as_bytes(), out),
        Value::Table(table) => encode_table(table, out),
        _ => out.extend_from_slice(b"null"),
    }
}

fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' | b'/' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0C => out.extend_from_slice(b"\\f"),
            0..0x20 | 0x7F => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// A list is one that has numbers only; an empty table is an object.
fn encode_table(table: &Table, out: &mut Vec<u8>) {
    let length = table.raw_len();
    let pairs: Vec<(Value, Value)> = table.pairs().flatten().collect();
    if length > 0 && pairs.len() == length {
        out.push(b'[');
        for at in 1..=length {
            if at > 1 {
                out.push(b',');
            }
            encode(&table.raw_get(at).unwrap_or(Value::Nil), out);
        }
        return out.push(b']');
    }
    out.push(b'{');
    for (at, (name, value)) in pairs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        quote(name.to_string().unwrap_or_default().as_bytes(), out);
        out.push(b':');
        encode(value, out);
    }
    out.push(b'}');
}
