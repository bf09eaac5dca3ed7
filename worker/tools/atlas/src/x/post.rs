//! `post_to_x`: uploads the media, then creates the post. Only creating the post has an effect.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_tools::{CallContext, ToolError, TypedTool, wording};
use tokio::sync::Semaphore;

use super::api::{Api, ApiRequest};
use super::media::MediaFetcher;
use super::upload::upload;

const MEDIA_MAX: usize = 4;
const ADDRESS_BYTES_MAX: usize = 2_048;
const CONTENT_CHARS_MAX: usize = 280;
/// A timeout before the post counts as not executed. A draining worker waits 45 s, so a call must end sooner.
const TIMEOUT: Duration = Duration::from_secs(40);
const MEDIA_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of concurrent uploads. Each upload takes some megabytes of memory.
const UPLOADS_MAX: usize = 4;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Post {
    /// The text of the post, at most 280 characters, including links and hashtags.
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
    /// The address of the post.
    post_url: String,
    /// The reactions to the post. For a new post, all are zero: these are placeholders, not measurements.
    metrics: Metrics,
}

#[derive(Default, Serialize, JsonSchema)]
struct Metrics {
    /// How often the post was viewed.
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

pub(super) fn post_to_x(api: Api, fetcher: MediaFetcher) -> TypedTool {
    let uploads = Arc::new(Semaphore::new(UPLOADS_MAX));
    TypedTool::new(
        "post_to_x",
        "Publishes a post on X from the team's account, at once and in public, with pictures or a video if addresses \
         of them are given.",
        Effect::Once,
        move |context: CallContext, post: Post| {
            let api = api.clone();
            let fetcher = fetcher.clone();
            let uploads = Arc::clone(&uploads);
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
    let message = format!("X had not processed the media after {} s. Nothing was posted.", MEDIA_TIMEOUT.as_secs());
    ToolError::NotExecuted { message, retry_after: None }
}

async fn media(
    api: &Api,
    fetcher: &MediaFetcher,
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
        if !media.kind.is_image && addresses.len() > 1 {
            let name = &media.name;
            let mime = media.kind.mime;
            let why =
                format!("{name} is {mime}; a post shows only one such file: pass one address. Nothing was posted.");
            return Err(ToolError::Permanent(why));
        }
        ids.push(upload(api, context, media).await?);
    }
    Ok(ids)
}

/// docs.x.com, Create Post. This request is the tool's only effect.
async fn publish(api: &Api, context: &CallContext, content: &str, media: &[String]) -> Result<Posted, ToolError> {
    let mut body = json!({ "text": content });
    if !media.is_empty() {
        body["media"] = json!({ "media_ids": media });
    }
    let ask = ApiRequest { is_effect: true, ..ApiRequest::post_json("/2/tweets", &body) };
    let answer = api.send(context, &ask).await?;
    let id = answer.pointer("/data/id").and_then(Value::as_str).unwrap_or_default();
    if id.is_empty() || id.len() > 19 || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        let shown = wording::cut(&answer.to_string(), 200);
        return Err(ToolError::Transient(format!("X accepted the post, but its answer has no id: {shown}")));
    }
    Ok(Posted {
        post_id: id.to_owned(),
        // This form of the address works for any account name.
        post_url: format!("https://x.com/i/web/status/{id}"),
        metrics: Metrics::default(),
    })
}
