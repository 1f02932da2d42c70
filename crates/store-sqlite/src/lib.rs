//! SQLite adapter of Attune's storage ports, for the embedded single-process mode.
//!
//! One file, one process: [`SqliteStore::open`] takes an exclusive lock on `<file>.lock`, because
//! two processes on one file would be two owners of every partition. Inside the process:
//!
//! - **One writer.** SQLite has one writer at a time, so there is one connection that writes, and
//!   whoever writes waits for it in order. A batch is one transaction that begins as a write
//!   (`BEGIN IMMEDIATE`): a transaction that begins as a read and then writes fails at once when
//!   another has written meanwhile, without waiting.
//! - **A few readers** on read-only connections; in WAL mode neither side waits for the other.
//! - **What was committed is on the disk** (`synchronous = FULL`): in WAL mode the faster setting
//!   loses the last commits when the power fails.
//! - **Lists go in as JSON** and are unpacked by the statement; the rows of long ones are arrays, whose places
//!   cost less to find than names. A batch is one command of several statements, because a command costs a
//!   round trip to the connection's thread, which is more than ten rows cost.
//! - **A round of an owner is one batch** for all its partitions, so there is never a second one that could
//!   share its transaction.
//! - **The clock is SQLite's**, read inside the statements.

mod actions;
mod audit;
mod backup;
mod batch;
mod columns;
mod commit;
mod dead_letters;
mod error;
mod executions;
mod former;
mod identity;
mod keys;
mod lock;
mod look;
mod migrate;
mod operations;
mod options;
mod partition_rows;
mod partitions;
mod pauses;
mod policies;
mod rows;
mod script;
pub mod sql;
mod stats;
mod store;
mod upkeep;
mod workers;
mod writer;

pub use backup::back_up;
pub use look::holder;
pub use options::SqliteOptions;
pub use store::SqliteStore;
