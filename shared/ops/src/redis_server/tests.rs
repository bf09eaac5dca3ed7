#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;

async fn say(server: &PrivateRedis, command: &str) -> String {
    let mut stream = UnixStream::connect(socket_in(server.dir())).await.unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn an_append_only_server_keeps_its_data_across_an_orderly_stop() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions { appendonly: true, ..ServerOptions::new(folder.path()) };
    let mut server = PrivateRedis::start(options).await.unwrap();
    assert!(say(&server, "SET kept yes").await.starts_with("+OK"));
    server.stop().await.unwrap();
    server.restart().await.unwrap();
    assert!(say(&server, "GET kept").await.contains("yes"));
}

#[tokio::test]
async fn a_hung_server_is_still_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = PrivateRedis::start(ServerOptions::new(folder.path())).await.unwrap();
    server.signal(Signal::SIGSTOP).unwrap();
    server.stop().await.unwrap();
    assert!(server.signal(Signal::SIGCONT).is_err(), "it has ended");
}

#[tokio::test]
async fn the_server_ends_when_its_parent_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = PrivateRedis::start(ServerOptions::new(folder.path())).await.unwrap();
    // A closed pipe looks like the end of this process.
    server.watchdog.as_mut().unwrap().close_pipe();
    while server.child.try_wait().unwrap().is_none() {
        // Poll, because the test notices the end only when it reaps the child.
        sleep(STEP).await;
    }
}

#[tokio::test]
async fn a_failed_start_reports_the_rejected_argument() {
    let folder = tempfile::tempdir().unwrap();
    let extra_args = vec!["--no-such-setting".into(), "1".into()];
    let options = ServerOptions { extra_args, ..ServerOptions::new(folder.path()) };
    let error = PrivateRedis::start(options).await.unwrap_err().to_string();
    assert!(error.contains("no-such-setting"), "{error}");
}

#[tokio::test]
async fn a_folder_path_too_long_for_a_socket_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions::new(folder.path().join("x".repeat(100)));
    assert!(matches!(PrivateRedis::start(options).await, Err(ServerError::PathTooLong(_))));
}

#[tokio::test]
async fn a_second_server_in_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = PrivateRedis::start(ServerOptions::new(folder.path())).await.unwrap();
    let second = PrivateRedis::start(ServerOptions::new(folder.path())).await;
    assert!(matches!(second, Err(ServerError::InUse(_))), "{second:?}");
    assert!(say(&first, "PING").await.starts_with("+PONG"), "the first one is left alone");

    first.kill9().unwrap();
    first.restart().await.unwrap();
    drop(first);
    PrivateRedis::start(ServerOptions::new(folder.path())).await.unwrap();
}
