//! The in-process bus passes the suite.

use std::sync::Arc;

use attune_bus::Bus;
use attune_bus::{MemoryBus, Room};
use attune_bus_conformance::{MAX_MESSAGE_BYTES, ROOM_BYTES};

async fn make_bus() -> (Arc<dyn Bus>, ()) {
    (Arc::new(MemoryBus::new()), ())
}

async fn make_bounded() -> (Arc<dyn Bus>, ()) {
    let room = Room {
        bytes: ROOM_BYTES,
        ..Room::default()
    };
    (
        Arc::new(MemoryBus::with_bounds(room, MAX_MESSAGE_BYTES)),
        (),
    )
}

attune_bus_conformance::conformance_tests!(make_bus, make_bounded);
