//! An export continues in its own file, and never in the file of another fleet.

use std::collections::BTreeMap;

use tickfleet_client::audit::{Export, ExportRange, ExportResume};
use tickfleet_proof::lines::Header;
use tickfleet_store::Store;
use tickfleet_tests::fleet::{Fleet, Plan};

async fn write(fleet: &Fleet, of: &str, entries: usize) {
    for number in 0..entries {
        let text = format!(r#"{{"tenant":"acme","message":"{of} {number}"}}"#);
        let _: String = fleet.ask("XADD", "audit", &["*", "audit", &text]).await;
    }
}

async fn exported(stores: &[Store], header: &Header) -> ExportResume {
    let mut file = Vec::new();
    Export::new(stores, ExportRange::default(), ExportResume::default(), &mut file).write(header).await.unwrap();
    let mut resume = ExportResume::default();
    for line in String::from_utf8(file).unwrap().lines() {
        resume.take(line);
    }
    resume
}

#[tokio::test]
async fn an_export_does_not_continue_in_a_file_of_another_fleet() {
    let plan = || Plan { schedulers: 0, workers: 0, ..Plan::default() };
    let ours = Fleet::start(plan()).await;
    let theirs = Fleet::start(plan()).await;
    let header = Header { fleet: ours.store.options().namespace.clone(), keys: BTreeMap::new(), ..Header::default() };
    let stores = [ours.store.clone()];
    write(&ours, "ours", 3).await;
    write(&theirs, "theirs", 3).await;
    let other = exported(std::slice::from_ref(&theirs.store), &header).await;
    write(&ours, "ours", 3).await;
    let own = exported(&stores, &header).await;
    own.check(&stores, &header).await.unwrap();
    write(&theirs, "theirs", 3).await;
    let newer = exported(std::slice::from_ref(&theirs.store), &header).await;
    for other in [other, newer] {
        let refused = other.check(&stores, &header).await.unwrap_err().to_string();
        assert!(refused.contains("is not in the log of this fleet; write to another file"), "{refused}");
    }
    write(&ours, "ours", 2).await;
    let _: u64 = ours.ask("XTRIM", "audit", &["MAXLEN", "1"]).await;
    own.check(&stores, &header).await.unwrap();
}
