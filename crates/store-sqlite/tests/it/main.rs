//! The SQLite adapter: the suite that every adapter passes, and what only this one promises.

mod batches;
mod children;
mod files;
mod measure;
mod scratch;
mod statements;
mod suite;
mod support;
