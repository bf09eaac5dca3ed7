//! What scripts find beside Lua's own libraries.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value, Variadic};

use super::cover::Covered;
use super::json;
use super::structs::{self, Unpacked};

/// The first members of `redis`. What else there is, is made global.
pub(super) fn redis(lua: &Lua) -> mlua::Result<Table> {
    chance(lua, &lua.globals().raw_get("math")?)?;
    let json = lua.create_table()?;
    let encode = |lua: &Lua, value: Value| {
        let mut text = Vec::new();
        json::encode(&value, &mut text);
        lua.create_string(text)
    };
    json.raw_set("encode", lua.create_function(encode)?)?;
    lua.globals().raw_set("cjson", json)?;
    let redis = lua.create_table()?;
    let sha1hex = |_: &Lua, text: LuaString| Ok(super::digest(&text.as_bytes()));
    redis.raw_set("sha1hex", lua.create_function(sha1hex)?)?;
    Ok(redis)
}

/// What the library `struct` is made of: functions that answer first what is wrong, or nil.
pub(super) fn packs(lua: &Lua) -> mlua::Result<Table> {
    let packs = lua.create_table()?;
    let pack = |lua: &Lua, (format, values): (LuaString, Variadic<Value>)| {
        Ok(match structs::pack(&format.as_bytes(), &values) {
            Ok(bytes) => (None, Some(lua.create_string(bytes)?)),
            Err(why) => (Some(format!("bad argument #{} to 'pack' ({})", why.argument, why.text)), None),
        })
    };
    let unpack = |lua: &Lua, (format, text, from): (LuaString, LuaString, Option<usize>)| match structs::unpack(
        &format.as_bytes(),
        &text.as_bytes(),
        from.unwrap_or(1),
    ) {
        Ok(items) => {
            let items = items.into_iter().map(|item| match item {
                Unpacked::Number(number) => Ok(Value::Number(number)),
                Unpacked::Text(text) => lua.create_string(text).map(Value::String),
            });
            let values = std::iter::once(Ok(Value::Nil)).chain(items);
            values.collect::<mlua::Result<MultiValue>>()
        }
        Err(why) => {
            let why = format!("bad argument #{} to 'unpack' ({})", why.argument, why.text);
            Ok(MultiValue::from_iter([Value::String(lua.create_string(why)?)]))
        }
    };
    let size =
        |_: &Lua, format: LuaString| structs::size(&format.as_bytes()).map_err(|why| mlua::Error::runtime(why.text));
    packs.raw_set("pack", lua.create_function(pack)?)?;
    packs.raw_set("unpack", lua.create_function(unpack)?)?;
    packs.raw_set("size", lua.create_function(size)?)?;
    Ok(packs)
}

/// Chance as Redis gives it to scripts: numbers that come alike in every run.
fn chance(lua: &Lua, math: &Table) -> mlua::Result<()> {
    let state = Rc::new(Cell::new(0x1234_ABCD_330E_u64));
    let seeded = Rc::clone(&state);
    let seed = lua.create_function(move |_, seed: f64| {
        seeded.set(((seed as i64 as u64) & 0xFFFF_FFFF) << 16 | 0x330E);
        Ok(())
    })?;
    math.raw_set("randomseed", seed)?;
    let random = lua.create_function(move |_, (low, high): (Option<f64>, Option<f64>)| {
        let next = state.get().wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & 0xFFFF_FFFF_FFFF;
        state.set(next);
        let max = 2_147_483_647_u64;
        let drawn = ((next >> 17) % max) as f64 / max as f64;
        Ok(match (low, high) {
            (None, _) => drawn,
            (Some(high), None) => (drawn * high).floor() + 1.0,
            (Some(low), Some(high)) => (drawn * (high - low + 1.0)).floor() + low,
        })
    })?;
    math.raw_set("random", random)
}

/// A message that begins with its place in the script, with the script's own line in it.
fn placed(text: &[u8], covered: &Covered) -> Option<Vec<u8>> {
    let (line, rest) = std::str::from_utf8(text).ok()?.strip_prefix("user_script:")?.split_once(':')?;
    Some(format!("user_script:{}:{rest}", covered.line(line.parse().ok()?)).into_bytes())
}

/// Makes a table of an error that nobody caught, with the place that it comes from.
pub(super) fn handler(lua: &Lua, covered: &Rc<Covered>) -> mlua::Result<Function> {
    let covered = Rc::clone(covered);
    lua.create_function(move |lua, error: Value| {
        let table = match error {
            Value::Table(table) => table,
            other => {
                let table = lua.create_table()?;
                let mut text = b"ERR ".to_vec();
                match &other {
                    Value::Error(error) => {
                        let error = error.to_string();
                        text.extend_from_slice(error.lines().next().unwrap_or_default().as_bytes());
                    }
                    other => {
                        let said = other.to_string()?.into_bytes();
                        text.extend(placed(&said, &covered).unwrap_or(said));
                    }
                }
                table.raw_set("err", lua.create_string(&text)?)?;
                table
            }
        };
        // What raises (a function of C, or ours above it) is passed over, as Redis' handler does.
        let mut level = 1;
        let is_ours = |level| {
            lua.inspect_stack(level, |frame| {
                let source = frame.source();
                source.what == "C" || source.source.as_deref() == Some("=redis")
            })
        };
        while is_ours(level) == Some(true) {
            level += 1;
        }
        let place = lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let line = frame.current_line().map_or(-1, |line| covered.line(line) as i64);
            (source.source.map(std::borrow::Cow::into_owned).unwrap_or_default(), line)
        });
        if let Some((source, line)) = place {
            table.raw_set("source", source)?;
            table.raw_set("line", line)?;
        }
        Ok(table)
    })
}
