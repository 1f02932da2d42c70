//! What stands before every HTTP listener of a daemon: who is served, bounds on connections and on
//! time, and no answers for foreign pages where nobody is asked who they are.

mod connections;
mod conversation;
mod door;
mod origin;
mod served;
mod tls;

pub use door::{Beyond, Bounds, Door};
pub use origin::refuse_foreign;
pub use served::{Client, Served};
pub use tls::{Tls, TlsError, TlsFiles, certificate_left};
