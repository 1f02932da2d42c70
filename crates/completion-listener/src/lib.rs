//! Validates completions and hands them to the owners of their partitions.
