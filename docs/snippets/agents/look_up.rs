// Compiled and run by the tests of the command line.
// ANCHOR: look_up
use std::error::Error;
use std::time::Duration;

use tickfleet_client::{Client, Reply, StoreOptions, parse_turn, private_inbox};

pub async fn look_up(url: &str) -> Result<Option<Reply>, Box<dyn Error>> {
    let client = Client::connect(url, StoreOptions::default()).await?;
    let json = br#"{
        "tenant": "acme",
        "agent": "support",
        "turn_id": "case-7-1",
        "calls": [{"name": "look_up_order", "arguments": {"order": "A-1001"}}]
    }"#;
    let mut turn = parse_turn(json).map_err(|refusal| refusal.message)?;

    let inbox = private_inbox("support");
    turn.reply_to = Some(inbox.clone());
    let mut replies = client.replies(&turn.tenant, &inbox);
    let submitted = client.submit(turn).await?;
    let reply = replies.await_reply(&submitted.turn_id, Duration::from_secs(30)).await?;
    replies.forget().await?;
    Ok(reply)
}
// ANCHOR_END: look_up
