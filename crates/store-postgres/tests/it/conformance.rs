//! The suite that every adapter passes.

use attune_store_conformance::Case;

use crate::support::{on_fresh_db, port};

async fn on_fresh_store(case: Case) {
    on_fresh_db(move |db| case(port(&db))).await;
}

attune_store_conformance::conformance_tests!(on_fresh_store);
