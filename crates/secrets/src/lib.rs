//! Seals what a schema marks as secret, opens it, and takes it out of what programs write. No I/O, no clock, no
//! chance but for new keys: what is sealed twice under one key is the same, so that a repeated request is known.

mod keyring;
mod scrub;
mod sealing;

pub use keyring::{KeyFileError, Keyring, is_key_id, new_key};
pub use scrub::{MIN_BYTES, Scrub, Secrets};
pub use sealing::{MAX_BYTES, OpenError, Opened};
