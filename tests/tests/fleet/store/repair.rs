//! What does not agree in a shard: what is told of it, and what is mended.

use tickfleet_store::{Fault, Repaired};

use super::*;

/// An audit entry as whoever has a shard mended writes it: two objects are open.
const ENTRY: &str = r#"{"action":"REPAIR","meta":{"shard":0"#;

impl World {
    /// A command on a key, which is its second word, or the third of `XGROUP`.
    async fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(self.store.keys().key(words[1])).arg(&words[2..]);
        self.store.connection().query(Question::Look, &command).await.unwrap()
    }

    async fn repaired(&self) -> Repaired {
        self.store.faults(Some(ENTRY)).await.unwrap()
    }

    /// What is wrong, each with what has it and whether it was mended.
    async fn mended(&self) -> Vec<(Fault, String, bool)> {
        self.repaired().await.found.into_iter().map(|found| (found.fault, found.item, found.mended)).collect()
    }
}

fn found(fault: Fault, item: &str, mended: bool) -> (Fault, String, bool) {
    (fault, item.to_owned(), mended)
}

#[tokio::test]
async fn an_id_whose_message_is_gone_is_free_after_the_mend() {
    let w = World::new().await;
    let submission = Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: Some(TurnId::new("t1").unwrap()),
        digest: "1".into(),
        reply_to: None,
        payload: "{}".into(),
    };
    let submit = async || w.store.submit(std::slice::from_ref(&submission)).await.unwrap().remove(0);
    let Submitted::Accepted { entry } = submit().await else { panic!("a new id is refused") };
    assert_eq!(w.mended().await, []);
    assert_eq!(submit().await, Submitted::Duplicate);
    assert_eq!(w.redis::<u64>(&["XDEL", "turns", &entry]).await, 1);
    // A task's id has a note, too, and no key.
    assert_eq!(w.redis::<u64>(&["HSET", "queued", "k:acme:task", "1-1"]).await, 1);
    let mut mended = w.mended().await;
    mended.sort();
    assert_eq!(
        mended,
        [found(Fault::IdWithoutEntry, "acme:t1", true), found(Fault::IdWithoutEntry, "k:acme:task", true)]
    );
    assert!(
        matches!(submit().await, Submitted::Accepted { .. }),
        "its producer would wait for a reply that never comes"
    );
    assert_eq!(w.mended().await, []);
}
