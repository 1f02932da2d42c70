//! The words for a key that an object of a YAML text has twice.

use crate::foreign::cut;

/// How many bytes of a key are quoted, at most.
const QUOTED: usize = 100;

/// Where in a text a part of it begins, in bytes; nothing where it is no part of it, but a copy.
#[must_use]
pub fn offset_of(part: &str, text: &str) -> Option<usize> {
    let at = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    (at + part.len() <= text.len()).then_some(at)
}

/// Says which key is there twice, and in which lines of `text`, as far as it is known where the two stand, in bytes.
#[must_use]
pub fn there_twice(key: &str, text: &str, places: [Option<usize>; 2]) -> String {
    let line = |at: usize| text.as_bytes().get(..at).map(|before| 1 + newlines(before));
    let lines = match places.map(|at| at.and_then(line)) {
        [Some(one), Some(other)] if one == other => format!(", in line {one}"),
        [Some(one), Some(other)] => format!(", in lines {one} and {other}"),
        [None, Some(line)] => format!(", the second time in line {line}"),
        [Some(line), None] => format!(", the first time in line {line}"),
        [None, None] => String::new(),
    };
    format!(
        "`{}` is there twice{lines}: leave out one of the two",
        cut(key, QUOTED)
    )
}

fn newlines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_named_with_its_lines() {
        let text = "a: 1\nb: 2\na: 3\n";
        let at = |place: usize| offset_of(&text[place..=place], text);
        assert_eq!((at(0), at(10)), (Some(0), Some(10)));
        let copy = text[..1].to_owned();
        assert_eq!(offset_of(&copy, text), None);
        for (places, lines) in [
            ([at(0), at(10)], ", in lines 1 and 3"),
            ([at(0), at(1)], ", in line 1"),
            ([None, at(10)], ", the second time in line 3"),
            ([at(5), None], ", the first time in line 2"),
            ([None, None], ""),
            // Never beyond the text.
            ([None, Some(100)], ""),
        ] {
            let words = format!("`a` is there twice{lines}: leave out one of the two");
            assert_eq!(there_twice("a", text, places), words);
        }
        assert!(there_twice(&"k".repeat(1000), text, [None, None]).len() < 200);
    }
}
