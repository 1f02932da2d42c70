//! Persists the snapshots of Attune's queues.
