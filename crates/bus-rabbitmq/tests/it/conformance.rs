//! The suite that every bus passes, on both types of queues.

use attune_bus_conformance::{MAX_MESSAGE_BYTES, ROOM_BYTES};
use attune_bus_rabbitmq::RabbitOptions;

fn bounded(options: RabbitOptions) -> RabbitOptions {
    RabbitOptions {
        max_message_bytes: MAX_MESSAGE_BYTES,
        max_queue_bytes: ROOM_BYTES as u64,
        ..options
    }
}

mod quorum {
    use std::sync::Arc;

    use attune_bus::Bus;

    use crate::support::{Prefix, connect};

    async fn fresh() -> (Arc<dyn Bus>, Prefix) {
        let prefix = Prefix::new();
        (connect(prefix.options()).await, prefix)
    }

    async fn bounded() -> (Arc<dyn Bus>, Prefix) {
        let prefix = Prefix::new();
        (connect(super::bounded(prefix.options())).await, prefix)
    }

    attune_bus_conformance::conformance_tests!(fresh, bounded);
}

mod classic {
    use std::sync::Arc;

    use attune_bus::Bus;
    use attune_bus_rabbitmq::{QueueType, RabbitOptions};

    use crate::support::{Prefix, connect};

    async fn fresh() -> (Arc<dyn Bus>, Prefix) {
        let prefix = Prefix::new();
        let options = RabbitOptions {
            queue_type: QueueType::Classic,
            ..prefix.options()
        };
        (connect(options).await, prefix)
    }

    async fn bounded() -> (Arc<dyn Bus>, Prefix) {
        let prefix = Prefix::new();
        let options = RabbitOptions {
            queue_type: QueueType::Classic,
            ..super::bounded(prefix.options())
        };
        (connect(options).await, prefix)
    }

    attune_bus_conformance::conformance_tests!(fresh, bounded);
}
