//! Reading what somebody names on the command line: a device or a pipe may have no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How large a file of actions, or of parameters, may be, in bytes.
const MOST: u64 = 16 * 1024 * 1024;
/// And one of submissions: some millions of lines.
const MOST_OF_LINES: u64 = 1024 * 1024 * 1024;

/// The text of a file.
///
/// # Errors
/// When it cannot be read, is no UTF-8, or is too large.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    read(File::open(path)?)
}

/// The text of a stream, as [`read_file`].
pub(crate) fn read(from: impl Read) -> io::Result<String> {
    String::from_utf8(read_up_to(from, MOST)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text (UTF-8)"))
}

/// The bytes of a stream of submissions.
///
/// # Errors
/// When it cannot be read, or is too large.
pub(crate) fn read_lines(from: impl Read) -> io::Result<Vec<u8>> {
    read_up_to(from, MOST_OF_LINES)
}

fn read_up_to(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let words = format!("it has more than {most} bytes, which is too much to read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused() {
        let error = read(io::repeat(b' ')).unwrap_err();
        assert!(error.to_string().contains("16777216"), "{error}");
        assert_eq!(read("ä".as_bytes()).unwrap(), "ä");
        assert!(read(&[0xff][..]).is_err());
    }
}
