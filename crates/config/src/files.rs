//! Reads files with settings, and with secrets.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use attune_core::nesting::check_nesting;
use attune_core::private;
use config::{File, FileFormat, Source as _};
use serde_json::Value;

use crate::problem::LoadError;
use crate::walk::walk;

/// How large a settings file may be, in bytes: a hundred times one with every key and its
/// explanation.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// How large a file with secrets may be, in bytes.
const MAX_SECRET_BYTES: u64 = 16 * 1024;

const NO_TEXT: &str = "it is not UTF-8";

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
/// Words, when it cannot be read, is no regular file, has more than 16 KiB, or other accounts may use it
/// ([`attune_core::private`]).
pub fn read_private_file(path: &Path) -> Result<String, String> {
    let text = read_private_bytes(path, MAX_SECRET_BYTES)?;
    String::from_utf8(text).map_err(|_| NO_TEXT.to_owned())
}

/// The same, of a file of at most so many bytes that need be no text.
///
/// # Errors
/// As [`read_private_file`].
pub fn read_private_bytes(path: &Path, max_bytes: u64) -> Result<Vec<u8>, String> {
    let (text, mode) = read_whole(path, max_bytes).map_err(|error| error.to_string())?;
    match open_to_others(path, mode) {
        None => Ok(text),
        Some(words) => Err(words),
    }
}

/// What is in a file of at most so many bytes.
///
/// # Errors
/// Words, when it cannot be read, is no regular file, or has more bytes.
pub fn read_file_bytes(path: &Path, max_bytes: u64) -> Result<Vec<u8>, String> {
    let (text, _) = read_whole(path, max_bytes).map_err(|error| error.to_string())?;
    Ok(text)
}

/// What is wrong with a file that other accounts may use although it holds something secret.
pub(crate) fn told_to_others(path: &Path) -> Option<String> {
    let seen = std::fs::metadata(path).ok()?;
    open_to_others(path, seen.permissions().mode())
}

fn open_to_others(path: &Path, mode: u32) -> Option<String> {
    let place = std::fs::canonicalize(path).unwrap_or_default();
    let mounts = || std::fs::read_to_string(private::MOUNTS).unwrap_or_default();
    private::is_open_to_others(&place, mode, mounts).then(|| private::open_to_others(path, mode))
}

/// Editors of some systems begin a file with a mark of the order of its bytes.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Reads a file and its mode: a device or a pipe may have no end.
fn read_whole(path: &Path, max_bytes: u64) -> std::io::Result<(Vec<u8>, u32)> {
    let refused = |problem: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, problem);
    // Asked before it is opened: opening a pipe waits for who writes.
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused("it is no regular file".to_owned()));
    }
    let file = std::fs::File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut text = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut text)?;
    if text.len() as u64 > max_bytes {
        return Err(refused(format!("it has more than {max_bytes} bytes")));
    }
    Ok((text, mode))
}

/// Reads a YAML file as a tree.
pub(crate) fn read_file(path: &Path) -> Result<Value, LoadError> {
    let read = read_whole(path, MAX_FILE_BYTES).and_then(|(text, _)| {
        let invalid = std::io::ErrorKind::InvalidData;
        String::from_utf8(text).map_err(|_| std::io::Error::new(invalid, NO_TEXT))
    });
    let text = read.map_err(|source| LoadError::Unreadable {
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
    walk(text).map_err(syntax)?;
    // `collect`, not `Config::builder`: the latter takes a key with dots for a path.
    let keys = File::from_str(text, FileFormat::Yaml)
        .collect()
        .map_err(|error| syntax(error.to_string()))?;
    config::Value::from(keys)
        .try_deserialize()
        .map_err(|error| syntax(error.to_string()))
}
