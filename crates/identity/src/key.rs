//! Keys: `atk_<id>_<secret><checksum>`.
//!
//! - The prefix lets scanners of source code and logs find a key that was left there.
//! - The id is public: it stands in lists and in the audit log, and names the row to look at.
//! - The secret has 256 bits of entropy, so its SHA-256 can be stored as it is: nothing that is slow to
//!   compute would make it harder to guess.
//! - The checksum (CRC-32 of what is before it) tells a slip from a guess, before anybody asks the store.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What every key begins with.
pub const PREFIX: &str = "atk_";
/// Crockford's base 32, in lower case: no `i`, `l`, `o` and `u`, which are taken for others.
const ID_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_CHARS: usize = 12;
const SECRET_BYTES: usize = 32;
/// What base 64 without padding makes of that.
const SECRET_CHARS: usize = 43;
/// Enough for 32 bits in base 62.
const CHECK_CHARS: usize = 6;
const CHECK_ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Everything before the checksum.
const CHECKED_CHARS: usize = PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS;

/// The public part of a key, by which it is listed, audited and revoked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(String);

impl KeyId {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KeyId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = text.len() == ID_CHARS && text.bytes().all(|byte| ID_ALPHABET.contains(&byte));
        match fits {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "the id of a key has {ID_CHARS} digits and lower-case letters, without i, l, o and u, as \
                 `attune keys list` shows it"
            )),
        }
    }
}

impl TryFrom<String> for KeyId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.0
    }
}

/// What is stored of a secret: its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(***)")
    }
}

/// A text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedKey;

impl fmt::Display for MalformedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chars = CHECKED_CHARS + CHECK_CHARS;
        write!(
            f,
            "not a whole key: one begins with `{PREFIX}` and has {chars} characters"
        )
    }
}

impl std::error::Error for MalformedKey {}

/// A key with its secret. It is shown once, when it is made, and never printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    id: KeyId,
    secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

impl Key {
    /// A new key, from the system's source of randomness.
    ///
    /// # Errors
    /// When the system has none.
    pub fn fresh() -> Result<Self, std::io::Error> {
        let (mut id, mut secret) = ([0; ID_CHARS], [0; SECRET_BYTES]);
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut secret)?;
        Ok(Self::of(id, secret))
    }

    /// The key of these random bytes.
    fn of(id: [u8; ID_CHARS], secret: [u8; SECRET_BYTES]) -> Self {
        let digit = |byte: u8| char::from(ID_ALPHABET[usize::from(byte % 32)]);
        let id = KeyId(id.into_iter().map(digit).collect());
        Self { id, secret }
    }

    /// Its public part.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// What is to be stored of it.
    pub fn hash(&self) -> KeyHash {
        KeyHash(Sha256::digest(self.secret).into())
    }

    /// Whether its secret is the one of which this was stored; takes the same time whatever is different.
    pub fn fits(&self, stored: &KeyHash) -> bool {
        self.hash().0.ct_eq(&stored.0).into()
    }

    /// The whole key, secret included, as its owner gets it.
    pub fn expose(&self) -> String {
        let secret = URL_SAFE_NO_PAD.encode(self.secret);
        let checked = format!("{PREFIX}{}_{secret}", self.id);
        let check = checksum(&checked);
        checked + &check
    }
}

impl FromStr for Key {
    type Err = MalformedKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.is_ascii() || text.len() != CHECKED_CHARS + CHECK_CHARS {
            return Err(MalformedKey);
        }
        let (checked, check) = text.split_at(CHECKED_CHARS);
        let rest = checked.strip_prefix(PREFIX).ok_or(MalformedKey)?;
        let (id, rest) = rest.split_at(ID_CHARS);
        let secret = rest.strip_prefix('_').ok_or(MalformedKey)?;
        if checksum(checked) != check {
            return Err(MalformedKey);
        }
        let id = id.parse().map_err(|_| MalformedKey)?;
        let secret = URL_SAFE_NO_PAD.decode(secret).map_err(|_| MalformedKey)?;
        let secret = secret.try_into().map_err(|_| MalformedKey)?;
        Ok(Self { id, secret })
    }
}

/// The CRC-32 of a text, in base 62.
fn checksum(text: &str) -> String {
    let mut rest = u64::from(crc32fast::hash(text.as_bytes()));
    let mut digits = [b'0'; CHECK_CHARS];
    for digit in digits.iter_mut().rev() {
        let at = usize::try_from(rest % 62).unwrap_or_default();
        *digit = CHECK_ALPHABET[at];
        rest /= 62;
    }
    digits.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_has_this_form_for_ever() {
        let key = Key::of([7; ID_CHARS], [9; SECRET_BYTES]);
        let text = "atk_777777777777_CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk2TCWWc";
        assert_eq!(key.expose(), text);
        assert_eq!(text.parse(), Ok(key.clone()));
        assert_eq!(
            format!("{key:?} {:?}", key.hash()),
            "Key(777777777777) KeyHash(***)"
        );
    }

    #[test]
    fn two_keys_are_never_the_same() {
        let (one, other) = (Key::fresh().unwrap(), Key::fresh().unwrap());
        assert_ne!(one.id(), other.id());
        assert!(one.fits(&one.hash()) && !one.fits(&other.hash()));
    }

    proptest! {
        /// A slip of one character is never taken for a key.
        #[test]
        fn a_slip_is_seen(id: [u8; ID_CHARS], secret: [u8; SECRET_BYTES], at in 0..66_usize, letter in "[ -~]") {
            let key = Key::of(id, secret);
            let mut text = key.expose();
            prop_assert_eq!(text.parse::<Key>(), Ok(key.clone()));
            text.replace_range(at..=at, &letter);
            let read = text.parse::<Key>();
            prop_assert!(text == key.expose() || read == Err(MalformedKey));
        }

        #[test]
        fn what_is_no_key_is_refused(text in ".{0,80}") {
            prop_assert_eq!(text.parse::<Key>(), Err(MalformedKey));
        }
    }
}
