//! The clock of the records.

/// `CLOCK_MONOTONIC` in nanoseconds: the same clock in every process of one machine, never set
/// back, and without meaning on another machine.
pub fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
