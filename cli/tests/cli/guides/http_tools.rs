//! Tests HTTP tools in a whole fleet, with services behind TLS.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::binary::DevFleet;
use crate::support::files::{short_folder, write};

pub struct Service {
    child: Child,
    pub port: String,
}

impl Service {
    pub fn start(folder: &Path, script: &str) -> Self {
        let mut python = Command::new("python3");
        let mut child = python.args([script, "0"]).current_dir(folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
        Self { child, port: port.trim().to_owned() }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn certify(folder: &Path, authority: &str) {
    let openssl = |args: &str| {
        let made = Command::new("openssl").args(args.split_whitespace()).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"));
    openssl(&format!("req {key} -keyout {authority}-server.key -out {authority}.csr -subj /CN=localhost"));
    write(folder, "names", "subjectAltName = IP:127.0.0.1\n");
    openssl(&format!(
        "x509 -req -in {authority}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 -extfile names \
         -out {authority}-server.pem"
    ));
}

const HTTPS: &str = r#"
import http.server, ssl, sys
class Service(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.send_header("Content-Length", "14")
        self.end_headers()
        self.wfile.write(b'{"over":"tls"}')
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("AUTHORITY-server.pem", "AUTHORITY-server.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

#[test]
fn a_tls_service_is_called_only_if_its_authority_is_trusted() {
    let folder = short_folder();
    let folder = folder.path();
    let mut tools = "tools:\n".to_owned();
    let services = ["ours", "theirs"].map(|authority| {
        certify(folder, authority);
        write(folder, &format!("{authority}.py"), &HTTPS.replace("AUTHORITY", authority));
        let service = Service::start(folder, &format!("{authority}.py"));
        tools += &format!(
            "  {authority}: {{description: Asks., effect: once, input_schema: {{type: object}}, http: {{method: POST, \
             base_url: 'https://127.0.0.1:{}', path: /, allow_private: [127.0.0.1]}}}}\n",
            service.port
        );
        service
    });
    write(folder, "conf/tools.yaml", &tools);
    write(folder, "conf/permissions.yaml", "permissions: {ours: {everyone: true}, theirs: {everyone: true}}\n");
    let trusted = folder.join("ours.pem");
    let variables = [("SSL_CERT_FILE", trusted.to_str().unwrap()), ("TICKFLEET_WORKER_RETRY_DELAYS", "10ms")];
    let fleet = DevFleet::start_in(folder, &["--config", "conf"], &variables);
    let turn =
        ["submit", "--tenant", "demo", "--agent", "kelly", "--call", "ours", "--call", "theirs", "--wait", "--json"];
    let reply = fleet.run(&turn).exits(1).json();
    assert_eq!(
        (&reply["results"][0]["outcome"], &reply["results"][0]["output"]["over"]),
        (&"ok".into(), &"tls".into())
    );
    let refused = &reply["results"][1];
    // Nothing was sent to the service. Therefore even a `once` tool was retried until its attempts were used up.
    assert_eq!(refused["outcome"], "transient", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("Could not connect to 127.0.0.1") && message.contains("UnknownIssuer"), "{refused}");
    drop((fleet, services));
}
