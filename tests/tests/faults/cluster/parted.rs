//! A primary is cut off from all other nodes, but not from the fleet and its producers.

use tickfleet_testkit::Network;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_calls_run_once_when_an_isolated_primary_is_replaced() {
    if !Network::is_possible().await {
        eprintln!("skipped: servers cannot call from addresses of their own here");
        return;
    }
    let fleet = Fleet::start_on(Cluster::start_apart(3, 1, &[]).await, plenty(), Durability::Replica).await;
    let tenant = &tenants()[0];
    fleet.submit(tenant, "before", 3).await;
    fleet.until_ended(tenant, 3).await;
    let slot = fleet.slot(tenant).await;
    let holder = fleet.cluster.holder(slot).await.unwrap();
    let key = fleet.client.store(tenant).keys().key("nobody");

    fleet.cluster.network().isolate(&[holder], fleet.cluster.servers.len());
    fleet.submit(tenant, "during", 5).await;
    assert_eq!(fleet.cluster.another_holder(slot, holder).await, fleet.cluster.partner(holder));
    fleet.cluster.refuses(holder, &key, "CLUSTERDOWN").await;
    fleet.cluster.network().join();
    fleet.cluster.refuses(holder, &key, "MOVED").await;
    fleet.submit(tenant, "during", 5).await;

    let said = fleet.until_ended(tenant, 8).await;
    let ok = said.iter().filter(|outcome| *outcome == "ok").count();
    // Until the old primary follows the new one, no replica confirms. Calls may use up their attempts without running.
    assert!(
        said.iter().all(|outcome| ["ok", "transient"].contains(&outcome.as_str())),
        "{:#?}",
        fleet.replies(tenant).await
    );
    fleet.each_ran_once(ok);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_move_waits_while_the_cluster_is_down() {
    if !Network::is_possible().await {
        eprintln!("skipped: servers cannot call from addresses of their own here");
        return;
    }
    let cluster = Cluster::start_apart(3, 0, &[]).await;
    let slot = cluster.slot("{a}").await;
    let from = cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    let set = redis::cmd("SET").arg("{a}").arg("here").to_owned();
    let () = set.query_async(&mut cluster.servers[from].connection().await).await.unwrap();
    cluster.begin_to_move(slot, from, to).await;
    let key = [b"{a}".to_vec()];

    cluster.network().isolate(&[from], 3);
    cluster.refuses(from, "{a}:nobody", "CLUSTERDOWN").await;
    let moving = cluster.move_keys(&key, from, to);
    let joining = async { cluster.network().join() };
    tokio::join!(moving, joining);
    assert!(cluster.keys_in(slot, from).await.is_empty());
    assert_eq!(cluster.keys_in(slot, to).await, key);
}
