//! What stands before every HTTP listener of a daemon: bounds on connections and on time, and no
//! answers for foreign pages.

mod connections;
mod door;
mod origin;

pub use door::{Beyond, Bounds, Door};
pub use origin::refuse_foreign;
