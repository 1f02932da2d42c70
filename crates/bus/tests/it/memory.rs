//! The in-process bus passes the suite.

use std::sync::Arc;

use attune_bus::Bus;
use attune_bus::memory::MemoryBus;

async fn make_bus() -> (Arc<dyn Bus>, ()) {
    (Arc::new(MemoryBus::new()), ())
}

attune_bus::conformance_tests!(make_bus);
