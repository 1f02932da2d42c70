//! Who owns which partition.

mod shares;

pub use shares::shares;
pub(crate) use shares::{Held, SeenLease, Standing, is_over_after, mix, plan};
