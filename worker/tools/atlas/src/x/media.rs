//! Pictures and videos for a post. A model chooses the addresses, so media have a separate guard and no redirects.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Response, Url};
use tickfleet_tools::{Secrets, ToolError};
use tickfleet_tools_http::{Client, Request, SendError};

const HEAD_BYTES: usize = 16;
const MIB: u64 = 1024 * 1024;

#[derive(Debug, Clone)]
pub(super) struct MediaFetcher(Arc<Client>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MediaKind {
    pub(super) mime: &'static str,
    pub(super) category: &'static str,
    /// For pictures, X's own limits (docs.x.com, Media best practices). For videos, the limit is lower than X's limit,
    /// because an upload would take too long.
    pub(super) bytes_max: u64,
    /// True for a picture. A post can show four pictures, but only one file of any other kind.
    pub(super) is_image: bool,
}

const fn picture(mime: &'static str) -> MediaKind {
    MediaKind { mime, category: "tweet_image", bytes_max: 5 * MIB, is_image: true }
}

const fn video(mime: &'static str) -> MediaKind {
    MediaKind { mime, category: "tweet_video", bytes_max: 32 * MIB, is_image: false }
}

const GIF: MediaKind = MediaKind { mime: "image/gif", category: "tweet_gif", bytes_max: 15 * MIB, is_image: false };

impl MediaKind {
    /// `head` is the beginning of the media. `None` if X does not accept the media.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0xff, 0xd8, 0xff, ..] => Some(picture("image/jpeg")),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(picture("image/png")),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(picture("image/webp")),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(GIF),
            [_, _, _, _, b'f', b't', b'y', b'p', b'q', b't', ..] => Some(video("video/quicktime")),
            [_, _, _, _, b'f', b't', b'y', b'p', ..] => Some(video("video/mp4")),
            _ => None,
        }
    }
}

/// The rest of the file is read on demand.
#[derive(Debug)]
pub(super) struct Media {
    pub(super) kind: MediaKind,
    /// In bytes. `None` if the server does not announce the size.
    pub(super) total: Option<u64>,
    pub(super) name: String,
    here: BytesMut,
    read: u64,
    response: Response,
}

impl MediaFetcher {
    pub(super) const fn new(client: Arc<Client>) -> Self {
        Self(client)
    }

    /// Reads only the beginning. `at` is the index of the media in the call, from 0.
    pub(super) async fn fetch(&self, at: usize, address: &str) -> Result<Media, ToolError> {
        let name = format!("media_urls[{at}]");
        let refused = |why: String| ToolError::Permanent(format!("{name} cannot be used: {why} Nothing was posted."));
        let url = Url::parse(address).map_err(|error| refused(format!("it is not a URL ({error}).")))?;
        let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("image/*, video/*"))]);
        let request = Request { method: Method::GET, url, headers, body: None, body_is_secret: false };
        let response = match self.0.send(request, 0, &Secrets::default()).await {
            Ok(response) => response,
            Err(SendError::Blocked(why)) => return Err(refused(format!("{why}."))),
            Err(SendError::Redirect(_)) => {
                return Err(refused("the address redirects; use the redirect's target.".into()));
            }
            Err(SendError::NotSent { why, .. } | SendError::Lost { why, .. }) => {
                return Err(passing(&name, why));
            }
        };
        match response.status().as_u16() {
            200 => {}
            status @ (408 | 425 | 429 | 500..=599) => return Err(passing(&name, &format!("status {status}"))),
            status => return Err(refused(format!("its server answers with status {status}."))),
        }
        let declared_type = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(plain);
        let total = response.content_length();
        let none = MediaKind { mime: "", category: "", bytes_max: HEAD_BYTES as u64 * 1024, is_image: false };
        let mut media = Media { kind: none, total, name: name.clone(), here: BytesMut::new(), read: 0, response };
        while media.here.len() < HEAD_BYTES && media.more().await? {}
        media.kind = MediaKind::of(&media.here)
            .ok_or_else(|| refused("it is not a JPEG, PNG, WebP, GIF, MP4 or QuickTime file.".into()))?;
        let mime = media.kind.mime;
        let bytes_max = media.kind.bytes_max;
        if let Some(declared_type) = declared_type.filter(|declared_type| !agrees(declared_type, mime)) {
            return Err(refused(format!("its server says {declared_type:?}, and it is {mime}.")));
        }
        if total.is_some_and(|total| total > bytes_max) || media.read > bytes_max {
            return Err(media.too_large());
        }
        Ok(media)
    }
}

fn plain(kind: &str) -> String {
    kind.split(';').next().unwrap_or_default().trim().chars().take(80).collect::<String>().to_ascii_lowercase()
}

fn agrees(declared_type: &str, mime: &str) -> bool {
    let family = |kind: &str| kind.split('/').next().unwrap_or_default().to_owned();
    matches!(declared_type, "" | "application/octet-stream" | "binary/octet-stream")
        || family(declared_type) == family(mime)
}

/// A failure that a retry may repair. Nothing was posted, so the retry is harmless.
fn passing(name: &str, why: &str) -> ToolError {
    ToolError::NotExecuted { message: format!("{name} could not be fetched: {why}."), retry_after: None }
}

impl Media {
    /// The last piece may be shorter than `size` bytes. `None` after the last piece.
    pub(super) async fn piece(&mut self, size: usize) -> Result<Option<Bytes>, ToolError> {
        while self.here.len() < size && self.more().await? {}
        let size = size.min(self.here.len());
        Ok((size > 0).then(|| self.here.split_to(size).freeze()))
    }

    async fn more(&mut self) -> Result<bool, ToolError> {
        let chunk = self.response.chunk().await;
        let Some(chunk) = chunk.map_err(|_| passing(&self.name, "its server disconnected during the transfer"))? else {
            return Ok(false);
        };
        self.read += chunk.len() as u64;
        // The limit depends on the kind of media. `fetch` limits the bytes until the kind is known.
        if !self.kind.mime.is_empty() && self.read > self.kind.bytes_max {
            return Err(self.too_large());
        }
        self.here.extend_from_slice(&chunk);
        Ok(true)
    }

    fn too_large(&self) -> ToolError {
        let MediaKind { mime, bytes_max, .. } = self.kind;
        let max = bytes_max / MIB;
        ToolError::Permanent(format!(
            "{} is too large: {mime} may have at most {max} MiB. Nothing was posted.",
            self.name
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_media_type_is_detected_from_its_first_bytes() {
        let mime = |head: &[u8]| MediaKind::of(head).map(|kind| kind.mime);
        assert_eq!(mime(b"\xff\xd8\xff\xe0rest"), Some("image/jpeg"));
        assert_eq!(mime(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(mime(b"RIFF\x01\x02\x03\x04WEBPVP8 "), Some("image/webp"));
        assert_eq!(mime(b"GIF89a......"), Some("image/gif"));
        assert_eq!(mime(b"\0\0\0\x18ftypmp42"), Some("video/mp4"));
        assert_eq!(mime(b"\0\0\0\x14ftypqt  "), Some("video/quicktime"));
        for other in [&b"<html>"[..], b"", b"%PDF-1.7", b"RIFF....WAVE", b"GIF88a", b"\x7fELF"] {
            assert_eq!(mime(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_contradicting_declared_type_is_rejected() {
        for declared_type in ["image/png", "image/jpeg", "application/octet-stream", ""] {
            assert!(agrees(declared_type, "image/jpeg"), "{declared_type}");
        }
        for declared_type in ["text/html", "video/mp4", "application/json"] {
            assert!(!agrees(declared_type, "image/jpeg"), "{declared_type}");
        }
        assert_eq!(plain("Image/JPEG; charset=x"), "image/jpeg");
    }
}
