//! An output with images is a list of content blocks, in the form of MCP's content blocks.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_model::{CallResult, limits};

use super::cut::{bounded_output, cut_output};

pub const CONTENT_BLOCKS: &str = "application/vnd.tickfleet.content+json";

const MEDIA_TYPE_BYTES_MAX: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    Text {
        text: String,
    },
    Image {
        /// Base64.
        data: String,
        #[serde(rename = "mimeType")]
        media_type: String,
    },
}

impl ContentBlock {
    /// `None` for formats other than PNG, JPEG, GIF and WebP, because some model providers reject other formats. The
    /// media type is derived from the bytes, because providers reject a request if an image's media type and bytes
    /// differ.
    #[must_use]
    pub fn image(bytes: &[u8]) -> Option<Self> {
        let media_type = media_type(bytes)?.to_owned();
        Some(Self::Image { data: STANDARD.encode(bytes), media_type })
    }

    /// If no model can use the image, returns a text about the image. Otherwise, providers would reject the whole
    /// request.
    #[must_use]
    pub fn image_or_note(base64: &str, declared: &str) -> Self {
        let bytes = STANDARD.decode(base64);
        bytes.ok().and_then(|bytes| Self::image(&bytes)).unwrap_or_else(|| Self::Text {
            text: note(declared, base64.len(), "in a format that models cannot read, not shown"),
        })
    }

    fn as_text(&self) -> Cow<'_, str> {
        match self {
            Self::Text { text } => Cow::Borrowed(text),
            Self::Image { data, media_type } => Cow::Owned(note(media_type, data.len(), "not shown")),
        }
    }
}

fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn note(media_type: &str, base64_len: usize, state: &str) -> String {
    // In base64, three bytes take four characters.
    let bytes = base64_len / 4 * 3;
    let end = (0..=MEDIA_TYPE_BYTES_MAX.min(media_type.len())).rev().find(|at| media_type.is_char_boundary(*at));
    let kind = media_type.get(..end.unwrap_or_default()).filter(|kind| !kind.is_empty());
    let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
    format!("[an image{kind}, about {bytes} bytes, {state}]")
}

#[must_use]
pub fn content_blocks(result: &CallResult) -> Option<Vec<ContentBlock>> {
    let output = result.output.as_ref().filter(|_| result.content_type == CONTENT_BLOCKS)?;
    serde_json::from_str(output.get()).ok()
}

#[must_use]
pub fn content_text(blocks: &[ContentBlock]) -> String {
    blocks.iter().map(ContentBlock::as_text).collect::<Vec<_>>().join("\n")
}

#[must_use]
pub fn write_blocks(blocks: &[ContentBlock]) -> Box<RawValue> {
    // Blocks consist of strings, so their serialization does not fail.
    to_raw_value(blocks).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// In a list of content blocks, the largest images become notes first, because a part of an image is not an image.
#[must_use]
pub fn bounded_content(output: Box<RawValue>, content_type: &str, bytes_max: usize) -> Box<RawValue> {
    if output.get().len() <= bytes_max {
        return output;
    }
    let blocks = (content_type == CONTENT_BLOCKS).then(|| serde_json::from_str(output.get()).ok()).flatten();
    let Some(mut blocks): Option<Vec<ContentBlock>> = blocks else { return bounded_output(output, bytes_max) };
    loop {
        let written = write_blocks(&blocks);
        if written.get().len() <= bytes_max {
            return written;
        }
        let images = blocks.iter_mut().filter_map(|block| match block {
            ContentBlock::Image { data, media_type } => {
                let text = note(media_type, data.len(), "too large for a result, not shown");
                Some((data.len(), text, block))
            }
            ContentBlock::Text { .. } => None,
        });
        match images.max_by_key(|(bytes, ..)| *bytes) {
            Some((_, text, block)) => *block = ContentBlock::Text { text },
            None => return cut_text(&content_text(&blocks), bytes_max),
        }
    }
}

fn cut_text(text: &str, bytes_max: usize) -> Box<RawValue> {
    let frame = write_blocks(&[ContentBlock::Text { text: String::new() }]).get().len();
    let json = serde_json::to_string(text).unwrap_or_default();
    let cut = cut_output(&json, bytes_max.saturating_sub(frame));
    write_blocks(&[ContentBlock::Text { text: serde_json::from_str(&cut).unwrap_or_default() }])
}

/// `None` if the output is not a list of content blocks. Images that no model can use become notes.
#[must_use]
pub fn usable_blocks(output: &str) -> Option<Vec<ContentBlock>> {
    let blocks: Vec<ContentBlock> = serde_json::from_str(output).ok()?;
    let usable = |block| match block {
        ContentBlock::Image { data, media_type } => ContentBlock::image_or_note(&data, &media_type),
        text @ ContentBlock::Text { .. } => text,
    };
    Some(blocks.into_iter().take(limits::MCP_BLOCKS_MAX).map(usable).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

    fn text(text: &str) -> ContentBlock {
        ContentBlock::Text { text: text.to_owned() }
    }

    #[test]
    fn the_media_type_of_an_image_follows_from_its_bytes() {
        let formats: [(&[u8], _); 4] = [
            (PNG, "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a;", "image/gif"),
            (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        ];
        for (bytes, expected) in formats {
            let block = ContentBlock::image(bytes).unwrap();
            let ContentBlock::Image { data, media_type } = &block else { panic!("{block:?}") };
            assert_eq!(media_type, expected);
            assert_eq!(ContentBlock::image_or_note(data, "image/bmp"), block);
        }
        for bytes in [&b"<svg/>"[..], b"BM1234", b"RIFF\0\0\0\0WAVE", b""] {
            assert_eq!(ContentBlock::image(bytes), None);
        }
    }

    #[test]
    fn an_image_that_no_model_can_read_becomes_a_note() {
        let svg = STANDARD.encode("<svg/>");
        for (data, declared, expected) in [
            (
                svg.as_str(),
                "image/svg+xml",
                "[an image (image/svg+xml), about 6 bytes, in a format that models cannot read, not shown]",
            ),
            (
                "not base64!",
                "image/png",
                "[an image (image/png), about 6 bytes, in a format that models cannot read, not shown]",
            ),
            ("", "", "[an image, about 0 bytes, in a format that models cannot read, not shown]"),
        ] {
            assert_eq!(ContentBlock::image_or_note(data, declared), text(expected));
        }
    }

    #[test]
    fn the_largest_image_is_replaced_first_if_an_output_is_too_large() {
        let image = |bytes: usize| ContentBlock::image(&[PNG, &vec![7; bytes]].concat()).unwrap();
        let blocks = [text("two pictures"), image(90), image(900)];
        let output = write_blocks(&blocks);
        let bounded = |bytes_max| -> Vec<ContentBlock> {
            let bounded = bounded_content(output.clone(), CONTENT_BLOCKS, bytes_max);
            assert!(bounded.get().len() <= bytes_max, "{}", bounded.get());
            serde_json::from_str(bounded.get()).unwrap()
        };
        assert_eq!(bounded(output.get().len()), blocks);
        let note = |bytes| format!("[an image (image/png), about {bytes} bytes, too large for a result, not shown]");
        assert_eq!(bounded(600), [text("two pictures"), image(90), text(&note(912))]);
        assert_eq!(bounded(300), [text("two pictures"), text(&note(102)), text(&note(912))]);
        assert!(bounded_content(output.clone(), "application/json", 600).get().starts_with(r#"{"truncated":true"#));
    }

    proptest! {
        #[test]
        fn bounded_blocks_are_blocks_within_the_bound(texts in prop::collection::vec(any::<String>(), 0..5), sizes in prop::collection::vec(0usize..800, 0..4), max in 200usize..900) {
            let images = sizes.iter().map(|bytes| ContentBlock::image(&[PNG, &vec![1; *bytes]].concat()).unwrap());
            let blocks: Vec<_> = texts.iter().map(|one| text(&one.repeat(9))).chain(images).collect();
            let bounded = bounded_content(write_blocks(&blocks), CONTENT_BLOCKS, max);
            prop_assert!(bounded.get().len() <= max);
            let read = serde_json::from_str::<Vec<ContentBlock>>(bounded.get());
            prop_assert!(read.is_ok(), "{}", bounded.get());
        }
    }
}
