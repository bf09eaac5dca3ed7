//! Tests the gateway over TLS, with a new certificate and with clients that never begin the handshake.

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use reqwest::Certificate;

use super::Gateway;
use super::fixture::GatewayFixture;
use crate::support::binary::tickfleet;
use crate::support::certificates::certificates;
use crate::support::process::pause;

async fn ask(gateway: &Gateway, folder: &Path, key: &str) -> reqwest::Result<u16> {
    let root = Certificate::from_pem(&fs::read(folder.join("ca.pem")).unwrap())?;
    let client = reqwest::Client::builder().tls_certs_only([root]).build()?;
    let port = gateway.address.rsplit_once(':').unwrap().1;
    let path = format!("https://localhost:{port}/v1/turns/nothing");
    Ok(client.get(path).bearer_auth(key).send().await?.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_serves_tls_and_reloads_a_new_certificate() {
    tickfleet_outbound::install_crypto_provider();
    let place = GatewayFixture::new(&[]).await;
    let _fleet = place.fleet();
    let [old, new] = ["old", "new"].map(|name| place.folder.path().join(name));
    for folder in [&old, &new] {
        fs::create_dir(folder).unwrap();
        certificates(folder, "DNS:localhost");
    }
    let key = place.key("all", &[]);
    let served = ["tls.crt", "tls.key"].map(|name| place.folder.path().join(name));
    let put = |from: &Path| {
        fs::copy(from.join("redis.pem"), &served[0]).unwrap();
        fs::copy(from.join("redis.key"), &served[1]).unwrap();
    };
    put(&old);
    let args = ["--tls-cert", served[0].to_str().unwrap(), "--tls-key", served[1].to_str().unwrap()];
    let gateway = place.gateway_with(&args);
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&gateway.address).unwrap()).collect();
    assert_eq!(ask(&gateway, &old, &key).await.unwrap(), 404);
    let reported = ask(&gateway, &new, &key).await.unwrap_err();
    assert!(reported.is_connect(), "a root that has not signed it: {reported:?}");
    let plain = reqwest::get(format!("http://{}/v1/openapi.json", gateway.address)).await;
    assert!(plain.is_err(), "no answer without TLS: {plain:?}");

    put(&new);
    while ask(&gateway, &new, &key).await.is_err() {
        pause();
    }
    assert!(ask(&gateway, &old, &key).await.is_err(), "the old certificate is out of force");
    fs::write(&served[0], "no certificate").unwrap();
    drop(silent);
    assert_eq!(ask(&gateway, &new, &key).await.unwrap(), 404);

    let args = ["gateway", "--keys", place.keys.to_str().unwrap(), "--tls-cert", args[1], "--tls-key", args[3]];
    tickfleet(&args).exits(2).prints_error("expected a PEM certificate");
}
