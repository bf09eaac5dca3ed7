//! What scripts find beside Lua's own libraries.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Function, Lua, LuaString, Table, Value, Variadic};

use super::desk::Desk;
use super::structs;

/// Sets what is global, answers the first members of `redis`.
pub(super) fn install(lua: &Lua, _: &Rc<Desk>) -> mlua::Result<Table> {
    let globals = lua.globals();
    let structs = lua.create_table()?;
    structs.raw_set(
        "pack",
        lua.create_function(|lua, (format, values): (LuaString, Variadic<Value>)| {
            lua.create_string(structs::pack(&format.as_bytes(), &values)?)
        })?,
    )?;
    structs.raw_set(
        "unpack",
        lua.create_function(|lua, (format, text, from): (LuaString, LuaString, Option<usize>)| {
            structs::unpack(lua, &format.as_bytes(), &text.as_bytes(), from.unwrap_or(1))
        })?,
    )?;
    structs.raw_set("size", lua.create_function(|_, format: LuaString| structs::size(&format.as_bytes()))?)?;
    globals.raw_set("struct", structs)?;
    chance(lua, &globals.raw_get("math")?)?;
    let redis = lua.create_table()?;
    let sha1hex = |_: &Lua, text: LuaString| Ok(super::digest(&text.as_bytes()));
    redis.raw_set("sha1hex", lua.create_function(sha1hex)?)?;
    Ok(redis)
}

/// Chance as Redis gives it to scripts: numbers that come alike in every run.
fn chance(lua: &Lua, math: &Table) -> mlua::Result<()> {
    let state = Rc::new(Cell::new(0x330E_u64));
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

/// Makes a table of an error that nobody caught, with the place that it comes from.
pub(super) fn handler(lua: &Lua) -> mlua::Result<Function> {
    lua.create_function(|lua, error: Value| {
        let table = match error {
            Value::Table(table) => table,
            other => {
                let table = lua.create_table()?;
                let mut text = b"ERR ".to_vec();
                match &other {
                    Value::Error(error) => text.extend_from_slice(error.to_string().as_bytes()),
                    other => text.extend_from_slice(other.to_string()?.as_bytes()),
                }
                table.raw_set("err", lua.create_string(&text)?)?;
                table
            }
        };
        // What raises (a function of C, or ours above it) is passed over, once each, as Redis' handler does.
        let (mut level, mut skips) = (1, 2);
        while skips > 0 {
            let passed = lua.inspect_stack(level, |frame| {
                let source = frame.source();
                source.what == "C" || source.source.as_deref() == Some("=redis")
            });
            if passed != Some(true) {
                break;
            }
            (level, skips) = (level + 1, skips - 1);
        }
        let place = lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let line = frame.current_line().map_or(-1, |line| line as i64);
            (source.source.map(std::borrow::Cow::into_owned).unwrap_or_default(), line)
        });
        if let Some((source, line)) = place {
            table.raw_set("source", source)?;
            table.raw_set("line", line)?;
        }
        Ok(table)
    })
}
