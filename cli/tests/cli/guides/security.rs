//! Configures Redis users, TLS and backups as the documentation describes, with a real Redis.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tickfleet_store::DEFAULT_USER;
use tickfleet_testkit::{RedisOptions, RedisServer};
use tokio::time::Instant;

use crate::support::binary::{CommandOutput, DevFleet, tickfleet};
use crate::support::certificates::certificates;
use crate::support::documents::{REPOSITORY, blocks};
use crate::support::process::{Process, until};

/// On an idle machine, each event takes less than a second.
const PATIENCE: Duration = Duration::from_secs(120);

async fn ask(connection: &mut MultiplexedConnection, command: &str) -> Result<redis::Value, String> {
    let (name, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let mut command = redis::cmd(name);
    arguments.split_whitespace().for_each(|word| _ = command.arg(word));
    let answer = command.query_async(connection).await;
    answer.map_err(|error: redis::RedisError| error.code().map_or_else(|| error.to_string(), str::to_owned))
}

async fn read(connection: &mut MultiplexedConnection, command: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask(connection, command).await;
        match &answer {
            Ok(redis::Value::Nil) => {}
            Ok(found) => return format!("{found:?}"),
            Err(code) => {
                assert_eq!(code, "NOGROUP", "{command}");
                // A read from a missing group does not block.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        assert!(Instant::now() < deadline, "{command}: nothing within {PATIENCE:?}, and last {answer:?}");
    }
}

#[tokio::test]
async fn a_fleet_runs_on_a_redis_without_the_config_command() {
    let extra_args = ["--rename-command", "CONFIG", ""].map(str::to_owned).into();
    let redis = RedisServer::start_with(RedisOptions { extra_args, ..RedisOptions::default() }).await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    fleet.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--wait"]).exits(0);
    fleet.run(&["doctor"]).exits(0).says("1 alive");
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn each_redis_user_of_the_guide_can_run_only_its_own_commands() {
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let page = fs::read_to_string(Path::new(REPOSITORY).join("docs/operate/redis-users-and-tls.md")).unwrap();
    let node = tickfleet(&["acl", "--role", "tickfleet"]).exits(0).stdout;
    let default = format!("user default {DEFAULT_USER}");
    let mut connection = redis.connection().await;
    // `default` must be last, because this connection uses it to create the other users.
    for user in blocks(&page, "acl").into_iter().flat_map(|(_, lines)| lines).chain([node.trim(), &default]) {
        ask(&mut connection, &user.replacen("user", "ACL SETUSER", 1)).await.unwrap();
    }
    tickfleet(&["doctor", "--redis-url", &redis.url()]).exits(1).prints_error("Authentication required");
    let url = |user: &str| redis.url().replace("redis://", &format!("redis://{user}:{user}-secret@"));
    let as_user = async |user: &str| tickfleet_testkit::connect(&url(user)).await.unwrap();
    let fleet = DevFleet::start(&["--redis-url", &url("tickfleet")]);
    let refused = |answer: Result<redis::Value, String>| assert_eq!(answer.unwrap_err(), "NOPERM");

    let mut chat = as_user("chat-service").await;
    let turn = r#"XADD {tickfleet:0}:turns * turn {"tenant":"demo","agent":"kelly","reply_to":"chat-service","calls":[{"name":"echo"}]}"#;
    ask(&mut chat, turn).await.unwrap();
    let reply = read(&mut chat, "XREAD BLOCK 5000 STREAMS {tickfleet:0}:replies:demo:chat-service 0").await;
    assert!(reply.contains("done"), "{reply}");
    // Consumers confirm replies with some of these commands, and producers check the fleet with others.
    for may in [
        "SET {tickfleet:0}:read:demo:chat-service 1-1 EX 600",
        "XDEL {tickfleet:0}:replies:demo:chat-service 1-1",
        "XREVRANGE {tickfleet:0}:replies:demo:chat-service + - COUNT 1",
        "XTRIM {tickfleet:0}:replies:demo:chat-service MINID 1-1",
        "HGET {tickfleet:0}:meta pressure",
        "XLEN {tickfleet:0}:turns",
    ] {
        ask(&mut chat, may).await.unwrap_or_else(|code| panic!("{may}: {code}"));
    }
    for beyond in [
        "XRANGE {tickfleet:0}:turns - +",
        "XREAD STREAMS {tickfleet:0}:replies:demo:another 0",
        "XTRIM {tickfleet:0}:turns MAXLEN 0",
        "XDEL {tickfleet:0}:turns 1-1",
        "SET {tickfleet:0}:turns x",
        "SET {tickfleet:0}:read:demo:another 1-1",
        "XTRIM {tickfleet:0}:replies:demo:another MAXLEN 0",
        "XADD {tickfleet:0}:replies:demo:chat-service * reply {}",
        "DEL {tickfleet:0}:turns",
        "HGETALL {tickfleet:0}:meta",
        "XADD {tickfleet:0}:ready:normal * a b",
        "EVAL return(1) 0",
        "KEYS *",
    ] {
        refused(ask(&mut chat, beyond).await);
    }

    let mut runtime = as_user("archy-runtime").await;
    fleet.run(&["delegate", "--tenant", "demo", "--to", "archy", "Look it up"]).exits(0);
    let lease = "XREADGROUP GROUP workers runtime-5 COUNT 1 BLOCK 5000 STREAMS {tickfleet:0}:external:demo:archy >";
    let leased = read(&mut runtime, lease).await;
    assert!(leased.contains("Look it up"), "{leased}");
    ask(&mut runtime, r#"XADD {tickfleet:0}:tasks * task {"op":"heartbeat"}"#).await.unwrap();
    refused(ask(&mut runtime, "XACK {tickfleet:0}:external:demo:archy workers 1-0").await);
    refused(ask(&mut runtime, "XRANGE {tickfleet:0}:audit - +").await);

    let mut node = as_user("tickfleet").await;
    for beyond in ["FLUSHALL", "CONFIG SET maxmemory 1", "SET elsewhere 1", "KEYS *", "ACL LIST", "SHUTDOWN NOSAVE"] {
        refused(ask(&mut node, beyond).await);
    }
}

/// A Redis with the certificates in the folder, which accepts only TLS. Returns its port, too.
async fn tls_redis(folder: &Path, asks_clients: &str) -> (RedisServer, String) {
    certificates(folder, "DNS:localhost");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let [ca, certificate, key] =
        ["ca.pem", "redis.pem", "redis.key"].map(|name| folder.join(name).display().to_string());
    let arguments = ["--tls-port", &port, "--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate];
    let more = ["--tls-key-file", &key, "--tls-auth-clients", asks_clients];
    let extra_args = arguments.iter().chain(&more).map(ToString::to_string).collect();
    (RedisServer::start_with(RedisOptions { extra_args, ..RedisOptions::default() }).await, port)
}

#[tokio::test]
async fn a_fleet_connects_to_redis_over_tls_with_a_private_ca() {
    let folder = tempfile::tempdir().unwrap();
    let (_redis, port) = tls_redis(folder.path(), "no").await;
    let ca = folder.path().join("ca.pem").display().to_string();
    let url = format!("rediss://localhost:{port}");

    let fleet = DevFleet::start_with(&["--redis-url", &url], &[("TICKFLEET_REDIS_TLS_CA", &ca)]);
    let turn = ["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--wait"];
    let mut command = fleet.command(&turn);
    CommandOutput::of(command.env("TICKFLEET_REDIS_TLS_CA", &ca), "").exits(0).says("ok");
    let mut command = fleet.command(&turn);
    command.env("TICKFLEET_REDIS_TLS_CA", &ca).env("SSL_CERT_FILE", "/dev/null");
    CommandOutput::of(&mut command, "").exits(0).says("ok");
    CommandOutput::of(fleet.command(&["doctor"]).env("SSL_CERT_FILE", "/dev/null"), "")
        .exits(3)
        .prints_error("cannot be reached");
    let other_name = format!("rediss://127.0.0.1:{port}");
    let doctor = tickfleet(&["doctor", "--redis-url", &other_name]);
    doctor.exits(3).prints_error("UnknownIssuer").prints_error("TICKFLEET_REDIS_TLS_CA");
    let mut doctor = fleet.command(&["doctor", "--redis-url", &other_name]);
    let wrong_name = "use a host name in the URL that the certificate of the Redis server contains";
    CommandOutput::of(doctor.env("TICKFLEET_REDIS_TLS_CA", &ca), "")
        .exits(3)
        .prints_error("not valid for name")
        .prints_error(wrong_name);
    let submit = tickfleet(&[&turn[..], &["--redis-url", &other_name]].concat());
    submit.exits(3).prints_error("UnknownIssuer").prints_error("TICKFLEET_REDIS_TLS_CA");
    let conf = tempfile::tempdir().unwrap();
    for (variables, cause, remedy) in [
        (&[][..], "UnknownIssuer", "TICKFLEET_REDIS_TLS_CA"),
        (&[("TICKFLEET_REDIS_TLS_CA", ca.as_str())], "not valid for name", wrong_name),
    ] {
        let scheduler = Process::start_with("scheduler", conf.path(), &other_name, variables);
        // On a machine that stalls, a handshake can take longer than the probe waits.
        let ready = until(cause, || scheduler.answer("/readyz"), |ready| ready.contains(cause));
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains(cause) && ready.contains(remedy), "{ready}");
        let logged = scheduler.says("shard not ready; retrying");
        assert!(logged["remedy"].as_str().unwrap().contains(remedy), "{logged}");
    }
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn a_fleet_presents_its_client_certificate_to_redis() {
    let folder = tempfile::tempdir().unwrap();
    let (_redis, port) = tls_redis(folder.path(), "yes").await;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let ca = file("ca.pem");
    let key = file("redis.key");
    let trusting = format!("rediss://localhost:{port}/0?tls_ca={ca}");
    let shown = file("fleet.pem");
    let secret = file("fleet.key");
    let url = format!("{trusting}&tls_cert={shown}&tls_key={secret}");

    let reported = tickfleet(&["doctor", "--redis-url", &trusting]).exits(3);
    reported.prints_error("?tls_cert=FILE&tls_key=FILE");
    tickfleet(&["doctor", "--redis-url", &format!("{trusting}&tls_cert={shown}&tls_key={key}")]).exits(3);
    let none = tickfleet(&["doctor", "--redis-url", &format!("{url}.none")]).exits(2);
    none.prints_error("the file that tls_key names").prints_error("No such file");

    let fleet = DevFleet::start(&["--redis-url", &url]);
    fleet.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--wait"]).exits(0).says("ok");
    let looked = fleet.run(&["doctor"]).exits(0);
    looked.says(&shown);
    assert!(!looked.stdout.contains("fleet.key"), "{}", looked.stdout);
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn a_turn_from_a_restored_backup_runs() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let turn = ["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--turn-id", "kept"];
    tickfleet(&[&turn[..], &["--redis-url", &redis.url()]].concat()).exits(0);
    let mut backup = Command::new("redis-cli");
    backup.args(["-u", &redis.url(), "--rdb", "dump.rdb"]).current_dir(folder.path());
    backup
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    CommandOutput::of(&mut backup, "").exits(0);
    drop(redis);

    let extra_args = ["--dir", folder.path().to_str().unwrap()].map(String::from).into();
    let restored = RedisServer::start_with(RedisOptions { tcp: true, extra_args, ..RedisOptions::default() }).await;
    let fleet = DevFleet::start(&["--redis-url", &restored.url()]);
    // The restored fleet knows the ID, so the turn does not run again. The reply comes from the backup.
    fleet.run(&[&turn[..], &["--wait"]].concat()).exits(0).says("kept/0").says("ok");
}
