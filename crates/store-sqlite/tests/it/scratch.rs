use std::time::Instant;
use attune_store::*;
use attune_core::*;
use crate::support::*;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "x"]
async fn load() {
    let store = attune_store_sqlite::SqliteStore::temporary().await.unwrap();
    let mut owner = Owner::of(&store).await;
    for _ in 0..50 {
        let b = Batch { inserts: owner.queued(2000), ..owner.batch() };
        store.commit(&b).await.unwrap();
    }
    let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
    for size in [1000, 10_000, 100_000] {
    let s = Instant::now();
    let mut after = None; let mut n = 0;
    loop {
        let p = store.load_active(&all, after, size).await.unwrap();
        let Some(l) = p.last() else { break };
        after = Some(l.id); n += p.len();
    }
    println!("X load {size} {n} {:?}", s.elapsed());
    }
    let s = Instant::now();
    println!("X slots {} {:?}", store.load_slots(&all).await.unwrap().len(), s.elapsed());
    let s = Instant::now();
    let f = ExecutionFilter { requested_by: Some("nobody".into()), ..Default::default() };
    println!("X list rare {} {:?}", store.list_executions(&f, None, 50).await.unwrap().executions.len(), s.elapsed());
    let s = Instant::now();
    let f = ExecutionFilter::default();
    println!("X list {} {:?}", store.list_executions(&f, None, 50).await.unwrap().executions.len(), s.elapsed());
    let s = Instant::now();
    let f = ExecutionFilter{action_ref: Some("core.echo".into()), ..Default::default()};
    println!("X list action {} {:?}", store.list_executions(&f, None, 50).await.unwrap().executions.len(), s.elapsed());
}
