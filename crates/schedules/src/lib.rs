//! The concurrent pieces of Attune, run under thousands of random schedules by
//! [shuttle](https://docs.rs/shuttle).
//!
//! The sources of those pieces are compiled a second time, as they are, with shuttle's primitives
//! in the place of the standard library's and tokio's: they take `Mutex` and its like from
//! `crate::sync`, which is `std::sync` at home and [`sync`] here; `tokio` is this crate, and
//! `dashmap` is shuttle's. So nothing of this is in any program, and no flag changes how others
//! are built.
//!
//! A scenario is a function that starts a few threads or tasks and says what must hold however
//! they are interleaved. A deadlock, and so a lost wake-up, is a failure too.

#![expect(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the pieces are more than what the scenarios use of them"
)]
#![expect(clippy::unwrap_used, reason = "a scenario fails by a panic")]

// The pieces, and the names under which they ask for what is replaced.
extern crate self as attune_bus;
extern crate self as tokio;

pub use real_tokio::select;

pub mod sync;
pub mod task;
pub mod time;
pub(crate) use shuttle::thread;

pub(crate) type ById<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
pub(crate) type ByKey<K, V> = std::collections::HashMap<K, V, foldhash::quality::RandomState>;
pub(crate) type SharedById<K, V> = dashmap::DashMap<K, V>;
pub use depth::Depth;
pub use task::spawn;

#[path = "../../commands/src/client/mod.rs"]
mod client;
mod clock;
#[path = "../../record/src/committed.rs"]
mod committed;
#[path = "../../bus/src/confirm.rs"]
mod confirm;
mod containment;
#[path = "../../bus/src/depth.rs"]
mod depth;
#[path = "../../record/src/document.rs"]
mod document;
mod guard;
#[path = "../../worker/src/lease.rs"]
mod lease;
#[path = "../../bus/src/memory/mod.rs"]
mod memory;
#[path = "../../record/src/now.rs"]
mod now;
#[path = "../../record/src/operation.rs"]
mod operation;
#[path = "../../worker/src/options.rs"]
mod options;
#[path = "../../worker/src/outbox.rs"]
mod outbox;
#[path = "../../record/src/phase.rs"]
mod phase;
#[path = "../../executor/src/policy/mod.rs"]
mod policy;
#[path = "../../bus/src/port.rs"]
mod port;
#[path = "../../executor/src/queue/mod.rs"]
mod queue;
#[path = "../../record/src/record.rs"]
mod record;
#[path = "../../record/src/recorder.rs"]
mod recorder;

pub mod bus;
pub mod commands;
pub mod histories;
pub mod queues;
pub mod worker;

/// How many schedules a test tries unless `ATTUNE_SCHEDULES` says otherwise.
const SCHEDULES: usize = 5000;

/// Runs a scenario under many schedules; panics at the first in which it fails or hangs.
///
/// # Panics
/// When the scenario does.
pub fn check(scenario: fn()) {
    let asked = std::env::var("ATTUNE_SCHEDULES").ok();
    let schedules = asked
        .and_then(|text| text.parse().ok())
        .unwrap_or(SCHEDULES);
    let scenario = move || {
        time::reset();
        scenario();
    };
    // Random schedules find most; those with few but forced switches find the rest.
    shuttle::check_random(scenario, schedules.div_ceil(2));
    shuttle::check_pct(scenario, schedules / 2, 3);
}
