//! Reads files with settings, and with secrets.

use std::cell::Cell;
use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use attune_core::nesting::check_nesting;
use config::{File, FileFormat, Source as _};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess as _, Visitor,
};
use serde_json::Value;

use crate::problem::LoadError;

/// How large a settings file may be, in bytes: a hundred times one with every key and its
/// explanation.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// How large a file with secrets may be, in bytes.
const MAX_SECRET_BYTES: u64 = 16 * 1024;

/// Reads what a file holds besides the end of its last line. What surrounds a value by mistake is named,
/// since the value itself is never shown.
pub(crate) fn read_secret(path: &Path) -> Result<String, String> {
    let text = read_private_file(path)?;
    let text = without_mark(&text).trim_end();
    let wrong = if text.is_empty() {
        "the file is empty"
    } else if text.starts_with(char::is_whitespace) {
        "what is in the file begins with white space"
    } else if text.starts_with(['"', '\'', '`']) {
        "what is in the file is in quotes: leave them out"
    } else {
        return Ok(text.to_owned());
    };
    Err(wrong.to_owned())
}

/// Reads a file that holds something secret.
///
/// # Errors
/// Words, when it cannot be read, is no regular file, has more than 16 KiB, or everybody on this machine can read it.
pub fn read_private_file(path: &Path) -> Result<String, String> {
    let text = read_text(path, MAX_SECRET_BYTES).map_err(|error| error.to_string())?;
    match is_open_to_all(path) {
        true => Err(OPEN_TO_ALL.to_owned()),
        false => Ok(text),
    }
}

/// What is wrong with a file that everybody can read, and the way out.
pub(crate) const OPEN_TO_ALL: &str = "everybody on this machine can read the file, which holds a secret: take \
     that away (chmod o-r)";

/// Whether every account of this machine can read a file, as far as its own mode says. Not one on a file
/// system in memory, or where containers have their secrets: who mounts it there for one container or
/// service gives it modes that say nothing.
pub(crate) fn is_open_to_all(path: &Path) -> bool {
    let is_open = std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o004 != 0);
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    is_open && !is_mounted_alone(&std::fs::canonicalize(path).unwrap_or_default(), &mounts())
}

fn is_mounted_alone(path: &Path, mounts: &str) -> bool {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
        path.starts_with(point).then_some((point.len(), kind))
    });
    let in_memory = mounts
        .max_by_key(|(length, _)| *length)
        .is_some_and(|(_, kind)| matches!(kind, "tmpfs" | "ramfs"));
    in_memory || path.starts_with("/run/secrets")
}

/// Editors of some systems begin a file with a mark of the order of its bytes.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Reads the text of a file: a device or a pipe may have no end.
fn read_text(path: &Path, max_bytes: u64) -> std::io::Result<String> {
    let refused = |problem: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, problem);
    // Asked before it is opened: opening a pipe waits for who writes.
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused("it is no regular file".to_owned()));
    }
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(max_bytes + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > max_bytes {
        return Err(refused(format!(
            "it has more than {max_bytes} bytes, which no settings need"
        )));
    }
    Ok(text)
}

/// How many values and keys a settings file may have, with each alias replaced by what it stands
/// for.
const MAX_NODES: usize = 10_000;

/// Counts the values and keys of a YAML document without keeping them.
#[derive(Clone, Copy)]
struct Walk<'a>(&'a Cell<usize>);

impl Walk<'_> {
    fn count<E: serde::de::Error>(self) -> Result<(), E> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > MAX_NODES {
            return Err(E::custom(format_args!(
                "it has more than {MAX_NODES} values, each alias (`*name`) replaced by what it \
                 stands for"
            )));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.count()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.count()
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<(), E> {
        self.count()
    }

    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<(), E> {
        self.count()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.count()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.count()?;
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.count()?;
        while members.next_entry_seed(self, self)?.is_some() {}
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let (IgnoredAny, value) = tagged.variant()?;
        value.newtype_variant_seed(self)
    }
}

/// Reads a YAML file as a tree.
pub(crate) fn read_file(path: &Path) -> Result<Value, LoadError> {
    let text = read_text(path, MAX_FILE_BYTES).map_err(|source| LoadError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let text = without_mark(&text);
    let syntax = |message: String| LoadError::Syntax {
        path: path.to_owned(),
        message,
    };
    // A file of comments alone is one empty document to YAML, but no mistake.
    if text
        .lines()
        .all(|line| line.trim_start().starts_with('#') || line.trim().is_empty())
    {
        return Ok(Value::Null);
    }
    check_nesting(text).map_err(syntax)?;
    // The parser of `config` copies what an alias stands for each time, so that some hundred bytes
    // of nested aliases would fill all memory. This one follows them without keeping anything.
    let walked = Walk(&Cell::new(0)).deserialize(yaml_serde::Deserializer::from_str(text));
    walked.map_err(|error| syntax(error.to_string()))?;
    // `collect`, not `Config::builder`: the latter takes a key with dots for a path.
    let keys = File::from_str(text, FileFormat::Yaml)
        .collect()
        .map_err(|error| syntax(error.to_string()))?;
    config::Value::from(keys)
        .try_deserialize()
        .map_err(|error| syntax(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_for_one_container_is_its_own() {
        let mounts = "/dev/sda / ext4 rw 0 0\ntmpfs /etc/db tmpfs ro 0 0\n\
                      ramfs /run/credentials/attune.service ramfs ro 0 0\n";
        let alone = |path: &str| is_mounted_alone(Path::new(path), mounts);
        assert!(alone("/etc/db/url"));
        assert!(alone("/run/credentials/attune.service/database.url"));
        assert!(alone("/run/secrets/database_url"));
        assert!(!alone("/etc/attune/database.url"));
        assert!(!alone("/etc/dbx/url"));
    }
}
