//! A time limit for request bodies, because a slow body occupies a connection and memory.

use std::io;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use futures::stream;
use tokio::time::{Instant, timeout_at};

/// Long enough for the largest body, slightly more than 1 MiB.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn in_time(request: Request, next: Next) -> Response {
    next.run(request.map(|body| bounded(body.into_data_stream()))).await
}

fn bounded(body: BodyDataStream) -> Body {
    // The time starts with the first read, which follows authentication.
    let timed = stream::unfold(Some((body, None)), |state| async {
        let (mut body, deadline) = state?;
        let deadline = deadline.unwrap_or_else(|| Instant::now() + BODY_TIME_MAX);
        match timeout_at(deadline, body.next()).await {
            Ok(chunk) => chunk.map(|chunk| (chunk.map_err(io::Error::other), Some((body, Some(deadline))))),
            Err(_) => {
                let message = format!("the body did not arrive within {} s", BODY_TIME_MAX.as_secs());
                Some((Err(io::Error::new(io::ErrorKind::TimedOut, message)), None))
            }
        }
    });
    Body::from_stream(timed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use axum::body::{Bytes, to_bytes};

    use super::*;

    fn slow(pieces: u64, every: Duration) -> Body {
        let pieces = stream::iter(0..pieces).then(move |_| async move {
            // The sleep advances the test's paused clock.
            tokio::time::sleep(every).await;
            Ok::<_, io::Error>(Bytes::from_static(b"x"))
        });
        bounded(Body::from_stream(pieces).into_data_stream())
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickling_body_times_out_and_a_slow_body_completes() {
        let body = to_bytes(slow(20, Duration::from_secs(1)), 1_024).await.unwrap();
        assert_eq!(body.len(), 20);
        let began = Instant::now();
        let error = to_bytes(slow(1_000, Duration::from_secs(1)), 1_024).await.unwrap_err();
        assert!(format!("{error:?}").contains("did not arrive within 30 s"), "{error:?}");
        assert_eq!(began.elapsed(), BODY_TIME_MAX);
        assert!(to_bytes(slow(1, Duration::from_secs(3_600)), 1_024).await.is_err(), "one that never begins");
    }
}
