//! Reads files that hold something secret.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use attune_core::private;

/// What is in a file of at most so many bytes, and its mode.
pub(super) fn read_whole(file: &Path, max_bytes: u64) -> Result<(Vec<u8>, u32), String> {
    // A pipe is welcome: shells hand over by one what another program prints.
    let failed = |error: std::io::Error| error.to_string();
    let opened = File::open(file).map_err(failed)?;
    let mode = opened.metadata().map_err(failed)?.permissions().mode();
    let mut text = Vec::new();
    let read = opened.take(max_bytes + 1).read_to_end(&mut text);
    read.map_err(failed)?;
    match text.len() as u64 > max_bytes {
        true => Err(format!("it has more than {max_bytes} bytes")),
        false => Ok((text, mode)),
    }
}

/// The same, where other accounts may not use the file.
pub(super) fn read_private(file: &Path, max_bytes: u64) -> Result<Vec<u8>, String> {
    let (text, mode) = read_whole(file, max_bytes)?;
    let place = std::fs::canonicalize(file).unwrap_or_default();
    let mounts = || std::fs::read_to_string(private::MOUNTS).unwrap_or_default();
    match private::is_open_to_others(&place, mode, mounts) {
        true => Err(private::open_to_others(file, mode)),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use attune_identity::Key;

    use super::super::{Failure, key_of};
    use super::*;

    const KEY: &str = "atk_777777777777_CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk2TCWWc";

    #[test]
    fn a_file_that_other_accounts_may_use_is_refused() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "0123").unwrap();
        let with = |mode: u32| {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            read_private(&file, 4)
        };
        assert_eq!(with(0o640).unwrap(), b"0123");
        for mode in [0o644, 0o602] {
            let words = with(mode).unwrap_err();
            assert!(words.contains(&format!("mode {mode:o}")), "{words}");
        }
        let large = read_whole(&file, 3).unwrap_err();
        assert!(large.contains("more than 3 bytes"), "{large}");
    }

    #[test]
    fn of_two_variables_with_a_key_none_is_taken_and_an_option_goes_before_both() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (file, other) = (folder.path().join("key"), folder.path().join("other"));
        for path in [&file, &other] {
            std::fs::write(path, format!("{KEY}\n")).unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        let named = Some(other.as_os_str());
        let text = || Some("atk_wrong".to_owned());
        let id = |given: Result<Option<Key>, Failure>| given.unwrap().unwrap().id().to_string();
        // By the option, by the variable for a file, by the one for the key.
        for given in [
            key_of(Some(&file), named, text()),
            key_of(Some(&file), None, text()),
            key_of(Some(&other), named, None),
            key_of(None, None, Some(KEY.to_owned())),
        ] {
            assert_eq!(id(given), "777777777777");
        }
        assert!(key_of(None, None, None).unwrap().is_none());
        let refused = key_of(Some(&other), named, text()).unwrap_err();
        let words = "ATTUNE_KEY and ATTUNE_KEY_FILE are both set";
        assert!(refused.message.starts_with(words), "{refused:?}");
    }
}
