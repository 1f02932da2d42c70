//! Who speaks to Attune and what they may do.
//!
//! A client proves who it is by a [`Key`]. What is stored of it is its public [`KeyId`] and the hash of its
//! secret. It speaks as a [`Principal`], whose [`Role`]s say which [`Permission`]s it has, whose patterns say
//! for which actions and pools, and whose [`Rates`] say how much of it.
//!
//! Nothing here reads a clock, a socket or a file.

pub mod grants;
pub mod key;
pub mod pattern;
pub mod principal;
pub mod rate;
pub mod role;

pub use grants::{Grants, check_name};
pub use key::{Key, KeyHash, KeyId, MalformedKey};
pub use pattern::Pattern;
pub use principal::Principal;
pub use rate::{Pace, Rate, Rates};
pub use role::{Permission, Role};
