//! The suite that every adapter passes.

use std::sync::Arc;

use attune_store_conformance::Case;
use attune_store_sqlite::SqliteStore;

async fn on_fresh_store(case: Case) {
    let store = SqliteStore::temporary().await.unwrap();
    case(Arc::new(store)).await;
}

attune_store_conformance::conformance_tests!(on_fresh_store);
