//! A command has no sockets of any family. With a grant, a command can only open TCP connections to the granted ports.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use tickfleet_sandbox::{Level, Network, Spec};

use crate::support::*;

#[tokio::test]
async fn a_command_cannot_create_sockets_of_any_family() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
made = []
for family in range(0, 64):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind, 0); made.append((family, kind))
        except OSError as error:
            if error.errno != errno.EPERM: made.append((family, kind, errno.errorcode[error.errno]))
print(made)
";
        assert_eq!(attack(&sandbox, level, script, folder.path()).await, "[]", "{level}");
    }
}

#[tokio::test]
async fn metadata_addresses_and_local_services_are_unreachable() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = service.local_addr().unwrap().port();
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = format!(
            "
for address in (('127.0.0.1', {port}), ('169.254.169.254', 80), ('100.100.100.200', 80), ('fd00:ec2::254', 80)):
    print(attempt(lambda: socket.create_connection(address, timeout=2)))
"
        );
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, ["EPERM"; 4].join("\n"), "{level}");
    }
}

#[tokio::test]
async fn unix_sockets_are_unreachable_by_path_and_abstract_name() {
    let folder = workspace();
    let path = folder.path().join("service");
    let _by_path = UnixListener::bind(&path).unwrap();
    let name = format!("tickfleet-escape-{}", std::process::id());
    let _by_name = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let datagrams = UnixDatagram::bind(folder.path().join("datagrams")).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    for (level, sandbox) in each_level().await {
        let seen = seen(level, folder.path());
        let script = format!(
            "
print(attempt(lambda: socket.socket(socket.AF_UNIX).connect('{0}/service')))
print(attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}')))
# A pair is connected from birth; one of datagrams could still send to a name.
print(attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)))
stream, _ = socket.socketpair()
print(attempt(lambda: stream.connect('{0}/service')))
print(attempt(lambda: stream.sendto(b'x', '{0}/datagrams')))
",
            seen.display()
        );
        let answers = attack(&sandbox, level, &script, folder.path()).await;
        let expected = ["EPERM", "EPERM", "EPERM", "EPERM", "EISCONN"].join("\n");
        assert_eq!(answers, expected, "{level}");
        assert!(datagrams.recv(&mut [0; 8]).is_err());
    }
}

#[tokio::test]
async fn only_a_granted_tcp_port_is_reachable() {
    let granted = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let granted_port = port(&granted);
    let other_port = port(&other);
    for (level, sandbox) in each_level().await {
        let network = Network::Tcp(vec![granted_port]);
        if let Err(why) = sandbox.support().check(level, &network) {
            eprintln!("skipped: {why}");
            continue;
        }
        let folder = workspace();
        let script = format!(
            "
def reach(port):
    socket.create_connection(('127.0.0.1', port), timeout=5); return 1
print(attempt(lambda: reach({granted_port})))
print(attempt(lambda: reach({other_port})))
for family, kind, protocol in ((2, 2, 0), (2, 3, 6), (2, 1, 262), (1, 1, 0), (16, 3, 0), (40, 1, 0), (17, 3, 0)):
    print(attempt(lambda: socket.socket(family, kind, protocol)))
fast = socket.socket()
print(attempt(lambda: fast.sendto(b'x', 0x20000000, ('127.0.0.1', {other_port}))))
print(attempt(lambda: socket.socket().bind(('127.0.0.1', 0))))
"
        );
        let spec = Spec { network, ..python(&script, folder.path()) };
        let answers = attack_with(&sandbox, level, spec).await;
        let mut expected = vec!["ok 1", "EACCES"];
        expected.extend(["EPERM"; 9]);
        assert_eq!(answers.lines().collect::<Vec<_>>(), expected, "{level}");
    }
}

#[tokio::test]
async fn a_granted_port_is_reachable_on_any_host() {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(sandbox) = sandbox(Level::Basic).await else { return };
    let network = Network::Tcp(vec![port]);
    if sandbox.support().check(Level::Basic, &network).is_err() {
        eprintln!("skipped: Landlock restricts no ports here");
        return;
    }
    let folder = workspace();
    let script = format!("socket.create_connection(('127.0.0.2', {port}), timeout=5); print('reached')");
    let spec = Spec { network, ..python(&script, folder.path()) };
    assert_eq!(attack_with(&sandbox, Level::Basic, spec).await, "reached");
}
