//! The keys of a cluster.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// The longest id of a key, in bytes.
const MAX_ID: usize = 32;
/// The most keys that a file may have.
const MAX_KEYS: usize = 64;
const KEY_BYTES: usize = 32;
/// Two keys that somebody gave one id are taken for each other once in four thousand millions.
const CHECK_BYTES: usize = 4;

/// Keys by which secrets are sealed and opened. The first one seals. Without any, what is secret is marked and
/// not encrypted.
#[derive(Clone, Default)]
pub struct Keyring {
    keys: Arc<[Key]>,
}

pub(crate) struct Key {
    pub(crate) id: String,
    /// What follows from its bytes and tells nothing of them, to know another key of the same id.
    check: String,
    sealing: LessSafeKey,
    naming: hmac::Key,
}

/// What is wrong with a file of keys. It never quotes one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyFileError {
    /// There is none in it.
    #[error("it has no key; `attune secrets new-key` prints one")]
    Empty,
    /// A line is none.
    #[error(
        "line {0} is no key; write KEYID:BASE64 as `attune secrets new-key` prints it, 32 bytes in base 64 after \
         an id of letters, digits, `_` and `-`"
    )]
    Line(usize),
    /// Two lines have the same id.
    #[error("line {0} has the id of an earlier one; give each key an id of its own")]
    Twice(usize),
    /// There are too many.
    #[error("it has more than {MAX_KEYS} keys; remove those with which nothing is sealed any more")]
    Many,
}

impl Keyring {
    /// Reads the text of a file: a line for each key, the one that seals first. Empty lines and those that begin
    /// with `#` are passed over.
    ///
    /// # Errors
    /// Which line is wrong.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: Vec<Key> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let key = Key::parse(line).ok_or(KeyFileError::Line(number))?;
            if keys.iter().any(|known| known.id == key.id) {
                return Err(KeyFileError::Twice(number));
            }
            if keys.len() == MAX_KEYS {
                return Err(KeyFileError::Many);
            }
            keys.push(key);
        }
        match keys.is_empty() {
            true => Err(KeyFileError::Empty),
            false => Ok(Self { keys: keys.into() }),
        }
    }

    /// Whether it has a key of this id.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.find(id).is_ok()
    }

    /// The key that seals.
    pub(crate) fn first(&self) -> Option<&Key> {
        self.keys.first()
    }

    /// The key with which something was sealed, by what stands there for it: [`Key::name`], or the id alone.
    pub(crate) fn find(&self, name: &str) -> Result<&Key, NotHere> {
        let (id, check) = match name.split_once('.') {
            Some((id, check)) => (id, Some(check)),
            None => (name, None),
        };
        let key = self.keys.iter().find(|key| key.id == id);
        let key = key.ok_or(NotHere::Unknown)?;
        match check {
            Some(check) if key.check != check => Err(NotHere::OtherBytes),
            _ => Ok(key),
        }
    }
}

/// Why something cannot be opened here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotHere {
    /// No key has the id.
    Unknown,
    /// The key of this id is another one.
    OtherBytes,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|key| &key.id))
            .finish()
    }
}

impl Key {
    fn parse(line: &str) -> Option<Self> {
        let (id, key) = line.split_once(':')?;
        if !is_key_id(id) {
            return None;
        }
        let key = STANDARD.decode(key.trim()).ok()?;
        Self::new(id, &key)
    }

    fn new(id: &str, key: &[u8]) -> Option<Self> {
        if key.len() != KEY_BYTES {
            return None;
        }
        // One key for each use, lest one says something of the other.
        let root = hmac::Key::new(hmac::HMAC_SHA256, key);
        let sealing = hmac::sign(&root, b"attune secrets v1: encryption");
        let naming = hmac::sign(&root, b"attune secrets v1: nonces");
        let check = hmac::sign(&root, b"attune secrets v1: check");
        Some(Self {
            id: id.to_owned(),
            check: URL_SAFE_NO_PAD.encode(&check.as_ref()[..CHECK_BYTES]),
            sealing: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, sealing.as_ref()).ok()?),
            naming: hmac::Key::new(hmac::HMAC_SHA256, naming.as_ref()),
        })
    }

    /// What stands beside that which is sealed with it: its id, and what tells it from another key of this id.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.id, self.check)
    }

    /// The nonce and what was encrypted, for this use alone. The nonce follows from what is sealed and for what:
    /// the same gives the same, and two different ones share a nonce as rarely as their hashes share 96 bits.
    pub(crate) fn seal(&self, purpose: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        let mut named = hmac::Context::with_key(&self.naming);
        named.update(&(purpose.len() as u64).to_be_bytes());
        named.update(purpose);
        named.update(plain);
        let tag = named.sign();
        let nonce: [u8; NONCE_LEN] = tag.as_ref()[..NONCE_LEN].try_into().ok()?;
        let mut sealed = plain.to_vec();
        let used = Nonce::assume_unique_for_key(nonce);
        self.sealing
            .seal_in_place_append_tag(used, Aad::from(purpose), &mut sealed)
            .ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    /// What [`seal`](Self::seal) has sealed; nothing when it was not, or for another use.
    pub(crate) fn open(&self, purpose: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let plain = self
            .sealing
            .open_in_place(nonce, Aad::from(purpose), &mut sealed);
        Some(plain.ok()?.to_vec())
    }
}

/// Whether a text can be the id of a key.
#[must_use]
pub fn is_key_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// A new key as a line of a file.
///
/// # Errors
/// Words, when `id` is none or the system gives no random numbers.
pub fn new_key(id: &str) -> Result<String, String> {
    if !is_key_id(id) {
        return Err(format!(
            "an id of a key has letters, digits, `_` and `-`, at most {MAX_ID}"
        ));
    }
    let mut key = [0; KEY_BYTES];
    SystemRandom::new()
        .fill(&mut key)
        .map_err(|_| "the system gives no random numbers".to_owned())?;
    Ok(format!("{id}:{}", STANDARD.encode(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_key_in_each_line() {
        let one = new_key("k1").unwrap();
        let two = new_key("k2").unwrap();
        let keys = Keyring::parse(&format!("# old ones last\n{two}\n\n {one} \n")).unwrap();
        assert_eq!(keys.first().unwrap().id, "k2");
        assert!(keys.find("k1").is_ok());
        assert_eq!(keys.find("k3").err(), Some(NotHere::Unknown));
        let name = keys.first().unwrap().name();
        assert!(keys.find(&name).is_ok());
        let other = Keyring::parse(&new_key("k2").unwrap()).unwrap();
        assert_eq!(other.find(&name).err(), Some(NotHere::OtherBytes));
        assert_eq!(format!("{keys:?}"), r#"["k2", "k1"]"#);
        for (text, error) in [
            (String::new(), KeyFileError::Empty),
            (format!("{one}\n{one}"), KeyFileError::Twice(2)),
            (
                format!("\nx{}", &one[2..one.len() - 4]),
                KeyFileError::Line(2),
            ),
            (one[3..].to_owned(), KeyFileError::Line(1)),
            (format!("a b{}", &one[2..]), KeyFileError::Line(1)),
        ] {
            assert_eq!(Keyring::parse(&text).unwrap_err(), error);
        }
        assert!(new_key("a:b").is_err());
    }

    #[test]
    fn what_was_sealed_for_one_use_opens_for_no_other() {
        let keys = Keyring::parse(&new_key("a").unwrap()).unwrap();
        let key = keys.first().unwrap();
        let sealed = key.seal(b"use", b"plain").unwrap();
        assert_eq!(sealed, key.seal(b"use", b"plain").unwrap());
        assert_ne!(sealed, key.seal(b"us", b"eplain").unwrap());
        assert_eq!(key.open(b"use", &sealed).as_deref(), Some(&b"plain"[..]));
        assert_eq!(key.open(b"other", &sealed), None);
        let mut other = sealed.clone();
        other[13] ^= 1;
        assert_eq!(key.open(b"use", &other), None);
        assert_eq!(key.open(b"use", b"short"), None);
    }
}
