//! RabbitMQ adapter of Attune's message ports.
