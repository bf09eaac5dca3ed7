//! `post_to_x`: media first, then the post. Only the post itself is the effect: what goes wrong before it is certainly
//! not executed, and what is lost after its request left may have happened.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_tools::{CallContext, ToolError, TypedTool, wording};
use tokio::sync::Semaphore;

use super::api::{Api, Ask};
use super::media::Fetcher;
use super::upload::upload;

/// Pictures that one post shows.
const MEDIA_MAX: usize = 4;
/// Bytes of an address.
const ADDRESS_BYTES_MAX: usize = 2_048;
/// Characters of a post.
const CONTENT_CHARS_MAX: usize = 280;
/// Limit of the whole call, and of all that comes before the post: what is not through by then is told as not executed,
/// before the call's own limit tells it as unknown. A worker that drains waits 45 s for its calls: more is not to be had.
const TIMEOUT: Duration = Duration::from_secs(40);
const MEDIA_TIMEOUT: Duration = Duration::from_secs(30);
/// Posts whose media are on their way at the same time in one process: each holds some megabytes.
const UPLOADS_MAX: usize = 4;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Post {
    /// The post, at most 280 characters, links and hashtags included.
    #[schemars(length(min = 1, max = CONTENT_CHARS_MAX))]
    content: String,
    /// Addresses of up to four pictures, or of one animation or video, to show with the post.
    #[serde(default)]
    #[schemars(length(max = MEDIA_MAX), inner(length(min = 1, max = ADDRESS_BYTES_MAX)))]
    media_urls: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct Posted {
    /// X's id of the post.
    post_id: String,
    /// Where it can be seen.
    post_url: String,
    /// How it is received. Of a post that is new, all are zero: this is their place, not a measurement.
    metrics: Metrics,
}

#[derive(Default, Serialize, JsonSchema)]
struct Metrics {
    /// How often it was seen.
    impressions: u64,
    /// Likes.
    likes: u64,
    /// Reposts.
    reposts: u64,
    /// Replies.
    replies: u64,
    /// Quotes.
    quotes: u64,
}

/// The tool, over this account.
pub(super) fn post_to_x(api: Api, fetcher: Fetcher) -> TypedTool {
    let uploads = Arc::new(Semaphore::new(UPLOADS_MAX));
    TypedTool::new(
        "post_to_x",
        "Publishes a post on X from the team's account, at once and in public, with pictures or a video if addresses \
         of them are given.",
        Effect::Once,
        move |context: CallContext, post: Post| {
            let (api, fetcher, uploads) = (api.clone(), fetcher.clone(), Arc::clone(&uploads));
            async move {
                let shown = media(&api, &fetcher, &uploads, &context, &post.media_urls);
                let ids = tokio::time::timeout(MEDIA_TIMEOUT, shown).await.unwrap_or_else(|_| Err(too_slow()))?;
                publish(&api, &context, &post.content, &ids).await
            }
        },
    )
    .validate(|post: &Post| match post.media_urls.len() {
        0..=MEDIA_MAX => Ok(()),
        _ => Err(format!("A post shows at most {MEDIA_MAX} pictures.")),
    })
    .category("social")
    .timeout(TIMEOUT)
}

fn too_slow() -> ToolError {
    let message = format!("The media were not with X after {} s. Nothing was posted.", MEDIA_TIMEOUT.as_secs());
    ToolError::NotExecuted { message, retry_after: None }
}

/// Takes the media to X, one after the other, and answers X's ids of them.
async fn media(
    api: &Api,
    fetcher: &Fetcher,
    uploads: &Semaphore,
    context: &CallContext,
    addresses: &[String],
) -> Result<Vec<String>, ToolError> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let _place = uploads.acquire().await.map_err(ToolError::internal)?;
    let mut ids = Vec::with_capacity(addresses.len());
    for (at, address) in addresses.iter().enumerate() {
        let media = fetcher.fetch(at, address).await?;
        if !media.kind.is_picture && addresses.len() > 1 {
            let (name, mime) = (&media.name, media.kind.mime);
            let why = format!("{name} is {mime}, which a post shows alone: give one address. Nothing was posted.");
            return Err(ToolError::Permanent(why));
        }
        ids.push(upload(api, context, media).await?);
    }
    Ok(ids)
}

/// The effect: one request (docs.x.com, Create Post).
async fn publish(api: &Api, context: &CallContext, content: &str, media: &[String]) -> Result<Posted, ToolError> {
    let mut body = json!({ "text": content });
    if !media.is_empty() {
        body["media"] = json!({ "media_ids": media });
    }
    let ask = Ask { is_effect: true, ..Ask::post_json("/2/tweets", &body) };
    let answer = api.ask(context, &ask).await?;
    let id = answer.pointer("/data/id").and_then(Value::as_str).unwrap_or_default();
    if id.is_empty() || id.len() > 19 || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        let shown = wording::cut(&answer.to_string(), 200);
        return Err(ToolError::Transient(format!("X accepted the post, but its answer has no id: {shown}")));
    }
    Ok(Posted {
        post_id: id.to_owned(),
        // This form leads to the post whatever the account is called.
        post_url: format!("https://x.com/i/web/status/{id}"),
        metrics: Metrics::default(),
    })
}
