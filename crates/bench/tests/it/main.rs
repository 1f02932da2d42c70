//! The load generator against an owner that is a few lines long.

#![expect(
    clippy::unwrap_used,
    reason = "a helper's panic fails its test, as it should"
)]

mod load;
