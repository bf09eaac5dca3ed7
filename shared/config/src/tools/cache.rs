//! `cache` of a tool.

use std::time::Duration;

use tickfleet_model::Effect;
use tickfleet_model::tool::{CACHE_TTL_MS_MAX, CachePer, ReadCache};

use crate::document::reader::Cursor;

pub(crate) fn read(cursor: &Cursor<'_>, effect: Option<Effect>) -> Option<ReadCache> {
    if effect.is_some_and(|effect| effect != Effect::Read) {
        cursor.refuse("no cache, or `effect: read`: a cached output would skip the effect of any other tool");
    }
    let mut s = cursor.section();
    let most = Duration::from_millis(CACHE_TTL_MS_MAX.unsigned_abs());
    let ttl = s.required("ttl").and_then(|c| c.duration(Duration::from_secs(1), most));
    let per = s.optional("per").and_then(|c| c.choice(&CachePer::WORDS)).unwrap_or_default();
    s.close();
    Some(ReadCache { ttl_ms: i64::try_from(ttl?.as_millis()).unwrap_or(CACHE_TTL_MS_MAX), per })
}
