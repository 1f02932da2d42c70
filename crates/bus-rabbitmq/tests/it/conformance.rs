//! The suite that every bus passes, on both types of queues.

mod quorum {
    use std::sync::Arc;

    use attune_bus::Bus;

    use crate::support::{Prefix, connect};

    async fn fresh() -> (Arc<dyn Bus>, Prefix) {
        let prefix = Prefix::new();
        (connect(prefix.options()).await, prefix)
    }

    attune_bus::conformance_tests!(fresh);
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

    attune_bus::conformance_tests!(fresh);
}
