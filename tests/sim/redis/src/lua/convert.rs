//! Values of Lua, words of commands, replies.

use mlua::{IntoLua, Lua, Table, Value};

use crate::number::write_g17;
use crate::reply::Reply;

/// Appends a value as a word of a command. Answers false where it can be none.
pub(super) fn write_arg(value: &Value, out: &mut Vec<u8>) -> bool {
    match value {
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Integer(number) => write_g17(*number as f64, out),
        Value::Number(number) => write_g17(*number, out),
        _ => return false,
    }
    true
}

/// An error as scripts get it.
pub(super) fn error_table(lua: &Lua, text: &str) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 1)?;
    let text = if text.contains(' ') { text.to_owned() } else { format!("ERR {text}") };
    table.raw_set("err", text)?;
    Ok(table)
}

/// A reply as scripts get it.
pub(super) fn value_of(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Int(number) => Value::Number(*number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Nil | Reply::NilArray => Value::Boolean(false),
        Reply::Error(text) => Value::Table(error_table(lua, text)?),
        Reply::Status(text) => {
            let table = lua.create_table_with_capacity(0, 1)?;
            table.raw_set("ok", text.as_str())?;
            Value::Table(table)
        }
        Reply::Array(items) => Value::Table(lua.create_sequence_from(items.iter().map(Item))?),
    })
}

/// An item of a list. One is made after the other: Lua's stack is short for all at once.
struct Item<'a>(&'a Reply);

impl IntoLua for Item<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        value_of(lua, self.0)
    }
}

/// The first number that is too large for a reply.
const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

/// What a script returned, as a reply.
pub(super) fn reply_of(value: &Value) -> Reply {
    match value {
        Value::String(text) => Reply::bulk(text.as_bytes()),
        Value::Integer(number) => Reply::Int(*number),
        // Beyond what fits, x86 answers the smallest number.
        Value::Number(number) if !(-TOO_LARGE..TOO_LARGE).contains(number) => Reply::Int(i64::MIN),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => reply_of_table(table),
        _ => Reply::Nil,
    }
}

fn reply_of_table(table: &Table) -> Reply {
    let text = |name: &str| match table.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.to_string_lossy()),
        _ => None,
    };
    if let Some(error) = text("err") {
        return Reply::Error(error);
    }
    if let Some(status) = text("ok") {
        return Reply::Status(status.replace(['\r', '\n'], " "));
    }
    if let Ok(Value::Number(number)) = table.raw_get::<Value>("double") {
        return Reply::Bulk(crate::number::g17(number));
    }
    let mut items = Vec::with_capacity(table.raw_len());
    for at in 1.. {
        match table.raw_get::<Value>(at) {
            Ok(Value::Nil) | Err(_) => break,
            Ok(item) => items.push(reply_of(&item)),
        }
    }
    Reply::Array(items)
}
