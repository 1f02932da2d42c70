//! PostgreSQL adapter of Attune's storage ports.
