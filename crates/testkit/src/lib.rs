//! Test helpers of Attune.
//!
//! [`System`] is a whole Attune as its users run it: real processes of the binary on one of the
//! two [`Wiring`]s, with a database and a virtual host (or a folder) of its own. Around it stand
//! [`Gate`], whose programs end when the test says so, [`Proxy`], which cuts connections on
//! demand, and [`wait_for`], by which tests wait for what they observe.
//!
//! Nothing here outlives its test: processes are killed, databases and virtual hosts dropped when
//! their owners are, by handle and never by name.

mod accounts;
mod api;
mod broker;
pub mod certificates;
pub mod chaos;
pub mod collector;
mod completions;
mod database;
mod gate;
mod illegible;
mod launching;
mod process;
mod proxy;
mod setup;
mod system;
mod wait;

pub use api::{Answer, Api, Submitted};
pub use broker::Broker;
pub use completions::duplicate_completions;
pub use database::Database;
pub use gate::{Gate, Visitor};
pub use illegible::{Spoiler, illegible_properties};
pub use process::{Launch, Process};
pub use proxy::{Proxy, Way};
pub use setup::{Setup, Wiring, variable};
pub use system::System;
pub use wait::{DEADLINE, wait_for, within};

use anyhow::Context as _;

/// A variable that says where the tests find what was prepared for them.
///
/// # Errors
/// When it is not set; the message says how to set it.
pub fn prepared(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| {
        format!(
            "{name} is not set; run scripts/test, or: scripts/services up && eval \
             \"$(scripts/services env)\""
        )
    })
}

/// Does asynchronous work to its end from a `drop`, on a thread of its own.
fn clean_up<F>(what: String, work: impl FnOnce() -> F + Send + 'static)
where
    F: Future<Output = anyhow::Result<()>>,
{
    let cleaning = std::thread::spawn(move || {
        // More than one thread, because lapin's connections need a runtime that runs beside them.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        runtime.block_on(async { within(&what, work()).await? })
    });
    // A failed clean-up must not hide why a test failed.
    match cleaning.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("left behind: {error:#}"),
        Err(_) => eprintln!("left behind: the clean-up panicked"),
    }
}
