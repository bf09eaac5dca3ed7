//! The pages whose commands go by themselves: what they print is what is shown.

use std::collections::BTreeSet;

use tickfleet_testkit::{RedisOptions, RedisServer};

use crate::support::binary::DevFleet;
use crate::support::documents;

/// The pages with `console` blocks that go by themselves.
const GUIDES: [&str; 3] = ["docs/producers.md", "docs/operating.md", "docs/troubleshooting.md"];

#[tokio::test]
async fn the_guides_show_what_their_commands_print() {
    for guide in GUIDES {
        let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
        let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
        documents::check(&fleet, guide);
    }
}

#[test]
fn every_page_with_commands_is_played() {
    let played_elsewhere = [
        "docs/clients.md",
        "docs/permissions.md",
        "docs/tools-http.md",
        "docs/tools-mcp.md",
        "docs/tools-python.md",
        "docs/tools-shell.md",
        "docs/tools-typed.md",
    ];
    let played: BTreeSet<_> = GUIDES.into_iter().chain(played_elsewhere).map(str::to_owned).collect();
    assert_eq!(documents::pages_with_commands("docs"), played);
}
