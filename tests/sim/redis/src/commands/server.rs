//! The server itself, and connections to it.

use super::{Args, Outcome, fail, is, no_subcommand, parse, shown};
use crate::db::Db;
use crate::number::int;
use crate::reply::Reply;

pub(super) fn ping(_: &mut Db, args: Args<'_>) -> Outcome {
    match args {
        [_] => Ok(Reply::Status("PONG".into())),
        [_, text] => Ok(Reply::bulk(text)),
        _ => fail("ERR wrong number of arguments for 'ping' command"),
    }
}

pub(super) fn echo(_: &mut Db, args: Args<'_>) -> Outcome {
    Ok(Reply::bulk(args[1]))
}

/// The protocol stays RESP2, so clients are told what a server before 6.0 would.
pub(super) fn hello(_: &mut Db, _: Args<'_>) -> Outcome {
    fail("ERR unknown command 'HELLO'")
}

pub(super) fn auth(_: &mut Db, _: Args<'_>) -> Outcome {
    Ok(Reply::ok())
}

pub(super) fn select(_: &mut Db, args: Args<'_>) -> Outcome {
    if int(args[1])? == 0 { Ok(Reply::ok()) } else { fail("ERR DB index is out of range") }
}

pub(super) fn client(_: &mut Db, args: Args<'_>) -> Outcome {
    match args[1] {
        // 7.0 does not know it, and the library does not mind.
        sub if is(sub, "SETINFO") => fail("ERR unknown subcommand 'SETINFO'. Try CLIENT HELP."),
        sub if is(sub, "SETNAME") || is(sub, "NO-EVICT") => Ok(Reply::ok()),
        sub if is(sub, "ID") => Ok(Reply::Int(1)),
        sub if is(sub, "GETNAME") => Ok(Reply::Nil),
        sub => fail(format!("ERR unknown subcommand '{}'. Try CLIENT HELP.", shown(sub))),
    }
}

pub(super) fn command(_: &mut Db, _: Args<'_>) -> Outcome {
    Ok(Reply::Array(Vec::new()))
}

pub(super) fn role(_: &mut Db, _: Args<'_>) -> Outcome {
    Ok(Reply::Array(vec![Reply::bulk("master"), Reply::Int(0), Reply::Array(Vec::new())]))
}

pub(super) fn save(_: &mut Db, _: Args<'_>) -> Outcome {
    Ok(Reply::ok())
}

pub(super) fn lastsave(db: &mut Db, _: Args<'_>) -> Outcome {
    Ok(Reply::Int(db.now_ms() / 1_000))
}

pub(super) fn time(db: &mut Db, _: Args<'_>) -> Outcome {
    let (seconds, micros) = (db.now_us.div_euclid(1_000_000), db.now_us.rem_euclid(1_000_000));
    Ok(Reply::Array(vec![Reply::bulk(seconds.to_string()), Reply::bulk(micros.to_string())]))
}

pub(super) fn memory(db: &mut Db, args: Args<'_>) -> Outcome {
    match args {
        [_, sub, key, ..] if is(sub, "USAGE") => {
            let held = db.data.value(key).map(|value| value.bytes() + key.len() + 72);
            Ok(held.map_or(Reply::Nil, Reply::int))
        }
        _ => no_subcommand(args),
    }
}

/// Bytes as the setting takes them: `100mb`.
fn bytes(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

pub(super) fn config(db: &mut Db, args: Args<'_>) -> Outcome {
    match args {
        [_, sub, patterns @ ..] if is(sub, "GET") && !patterns.is_empty() => {
            let maxmemory = db.maxmemory.to_string();
            let settings = db.config.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let settings = settings.chain([("maxmemory", maxmemory.as_str())]);
            let asked = |name: &str| patterns.iter().any(|p| parse::glob(&p.to_ascii_lowercase(), name.as_bytes()));
            let found = settings.filter(|(name, _)| asked(name));
            Ok(Reply::Array(found.flat_map(|(name, value)| [Reply::bulk(name), Reply::bulk(value)]).collect()))
        }
        [_, sub, pairs @ ..] if is(sub, "SET") && !pairs.is_empty() && pairs.len() % 2 == 0 => {
            for pair in pairs.chunks_exact(2) {
                let name = shown(pair[0]).to_lowercase();
                if name == "maxmemory" {
                    let Some(bytes) = bytes(pair[1]) else {
                        return fail(
                            "ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value",
                        );
                    };
                    db.maxmemory = bytes;
                } else if let Some(value) = db.config.get_mut(&name) {
                    *value = shown(pair[1]).into_owned();
                } else {
                    return fail("ERR Unknown option or number of arguments for CONFIG SET - 'unknown'");
                }
            }
            Ok(Reply::ok())
        }
        [_, sub] if is(sub, "RESETSTAT") || is(sub, "REWRITE") => Ok(Reply::ok()),
        _ => no_subcommand(args),
    }
}

/// A section of `INFO`, by its lower-case name.
fn section(db: &Db, name: &str) -> Option<String> {
    let setting = |name: &str| db.config.get(name).map_or("", String::as_str);
    let up_s = (db.now_us - db.started_us).max(0) / 1_000_000;
    Some(match name {
        "server" => format!(
            "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:{}\r\ntcp_port:6379\r\nserver_time_usec:{}\r\nuptime_in_seconds:{up_s}\r\n",
            db.run_id, db.now_us
        ),
        "clients" => "# Clients\r\nconnected_clients:1\r\nblocked_clients:0\r\n".into(),
        "memory" => format!(
            "# Memory\r\nused_memory:{}\r\nused_memory_rss:{}\r\nused_memory_peak:{}\r\nmaxmemory:{}\r\nmaxmemory_policy:{}\r\n",
            db.used_memory(),
            db.used_memory(),
            db.used_memory(),
            db.maxmemory,
            setting("maxmemory-policy")
        ),
        "persistence" => format!(
            "# Persistence\r\nloading:0\r\nrdb_changes_since_last_save:{}\r\nrdb_last_bgsave_status:ok\r\naof_enabled:{}\r\naof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n",
            db.changes,
            i32::from(setting("appendonly") == "yes")
        ),
        "stats" => format!(
            "# Stats\r\ntotal_connections_received:1\r\ntotal_commands_processed:{}\r\ninstantaneous_ops_per_sec:0\r\nexpired_keys:{}\r\nevicted_keys:0\r\n",
            db.commands, db.expired
        ),
        "replication" => {
            format!("# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:{}\r\n", db.run_id)
        }
        "cpu" => "# CPU\r\nused_cpu_sys:0.000000\r\nused_cpu_user:0.000000\r\n".into(),
        "keyspace" if db.data.len() == 0 => "# Keyspace\r\n".into(),
        "keyspace" => {
            format!("# Keyspace\r\ndb0:keys={},expires={},avg_ttl=0\r\n", db.data.len(), db.data.expiring())
        }
        _ => return None,
    })
}

const SECTIONS: [&str; 8] = ["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace"];

pub(super) fn info(db: &mut Db, args: Args<'_>) -> Outcome {
    let asked: Vec<String> = args[1..].iter().map(|name| shown(name).to_lowercase()).collect();
    let all = asked.is_empty() || asked.iter().any(|name| ["all", "default", "everything"].contains(&name.as_str()));
    let told = SECTIONS.iter().filter(|name| all || asked.iter().any(|asked| asked == *name));
    let told: Vec<String> = told.filter_map(|name| section(db, name)).collect();
    Ok(Reply::bulk(told.join("\r\n")))
}
