//! Whether a server asks who somebody is.

/// Whether clients must say by a key who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Whoever reaches the server may do everything; so nobody beyond this machine may reach it.
    Off,
    /// Every request names a key, which says who asks and what they may do.
    Required,
}
