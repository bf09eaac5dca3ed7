//! Redis keeps few short members of a key as a list, which it looks through for each that is asked for: what is asked for
//! with every turn is kept as a table.

use tickfleet_store::PruneAt;

use super::*;

async fn ask<T: redis::FromRedisValue>(w: &World, name: &str, command: &[&str]) -> T {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]).arg(w.store.keys().key(name));
    w.store.connection().query(Question::Look, &asked).await.unwrap()
}

#[tokio::test]
async fn timers_of_many_turns_and_budgets_of_some_agents_are_tables_with_nothing_else_in_them() {
    let w = World::new().await;
    let of = |number: usize| {
        let agent = AgentId::new(format!("a{number}")).unwrap();
        Admission { agent, ..w.turn(&format!("t{number}"), 1) }
    };
    let turns: Vec<Admission> = (0..40).map(of).collect();
    let admitted = w.admit(w.row(10, 100, DayCapAction::Reject), &turns).await;
    assert!(admitted.iter().all(|turn| matches!(turn, Admitted::Dispatched)), "{admitted:?}");
    assert_eq!(ask::<String>(&w, "timers", &["OBJECT", "ENCODING"]).await, "skiplist");
    assert_eq!(ask::<usize>(&w, "timers", &["ZCARD"]).await, 40);
    w.store.prune(&PruneAt::default()).await.unwrap();
    assert_eq!(ask::<String>(&w, "budgets", &["OBJECT", "ENCODING"]).await, "hashtable");
    assert_eq!(ask::<usize>(&w, "budgets", &["HLEN"]).await, 40);
}
