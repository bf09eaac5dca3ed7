//! Runs the example in docs/build/rust.md with the shop's fleet.

use tickfleet_client::model::TurnId;
use tickfleet_testkit::RedisServer;

use crate::guides::site::{Service, snippets};
use crate::support::binary::DevFleet;

#[path = "../../../../docs/snippets/agents/look_up.rs"]
mod look_up;

#[tokio::test]
async fn the_rust_example_looks_up_an_order_without_repeating_it() {
    let folder = snippets();
    let redis = RedisServer::start().await;
    let (service, shop) = Service::start(folder.path(), "shop");
    let args = ["--redis-url", &redis.url(), "--config", "shop"];
    let fleet = DevFleet::start_in(folder.path(), &args, &[("SHOP_URL", &shop)]);
    for _ in 0..2 {
        let reply = look_up::look_up(&redis.url()).await.unwrap().unwrap();
        assert_eq!(reply.results.len(), 1);
        assert_eq!(reply.results[0].outcome.as_str(), "ok");
        assert_eq!(reply.turn_id.as_ref().map(TurnId::as_str), Some("case-7-1"));
    }
    assert_eq!(fleet.stop(), Some(0));
    drop(service);
}
