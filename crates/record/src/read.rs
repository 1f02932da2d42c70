//! Reads records back.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::vec;

use crate::record::Record;

/// A history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The folder or a file cannot be read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not a record.
    #[error("{}, line {line}: not a record", path.display())]
    Line {
        /// In which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// The records of every `*.jsonl` file in `dir` and the folders in it: file by file in the order
/// of their paths, each in the order in which it was written. Nothing is merged; sort by time
/// where that matters.
///
/// # Errors
/// When a folder cannot be read; the iterator yields what goes wrong later.
pub fn read_dir(dir: &Path) -> Result<Records, ReadError> {
    let mut files = Vec::new();
    find(dir, &mut files).map_err(|source| ReadError::Io {
        path: dir.to_owned(),
        source,
    })?;
    files.sort();
    Ok(Records {
        files: files.into_iter(),
        open: None,
    })
}

/// Adds the files of a folder. Links are not followed: they could lead round in a circle.
fn find(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "jsonl") {
            files.push(path);
        }
    }
    Ok(())
}

/// The records of a folder; see [`read_dir`]. After an error it goes on with what follows.
#[derive(Debug)]
pub struct Records {
    files: vec::IntoIter<PathBuf>,
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    reader: BufReader<File>,
    line: u64,
    text: String,
}

impl OpenFile {
    fn open(path: PathBuf) -> Result<Self, ReadError> {
        match File::open(&path) {
            Ok(file) => Ok(Self {
                path,
                reader: BufReader::new(file),
                line: 0,
                text: String::new(),
            }),
            Err(source) => Err(ReadError::Io { path, source }),
        }
    }

    fn next(&mut self) -> Option<Result<Record, ReadError>> {
        self.text.clear();
        match self.reader.read_line(&mut self.text) {
            Ok(0) => return None,
            Ok(_) => self.line += 1,
            Err(source) => {
                return Some(Err(ReadError::Io {
                    path: self.path.clone(),
                    source,
                }));
            }
        }
        match serde_json::from_str(&self.text) {
            Ok(record) => Some(Ok(record)),
            // A process that was killed leaves half a line; only the last line has no end.
            Err(_) if !self.text.ends_with('\n') => None,
            Err(source) => Some(Err(ReadError::Line {
                path: self.path.clone(),
                line: self.line,
                source,
            })),
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(file) = &mut self.open {
                match file.next() {
                    // Reading on after a failed read would fail for ever.
                    Some(Err(error @ ReadError::Io { .. })) => {
                        self.open = None;
                        return Some(Err(error));
                    }
                    Some(item) => return Some(item),
                    None => self.open = None,
                }
            }
            match OpenFile::open(self.files.next()?) {
                Ok(file) => self.open = Some(file),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LINE: &str = r#"{"kind":"start","execution_id":1,"attempt":1,"action_id":1,"t_ns":1}"#;

    #[test]
    fn files_are_read_in_order_and_half_a_last_line_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let second = LINE.replace("\"execution_id\":1", "\"execution_id\":2");
        fs::write(
            dir.path().join("b.jsonl"),
            format!("{second}\n{{\"kind\":\"sta"),
        )
        .unwrap();
        fs::write(dir.path().join("a.jsonl"), format!("{LINE}\n")).unwrap();
        fs::write(dir.path().join("c.txt"), "not ours").unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let third = LINE.replace("\"execution_id\":1", "\"execution_id\":3");
        fs::write(inner.join("a.jsonl"), format!("{third}\n")).unwrap();
        let ids: Vec<_> = read_dir(dir.path())
            .unwrap()
            .map(|record| match record.unwrap() {
                Record::Start { execution_id, .. } => execution_id.0,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [1, 2, 3]);
    }

    #[test]
    fn a_newer_kind_is_passed_on_as_unknown() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("a.jsonl"),
            "{\"kind\":\"from_the_future\",\"seq\":4}\n",
        )
        .unwrap();
        let records: Vec<_> = read_dir(dir.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(records, [Record::Unknown]);
    }

    #[test]
    fn a_broken_line_is_named_and_the_rest_still_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("a.jsonl"),
            format!("{LINE}\nbroken\n{LINE}\n"),
        )
        .unwrap();
        let records: Vec<_> = read_dir(dir.path()).unwrap().collect();
        assert!(records[0].is_ok() && records[2].is_ok() && records.len() == 3);
        let message = records[1].as_ref().unwrap_err().to_string();
        assert!(
            message.ends_with("a.jsonl, line 2: not a record"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        assert!(matches!(
            read_dir(Path::new("/nowhere/at/all")),
            Err(ReadError::Io { .. })
        ));
    }
}
