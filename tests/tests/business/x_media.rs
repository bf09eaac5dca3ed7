//! Media of posts: fetched only from permitted addresses, checked, and uploaded before the post.

use serde_json::{Value, json};
use tickfleet_tests::fleet::Fleet;

use super::stand_in::{ACCESS, FaultyResponse, StandIn};
use super::{outcomes, plan, reported, run};

async fn fleet_with(media_may: &str) -> (Fleet, StandIn) {
    let x = StandIn::start().await;
    let token = format!("{ACCESS}0");
    let variables = [
        ("X_BASE_URL", x.base.as_str()),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1"),
        ("X_MEDIA_ALLOW_PRIVATE", media_may),
        ("X_USER_TOKEN", &token),
    ];
    (Fleet::start(plan(&variables, |_| {})).await, x)
}

async fn fleet() -> (Fleet, StandIn) {
    fleet_with("127.0.0.1").await
}

fn post(content: &str, media: &[&str]) -> (&'static str, Value) {
    ("post_to_x", json!({"content": content, "media_urls": media}))
}

fn file(head: &[u8], length: usize) -> Vec<u8> {
    // The bytes differ, so that a wrong order of pieces is detected.
    let body = (0..length - head.len()).map(|at| u8::try_from(at / 1000 % 251).unwrap());
    head.iter().copied().chain(body).collect()
}

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\0\0\0\0\0";
const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\0\0\0\0\0\0\0\0\0\0\0";
const GIF: &[u8] = b"GIF89a\0\0\0\0\0\0\0\0\0\0";
const MP4: &[u8] = b"\0\0\0\x18ftypmp42\0\0\0\0";

#[tokio::test]
async fn pictures_are_uploaded_before_the_post() {
    let (mut fleet, x) = fleet().await;
    let png = file(PNG, 70_000);
    let jpeg = file(JPEG, 100);
    let one = x.media("/a.png", "image/png", png.clone());
    let two = x.media("/b", "application/octet-stream", [&jpeg[..], b"\r\n--tickfleet-\r\n\r\n"].concat());
    let results = run(&mut fleet, "kelly", &[post("two pictures", &[&one, &two])]).await;
    assert_eq!(outcomes(&results), ["ok"], "{results:#?}");
    fleet.stop().await;
    let seen = x.seen.lock().unwrap();
    let asked: Vec<&str> = seen.asked.iter().map(String::as_str).collect();
    assert_eq!(asked, ["GET /a.png", "POST /2/media/upload", "GET /b", "POST /2/media/upload", "POST /2/tweets"]);
    let uploads: Vec<_> = seen.uploads.iter().collect();
    assert_eq!((uploads[0].1.mime.as_str(), uploads[0].1.data == png), ("image/png", true));
    assert!(uploads[1].1.mime == "image/jpeg" && uploads[1].1.data.starts_with(&jpeg));
    assert_eq!(seen.posts[0]["media"]["media_ids"], json!([uploads[0].0, uploads[1].0]));
}

#[tokio::test]
async fn videos_and_gifs_are_uploaded_in_chunks_before_the_post() {
    let (mut fleet, x) = fleet().await;
    for (path, head, length, category, pieces) in
        [("/v.mp4", MP4, 5_000_000, "tweet_video", 3), ("/g.gif", GIF, 2_000_000, "tweet_gif", 1)]
    {
        let data = file(head, length);
        let address = x.media(path, "application/octet-stream", data.clone());
        let results = run(&mut fleet, "kelly", &[post(path, &[&address])]).await;
        assert_eq!(outcomes(&results), ["ok"], "{results:#?}");
        let seen = x.seen.lock().unwrap();
        let upload = seen.uploads.values().last().unwrap();
        assert!(upload.category == category && upload.data == data, "{path}: whole and in order");
        assert_eq!(seen.asked.iter().filter(|asked| asked.contains(path)).count(), 1);
        assert_eq!(seen.asked.iter().filter(|asked| asked.ends_with("append")).count(), pieces);
        assert_eq!(seen.asked.last().unwrap(), "POST /2/tweets");
        drop(seen);
        x.asked();
    }
    fleet.stop().await;
}

#[tokio::test]
async fn invalid_media_are_rejected_before_the_post() {
    let (mut fleet, x) = fleet().await;
    let big = x.media("/big.png", "image/png", file(PNG, (5 << 20) + 1));
    let page = x.media("/page", "text/html", b"<html><body>not a picture</body></html>".to_vec());
    let lie = x.media("/lie.png", "text/html", file(PNG, 100));
    let tiny = x.media("/tiny", "image/png", b"x".to_vec());
    let video = x.media("/v", "video/mp4", file(MP4, 100));
    let picture = x.media("/p", "image/png", file(PNG, 100));
    let gone = format!("{}/gone.png", x.base);
    let huge = "127.0.0.1/%";
    let tried = [
        (vec![big.as_str()], "media_urls[0] is too large: image/png may have at most 5 MiB"),
        (vec![&page], "it is not a JPEG, PNG, WebP, GIF, MP4 or QuickTime file"),
        (vec![&lie], "its server says \"text/html\", and it is image/png"),
        (vec![&tiny], "it is not a JPEG"),
        (vec![&picture, &video], "media_urls[1] is video/mp4; a post shows only one such file"),
        (vec![&gone], "its server answers with status 404"),
        (vec![huge], "it is not a URL"),
        (vec!["ftp://example.com/x.png"], "does not start with http"),
        (vec!["http://u:p@example.com/x.png"], "carries a user name or password"),
    ];
    for (addresses, expected) in tried {
        let results = run(&mut fleet, "kelly", &[post("never", &addresses)]).await;
        assert_eq!(outcomes(&results), ["permanent"], "{addresses:?}: {results:#?}");
        assert!(reported(&results[0]).contains(expected), "{addresses:?}: {}", reported(&results[0]));
        assert!(reported(&results[0]).contains("Nothing was posted"));
    }
    let results = run(&mut fleet, "kelly", &[post("never", &[picture.as_str(); 5])]).await;
    assert_eq!(outcomes(&results), ["invalid_arguments"]);
    assert_eq!(x.posts(), 0);
    fleet.stop().await;
}

#[tokio::test]
async fn media_of_unknown_size_are_limited_or_rejected() {
    let (mut fleet, x) = fleet().await;
    x.trouble("/grows.png", FaultyResponse::Stream(file(PNG, 6 << 20)));
    x.trouble("/grows.mp4", FaultyResponse::Stream(file(MP4, 1_000)));
    let results = run(&mut fleet, "kelly", &[post("never", &[&format!("{}/grows.png", x.base)])]).await;
    assert!(reported(&results[0]).contains("too large"), "{results:#?}");
    let results = run(&mut fleet, "kelly", &[post("never", &[&format!("{}/grows.mp4", x.base)])]).await;
    assert!(reported(&results[0]).contains("does not report its size"), "{results:#?}");
    assert_eq!(x.posts(), 0);
    fleet.stop().await;
}

#[tokio::test]
async fn media_urls_cannot_reach_private_addresses() {
    // X itself has a private address here. Media from this address must still be rejected.
    let (mut fleet, x) = fleet_with("").await;
    let inner = x.media("/secret.png", "image/png", file(PNG, 100));
    let metadata = "http://169.254.169.254/latest/meta-data/x.png".to_owned();
    for address in [inner.clone(), metadata.clone(), inner.replace("127.0.0.1", "localhost")] {
        let results = run(&mut fleet, "kelly", &[post("never", &[&address])]).await;
        assert_eq!(outcomes(&results), ["permanent"], "{address}: {results:#?}");
        assert!(reported(&results[0]).contains("may not reach"), "{address}: {}", reported(&results[0]));
    }
    assert_eq!((x.asked(), x.posts()), (vec![], 0), "nobody was asked");
    fleet.stop().await;
    let (mut fleet, x) = fleet_with("127.0.0.1").await;
    x.trouble("/moved.png", FaultyResponse::Status(302, vec![("location", metadata)], String::new()));
    let results = run(&mut fleet, "kelly", &[post("never", &[&format!("{}/moved.png", x.base)])]).await;
    assert_eq!(outcomes(&results), ["permanent"], "{results:#?}");
    assert!(reported(&results[0]).contains("redirects"), "{}", reported(&results[0]));
    assert_eq!((x.asked().len(), x.posts()), (1, 0));
    fleet.stop().await;
}

#[tokio::test]
async fn failures_before_the_post_are_retried() {
    let (mut fleet, x) = fleet().await;
    let picture = x.media("/p.png", "image/png", file(PNG, 100));
    x.trouble("/p.png", FaultyResponse::status(503, json!({})));
    x.trouble("/2/media/upload", FaultyResponse::Cut);
    x.trouble("/2/media/upload", FaultyResponse::status(200, json!({"data": {"id": "1/../../2"}})));
    let results = run(&mut fleet, "kelly", &[post("at last", &[&picture])]).await;
    assert_eq!((outcomes(&results), &results[0]["attempts"]), (vec!["ok"], &json!(4)), "{results:#?}");
    assert_eq!(x.posts(), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn failed_media_processing_ends_the_call() {
    let (mut fleet, x) = fleet().await;
    let video = x.media("/v.mp4", "video/mp4", file(MP4, 1_000));
    let failed = json!({"state": "failed", "error": {"code": 3, "name": "UnsupportedMedia", "message": "file is not supported"}});
    x.trouble("/2/media/upload", FaultyResponse::status(200, json!({"data": {"id": "1", "processing_info": failed}})));
    let results = run(&mut fleet, "kelly", &[post("never", &[&video])]).await;
    assert_eq!(outcomes(&results), ["permanent"], "{results:#?}");
    assert!(reported(&results[0]).contains("file is not supported"));
    assert_eq!(x.posts(), 0);
    fleet.stop().await;
}
