//! Consumer groups: making, changing and ending them, and acknowledgements.

use super::{Args, Outcome, Stop, fail, is, no_subcommand, parse, shown};
use crate::data::Value;
use crate::data::group::Group;
use crate::data::stream::{Id, Stream};
use crate::db::Db;
use crate::number::int;
use crate::reply::Reply;

/// What stands behind the id of a group.
#[derive(Default)]
struct Options {
    makes_stream: bool,
    entries_read: Option<u64>,
}

fn options(args: Args<'_>) -> Result<Options, Stop> {
    let (creates, sets) = (is(args[1], "CREATE"), is(args[1], "SETID"));
    let (mut options, mut at) = (Options::default(), 5);
    while let Some(word) = args.get(at) {
        if creates && is(word, "MKSTREAM") {
            options.makes_stream = true;
        } else if let Some(number) = args.get(at + 1)
            && (creates || sets)
            && is(word, "ENTRIESREAD")
        {
            let number = int(number)?;
            if number < -1 {
                return fail("ERR value for ENTRIESREAD must be positive or -1");
            }
            options.entries_read = u64::try_from(number).ok();
            at += 1;
        } else {
            return no_subcommand(args);
        }
        at += 1;
    }
    Ok(options)
}

fn id_of(text: &[u8], last: Id, is_strict: bool) -> Result<Id, Stop> {
    match text {
        b"$" => Ok(last),
        _ if is_strict => parse::strict_id(text),
        _ => parse::loose_id(text, 0),
    }
}

pub(super) fn xgroup(db: &mut Db, args: Args<'_>) -> Outcome {
    let words = args.len();
    let sub = args[1];
    let (create, set_id, destroy) = (is(sub, "CREATE"), is(sub, "SETID"), is(sub, "DESTROY"));
    let (enlist, dismiss) = (is(sub, "CREATECONSUMER"), is(sub, "DELCONSUMER"));
    let fits = (create || set_id) && words >= 5 || destroy && words == 4 || (enlist || dismiss) && words == 5;
    if !fits && (create || set_id || destroy || enlist || dismiss) {
        let sub = shown(sub).to_lowercase();
        return fail(format!("ERR wrong number of arguments for 'xgroup|{sub}' command"));
    }
    if !fits {
        return fail(format!("ERR unknown subcommand '{}'. Try XGROUP HELP.", shown(sub)));
    }
    let (key, name) = (args[2], args[3]);
    let options = options(args)?;
    let stream = db.data.get::<Stream>(key)?;
    if stream.is_none() && !options.makes_stream {
        return fail(
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM \
             option to create an empty stream automatically.",
        );
    }
    let last = stream.map_or(Id::default(), |stream| stream.last);
    let is_there = stream.is_some_and(|stream| stream.groups.contains_key(name));
    if !is_there && !create && !destroy {
        let (name, key) = (shown(name), shown(key));
        return fail(format!("NOGROUP No such consumer group '{name}' for key name '{key}'"));
    }
    if create {
        return make(db, key, name, id_of(args[4], last, true)?, &options);
    }
    if set_id {
        let id = id_of(args[4], last, false)?;
        edit(db, key, name, |group| (group.last, group.entries_read) = (id, options.entries_read))?;
        db.changed(1);
        return Ok(Reply::ok());
    }
    if destroy {
        let gone = db.data.edit(key, |stream: &mut Stream| stream.groups.remove(name).is_some())?;
        db.changed(usize::from(is_there));
        return Ok(Reply::Int(gone.unwrap_or(false).into()));
    }
    if enlist {
        let now = db.now_ms();
        let made = edit(db, key, name, |group| {
            let made = !group.consumers.contains_key(args[4]);
            if made {
                group.meet(args[4], now);
            }
            made
        })?;
        db.changed(usize::from(made == Some(true)));
        return Ok(Reply::Int(made.unwrap_or(false).into()));
    }
    let held = edit(db, key, name, |group| group.dismiss(args[4]))?.flatten();
    db.changed(usize::from(held.is_some()));
    Ok(Reply::int(held.unwrap_or(0)))
}

fn make(db: &mut Db, key: &[u8], name: &[u8], id: Id, options: &Options) -> Outcome {
    if db.data.entry(key).is_none() {
        db.data.put(key, Value::Stream(Stream::default()));
    }
    let made = db.data.edit(key, |stream: &mut Stream| {
        let is_new = !stream.groups.contains_key(name);
        if is_new {
            let group = Group { last: id, entries_read: options.entries_read, ..Group::default() };
            stream.groups.insert(name.to_vec(), group);
        }
        is_new
    })?;
    if made != Some(true) {
        return fail("BUSYGROUP Consumer Group name already exists");
    }
    db.changed(1);
    Ok(Reply::ok())
}

/// Changes a group, where it is there.
pub(super) fn edit<R>(
    db: &mut Db,
    key: &[u8],
    name: &[u8],
    change: impl FnOnce(&mut Group) -> R,
) -> Result<Option<R>, Reply> {
    Ok(db.data.edit(key, |stream: &mut Stream| stream.groups.get_mut(name).map(change))?.flatten())
}

pub(super) fn xack(db: &mut Db, args: Args<'_>) -> Outcome {
    if db.data.get::<Stream>(args[1])?.is_none_or(|stream| !stream.groups.contains_key(args[2])) {
        return Ok(Reply::Int(0));
    }
    let ids = args[3..].iter().map(|id| parse::strict_id(id)).collect::<Result<Vec<_>, _>>()?;
    let acked = edit(db, args[1], args[2], |group| ids.iter().filter(|id| group.release(**id)).count())?.unwrap_or(0);
    db.changed(acked);
    Ok(Reply::int(acked))
}
