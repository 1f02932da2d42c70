//! How deep lists and objects of a YAML text stand in each other, found before it is parsed.

/// So many brackets may be open at once.
pub const MAX_NESTING: usize = 4_096;

/// Checks that a YAML text can be parsed in good time: the parser looks at every collection that is open for every
/// token, and refuses what is too deep for it only when it has read all of it.
///
/// Brackets are counted wherever they stand, in quotes and comments too, so the bound is far above what anybody
/// writes.
///
/// # Errors
/// Words that name the bound and the line.
pub fn check_nesting(text: &str) -> Result<(), String> {
    let (mut depth, mut line) = (0_usize, 1);
    for byte in text.bytes() {
        match byte {
            b'\n' => line += 1,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(format!(
                "more than {MAX_NESTING} brackets are open at line {line}; {MAX_NESTING} are allowed"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_too_deep_is_refused_with_its_line() {
        let open = "{a: ".repeat(MAX_NESTING);
        assert_eq!(check_nesting(&format!("b: 1\na: {open}")), Ok(()));
        let words = check_nesting(&format!("b: 1\na: [{open}")).unwrap_err();
        assert!(
            words.contains("4096 brackets are open at line 2;"),
            "{words}"
        );
        let closed = "[]".repeat(2 * MAX_NESTING);
        assert_eq!(check_nesting(&closed), Ok(()));
    }
}
