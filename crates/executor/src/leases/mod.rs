//! Who owns which partition.

mod shares;

pub use shares::shares;
pub(crate) use shares::{Held, Standing, mix, plan};
