#![expect(clippy::unwrap_used, reason = "a test panics when its set-up fails")]
//! The SQLite adapter: the suite that every adapter passes, and what only this one promises.

mod backups;
mod batches;
mod children;
mod files;
mod letters;
mod measure;
mod statements;
mod suite;
mod support;
mod upkeep;
