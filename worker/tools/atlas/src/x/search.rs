//! `search_x`: posts of the last seven days (docs.x.com, Search recent posts), each with its author.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_model::Effect;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::api::{Api, ApiRequest};

const TIMEOUT: Duration = Duration::from_secs(20);
const QUERY_CHARS_MAX: usize = 512;
/// The smallest and the largest number of results that X accepts.
const RESULTS: (u32, u32) = (10, 100);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// The search query, in X's search syntax.
    #[schemars(length(min = 1, max = QUERY_CHARS_MAX))]
    query: String,
    /// The maximum number of posts to return, 10 to 100. Default: 10.
    #[serde(default)]
    #[schemars(range(min = 10, max = 100))]
    max_results: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct Found {
    /// The posts, newest first.
    posts: Vec<Post>,
    /// The number of posts in this response.
    count: usize,
    /// True if X has more posts.
    more: bool,
}

#[derive(Serialize, JsonSchema)]
struct Post {
    /// X's id of the post.
    id: String,
    /// The text of the post.
    text: String,
    /// The address of the post.
    url: String,
    /// The author; absent if X does not name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<Author>,
    /// When the post was created, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    /// The language of the post.
    #[serde(skip_serializing_if = "Option::is_none")]
    lang: Option<String>,
    /// The reactions to the post: likes, reposts and so on, by X's names.
    metrics: BTreeMap<String, u64>,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Author {
    /// X's id of the author.
    id: String,
    /// The handle, without @.
    username: String,
    /// The displayed name.
    #[serde(default)]
    name: String,
}

/// A missing member counts as empty. A member of the wrong type makes the response invalid.
#[derive(Deserialize)]
struct SearchResponse {
    #[serde(default)]
    data: Vec<Tweet>,
    #[serde(default)]
    includes: Includes,
    #[serde(default)]
    meta: SearchMeta,
}

#[derive(Deserialize)]
struct Tweet {
    id: String,
    text: String,
    author_id: Option<String>,
    created_at: Option<String>,
    lang: Option<String>,
    #[serde(default)]
    public_metrics: BTreeMap<String, u64>,
}

#[derive(Default, Deserialize)]
struct Includes {
    #[serde(default)]
    users: Vec<Author>,
}

#[derive(Default, Deserialize)]
struct SearchMeta {
    next_token: Option<String>,
}

pub(super) fn search_x(api: Api) -> TypedTool {
    TypedTool::new(
        "search_x",
        "Searches the public posts of the last seven days on X, and returns each with its author and figures, the \
         newest first.",
        Effect::Read,
        move |context: CallContext, search: Search| {
            let api = api.clone();
            async move { find(&api, &context, search).await }
        },
    )
    .category("social")
    .timeout(TIMEOUT)
}

async fn find(api: &Api, context: &CallContext, search: Search) -> Result<Found, ToolError> {
    let most = search.max_results.unwrap_or(RESULTS.0).clamp(RESULTS.0, RESULTS.1);
    let query = vec![
        ("query", search.query),
        ("max_results", most.to_string()),
        ("tweet.fields", "author_id,created_at,lang,public_metrics".to_owned()),
        ("expansions", "author_id".to_owned()),
        ("user.fields", "name,username".to_owned()),
    ];
    let answer = api.send(context, &ApiRequest::get("/2/tweets/search/recent", query)).await?;
    let answer: SearchResponse = serde_json::from_value(answer)
        .map_err(|_| ToolError::Transient("X's answer does not match its documentation.".into()))?;
    let authors: BTreeMap<&str, &Author> = answer.includes.users.iter().map(|user| (user.id.as_str(), user)).collect();
    let posts: Vec<Post> = answer
        .data
        .into_iter()
        .take(RESULTS.1 as usize)
        .map(|tweet| Post {
            url: format!("https://x.com/i/web/status/{}", tweet.id),
            author: tweet.author_id.and_then(|id| authors.get(id.as_str()).map(|author| (*author).clone())),
            id: tweet.id,
            text: tweet.text,
            created_at: tweet.created_at,
            lang: tweet.lang,
            metrics: tweet.public_metrics,
        })
        .collect();
    Ok(Found { count: posts.len(), posts, more: answer.meta.next_token.is_some() })
}
