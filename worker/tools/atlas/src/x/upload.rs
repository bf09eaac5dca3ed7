//! Uploads media to X (docs.x.com, Media upload). X processes animations and videos after the upload.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tickfleet_tools::{CallContext, ToolError, wording};

use super::api::{Api, ApiRequest};
use super::media::Media;
use super::multipart;

/// X accepts up to 5 MB.
const PIECE_BYTES: usize = 2 * 1024 * 1024;
const WAIT_S: (u64, u64) = (1, 10);

/// Other users cannot see the media until a post refers to the media.
pub(super) async fn upload(api: &Api, context: &CallContext, mut media: Media) -> Result<String, ToolError> {
    if media.kind.is_image {
        let all = usize::try_from(media.kind.bytes_max).unwrap_or(usize::MAX);
        let picture = media.piece(all).await?.unwrap_or_default();
        let fields = [("media_category", media.kind.category), ("media_type", media.kind.mime)];
        let (body, kind) = multipart::form(&fields, &picture);
        let answer = api.send(context, &ApiRequest::post("/2/media/upload", body, kind)).await?;
        let id = id_of(&answer)?;
        return finished(api, context, id, answer).await;
    }
    let Some(total) = media.total else {
        return Err(ToolError::Permanent(format!(
            "{} cannot be used: its server does not report its size. Nothing was posted.",
            media.name
        )));
    };
    let begin = json!({"media_type": media.kind.mime, "media_category": media.kind.category, "total_bytes": total});
    let id = id_of(&api.send(context, &ApiRequest::post_json("/2/media/upload/initialize", &begin)).await?)?;
    let mut segment = 0_u32;
    while let Some(piece) = media.piece(PIECE_BYTES).await? {
        let (body, kind) = multipart::form(&[("segment_index", &segment.to_string())], &piece);
        api.send(context, &ApiRequest::post(format!("/2/media/upload/{id}/append"), body, kind)).await?;
        segment += 1;
    }
    let path = format!("/2/media/upload/{id}/finalize");
    let answer = api.send(context, &ApiRequest::post(path, Bytes::new(), "application/json")).await?;
    finished(api, context, id, answer).await
}

/// Waits until X has processed the media. The caller limits the wait.
async fn finished(api: &Api, context: &CallContext, id: String, mut answer: Value) -> Result<String, ToolError> {
    loop {
        let Some(info) = answer.pointer("/data/processing_info") else { return Ok(id) };
        match info.get("state").and_then(Value::as_str) {
            Some("succeeded") => return Ok(id),
            Some("failed") => {
                let why = info.pointer("/error/message").or_else(|| info.pointer("/error/name"));
                let why = wording::cut(why.and_then(Value::as_str).unwrap_or("no reason was given"), 300);
                return Err(ToolError::Permanent(format!("X cannot use the media: {why}. Nothing was posted.")));
            }
            _ => {}
        }
        let wait = info.get("check_after_secs").and_then(Value::as_u64).unwrap_or(WAIT_S.0);
        tokio::time::sleep(Duration::from_secs(wait.clamp(WAIT_S.0, WAIT_S.1))).await;
        let query = vec![("command", "STATUS".to_owned()), ("media_id", id.clone())];
        answer = api.send(context, &ApiRequest::get("/2/media/upload", query)).await?;
    }
}

/// X's ids have up to 19 digits. Validate the id, because it becomes part of URLs.
fn id_of(answer: &Value) -> Result<String, ToolError> {
    let id = answer.pointer("/data/id").and_then(Value::as_str);
    let sound = |id: &&str| (1..=19).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_digit());
    id.filter(sound).map(ToOwned::to_owned).ok_or_else(|| ToolError::NotExecuted {
        message: "X's answer to an upload has no id.".into(),
        retry_after: None,
    })
}
