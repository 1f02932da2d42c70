//! How deep lists and objects of a YAML text stand in each other, found before it is parsed.
//!
//! The parser of YAML looks at every collection that is open for every token, so that the time that `{a: {a: `
//! takes grows with the square of its length, and it refuses that only when it has read all of it. This goes
//! over a text once, as the parser's scanner does, and keeps nothing but what tells brackets from letters:
//! quotes, comments, and how deep the lines of a text are indented that may have any letters in it. What the
//! parser refuses anyway may be taken for something else here.

/// How many lists and objects in brackets may stand in each other: more than that no parser here reads.
pub const MAX_NESTING: usize = 128;

/// Checks that a YAML text can be parsed in a time that grows with its length alone.
///
/// # Errors
/// Words that name the bound and the line.
pub fn check_nesting(text: &str) -> Result<(), String> {
    let opened = |byte: &u8| matches!(byte, b'[' | b'{');
    if text.bytes().filter(opened).count() <= MAX_NESTING {
        return Ok(());
    }
    match Scanner::of(text).too_deep() {
        None => Ok(()),
        Some(line) => Err(format!(
            "lists and objects stand in each other more than {MAX_NESTING} deep at line {line}; {MAX_NESTING} \
             are allowed"
        )),
    }
}

/// Where a key may have begun that a `:` makes one.
#[derive(Clone, Copy)]
struct Key {
    line: usize,
    column: usize,
}

/// Goes over a text token by token.
struct Scanner<'t> {
    bytes: &'t [u8],
    at: usize,
    line: usize,
    column: usize,
    /// How many brackets are open.
    depth: usize,
    /// The columns of the lists and objects by indentation that are open.
    indents: Vec<usize>,
    key: Option<Key>,
    /// Whether what comes next may be a key.
    may_be_key: bool,
}

impl<'t> Scanner<'t> {
    fn of(text: &'t str) -> Self {
        Self {
            bytes: text.as_bytes(),
            at: 0,
            line: 1,
            column: 0,
            depth: 0,
            indents: Vec::new(),
            key: None,
            may_be_key: true,
        }
    }

    /// The line where more brackets are open than may be.
    fn too_deep(mut self) -> Option<usize> {
        loop {
            self.skip_space();
            let byte = self.peek(0)?;
            self.token(byte);
            if self.depth > MAX_NESTING {
                return Some(self.line);
            }
        }
    }

    fn token(&mut self, byte: u8) {
        if self.depth == 0 {
            while self.indents.last().is_some_and(|last| *last > self.column) {
                self.indents.pop();
            }
        }
        if self.at_document_mark() {
            (self.depth, self.key, self.may_be_key) = (0, None, false);
            self.indents.clear();
            return self.skip(3);
        }
        let is_alone = self.is_blank_or_end(1);
        match byte {
            b'%' if self.column == 0 => self.skip_line(),
            b'[' | b'{' => {
                self.begin();
                self.depth += 1;
                self.skip(1);
            }
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                self.may_be_key = false;
                self.skip(1);
            }
            b',' => self.skip(1),
            b'-' if is_alone => self.item(),
            b'?' if is_alone || self.depth > 0 => self.item(),
            b':' if is_alone || self.depth > 0 => self.value(),
            b'&' | b'*' => {
                self.begin();
                self.skip(1);
                self.skip_while(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            }
            b'!' => self.tag(),
            b'|' | b'>' if self.depth == 0 => self.block_text(),
            b'\'' => self.quoted(b'\''),
            b'"' => self.quoted(b'"'),
            _ => self.plain(),
        }
    }

    /// Something begins here that a `:` behind it makes a key.
    fn begin(&mut self) {
        if self.depth > 0 {
            return;
        }
        if self.may_be_key {
            self.key = Some(Key {
                line: self.line,
                column: self.column,
            });
        }
        self.may_be_key = false;
    }

    /// `-` of a list, and `?` of a key.
    fn item(&mut self) {
        if self.depth == 0 {
            self.indent(self.column);
            (self.key, self.may_be_key) = (None, true);
        }
        self.skip(1);
    }

    /// `:` before a value.
    fn value(&mut self) {
        if self.depth == 0 {
            let key = self.key.take().filter(|key| key.line == self.line);
            self.indent(key.map_or(self.column, |key| key.column));
            self.may_be_key = key.is_none();
        }
        self.skip(1);
    }

    /// A list or an object by indentation begins, unless this is one of its further members.
    fn indent(&mut self, column: usize) {
        if self.indents.last().is_none_or(|last| *last < column) {
            self.indents.push(column);
        }
    }

    /// From which column on a line belongs to what stands at the current indentation.
    fn inside(&self) -> usize {
        self.indents.last().map_or(0, |last| last + 1)
    }

    fn tag(&mut self) {
        self.begin();
        if self.peek(1) == Some(b'<') {
            self.skip_while(|byte| !matches!(byte, b'>' | b' ' | b'\t' | b'\r' | b'\n'));
        }
        self.skip_while(|byte| !matches!(byte, b',' | b' ' | b'\t' | b'\r' | b'\n'));
    }

    fn quoted(&mut self, quote: u8) {
        self.begin();
        self.skip(1);
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' if quote == b'"' => {
                    self.skip(1);
                    self.step();
                }
                b'\'' if quote == byte && self.peek(1) == Some(b'\'') => self.skip(2),
                _ if byte == quote => return self.skip(1),
                _ => self.step(),
            }
        }
    }

    /// A text without quotes, which goes on in lines that are indented more.
    fn plain(&mut self) {
        self.begin();
        let inside = self.inside();
        // Whatever stands here, it is not looked at again.
        self.step();
        loop {
            while self.peek(0).is_some() && !self.is_blank_or_end(0) && !self.ends_plain() {
                self.step();
            }
            let was_in = self.line;
            while self.peek(0).is_some() && self.is_blank_or_end(0) {
                self.step();
            }
            let is_outside = self.depth == 0 && self.column < inside;
            let is_over = self.peek(0).is_none_or(|byte| byte == b'#')
                || self.at_document_mark()
                || self.ends_plain();
            if is_outside || is_over {
                self.may_be_key |= self.line > was_in;
                return;
            }
        }
    }

    /// Whether a text without quotes is over here.
    fn ends_plain(&self) -> bool {
        match self.peek(0) {
            Some(b':') => self.is_blank_or_end(1) || (self.depth > 0 && self.is_bracket(1)),
            Some(_) => self.depth > 0 && self.is_bracket(0),
            None => true,
        }
    }

    fn is_bracket(&self, ahead: usize) -> bool {
        let byte = self.peek(ahead);
        matches!(byte, Some(b',' | b'[' | b']' | b'{' | b'}'))
    }

    /// A text after `|` or `>`: every line that is indented as the first one.
    fn block_text(&mut self) {
        (self.key, self.may_be_key) = (None, true);
        self.skip(1);
        let mut told = None;
        while let Some(byte @ (b'+' | b'-' | b'1'..=b'9')) = self.peek(0) {
            if byte.is_ascii_digit() {
                told = Some(self.indents.last().unwrap_or(&0) + usize::from(byte - b'0'));
            }
            self.skip(1);
        }
        self.skip_line();
        let mut widest = 0;
        while self.skip_indent(told, &mut widest) {}
        let indent = told.unwrap_or_else(|| widest.max(self.inside()).max(1));
        while self.column == indent && self.peek(0).is_some() {
            self.skip_line();
            while self.skip_indent(Some(indent), &mut widest) {}
        }
    }

    /// Goes to where the text of a line begins; over the whole of an empty line, which it says.
    fn skip_indent(&mut self, most: Option<usize>, widest: &mut usize) -> bool {
        while self.peek(0) == Some(b' ') && most.is_none_or(|most| self.column < most) {
            self.skip(1);
        }
        *widest = self.column.max(*widest);
        let is_empty = self.break_here() > 0;
        if is_empty {
            self.step();
        }
        is_empty
    }

    /// Goes over what stands between two tokens.
    fn skip_space(&mut self) {
        while let Some(byte) = self.peek(0) {
            let breaks = self.break_here() > 0;
            match byte {
                b'#' => {
                    while self.peek(0).is_some() && self.break_here() == 0 {
                        self.step();
                    }
                }
                _ if breaks => {
                    self.step();
                    self.may_be_key |= self.depth == 0;
                }
                b' ' | b'\t' => self.step(),
                _ => return,
            }
        }
    }

    /// Goes to the line after this one.
    fn skip_line(&mut self) {
        while self.peek(0).is_some() && self.break_here() == 0 {
            self.step();
        }
        self.step();
    }

    fn skip_while(&mut self, fits: impl Fn(u8) -> bool) {
        while self.peek(0).is_some_and(&fits) {
            self.step();
        }
    }

    /// Goes over so many characters of one byte, which are no ends of lines.
    fn skip(&mut self, count: usize) {
        self.at += count;
        self.column += count;
    }

    /// Goes over a character, or the end of a line.
    fn step(&mut self) {
        match self.break_here() {
            0 => {
                self.at += 1;
                // The bytes of a letter after its first are no columns.
                while self.peek(0).is_some_and(|byte| byte & 0xc0 == 0x80) {
                    self.at += 1;
                }
                self.column += 1;
            }
            length => {
                self.at += length;
                self.line += 1;
                self.column = 0;
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    /// How many bytes the end of a line has that stands here: YAML 1.1 knows some beside the usual.
    fn break_here(&self) -> usize {
        self.break_at(0)
    }

    fn break_at(&self, ahead: usize) -> usize {
        match self.bytes.get(self.at + ahead..).unwrap_or_default() {
            [b'\r', b'\n', ..] | [0xc2, 0x85, ..] => 2,
            [b'\r' | b'\n', ..] => 1,
            [0xe2, 0x80, 0xa8 | 0xa9, ..] => 3,
            _ => 0,
        }
    }

    fn is_blank_or_end(&self, ahead: usize) -> bool {
        let byte = self.peek(ahead);
        byte.is_none_or(|byte| matches!(byte, b' ' | b'\t')) || self.break_at(ahead) > 0
    }

    /// Whether a document begins or ends here.
    fn at_document_mark(&self) -> bool {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let marks = rest.starts_with(b"---") || rest.starts_with(b"...");
        self.column == 0 && marks && self.is_blank_or_end(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deep(open: &str) -> String {
        open.repeat(MAX_NESTING + 1)
    }

    #[test]
    fn what_is_nested_too_deep_is_refused_with_its_line() {
        for open in [
            "[",
            "{a: ",
            "{? ",
            "[[",
            "{\"a\":",
            "[a, \"]\", ",
            "[ # ]\n",
        ] {
            let words = check_nesting(&format!("b: 1\na: {}", deep(open))).unwrap_err();
            assert!(words.contains("more than 128 deep at line "), "{words}");
        }
        let words = check_nesting(&format!("b: 1\na: {}", deep("["))).unwrap_err();
        assert!(words.contains("at line 2;"), "{words}");
        let most = MAX_NESTING;
        let right = format!("a: {}{}", "[".repeat(most), "]".repeat(most));
        assert_eq!(check_nesting(&format!("{right}\n---\n{right}\n")), Ok(()));
    }

    /// What hides brackets from a reader that knows less of YAML.
    #[test]
    fn what_looks_like_text_and_is_none_is_found() {
        let deep = deep("{a: ");
        for before in [
            "a: don't\nb: ",
            "a: \"\\\"\"\nb: ",
            "a: 'it''s \"'\nb: ",
            "a: |\n  \"text\n\n   more '\nb: ",
            "- |2-\n   \"text\n- ",
            "- - |\n   \" text\n - ",
            "a: >\nb: ",
            "a: text\n  \"that goes on\nb: ",
            "text\n---\n",
            "# \"\u{85}a: ",
            "? \"a\"\n: ",
            "\"a\": ",
            "&x [1]: ",
            "!<tag:a,\"b> ",
            "!x 'a': ",
            "ä: |\n ö\"\nb: ",
            "a: [b, 'c', \"d\"] # \"\nb: ",
            "[a\"b, ",
            "a#\"b: ",
            "%TAG ! \"\n--- ",
        ] {
            assert!(
                check_nesting(&format!("{before}{deep}")).is_err(),
                "{before:?}"
            );
        }
    }

    #[test]
    fn brackets_in_texts_are_letters() {
        let deep = deep("{[");
        let line = format!("[[ -n \"$a\" {deep}");
        for text in [
            format!("a: \"{deep}\"\n"),
            format!("a: '{deep}'\n"),
            format!("a: x{deep}\n"),
            format!("a: text\n  {deep}\nb: 1\n"),
            format!("# {deep}\na: [1] # {deep}\n"),
            format!("a:\n  b: |\n    {line}\n\n     {line}\n    {line}\n  c: [1]\n"),
            format!("- >+\n {line}\n- |2\n   {line}\n  {line}\n"),
            format!("a: [\"{deep}\", '{deep}']\n"),
            "a: [{b: [1]}]\n".repeat(500),
            "[a, {b: c}]: [d]\n".repeat(500),
        ] {
            assert_eq!(check_nesting(&text), Ok(()), "{text}");
        }
    }

    #[test]
    fn long_texts_take_a_time_that_grows_with_their_length() {
        let started = std::time::Instant::now();
        // As many brackets as it takes to be looked at.
        let brackets = "- []\n".repeat(200);
        for text in [
            "{a: ", "[],", "- ", "a\n", "'", "\"\\", "|\n ", "? ", "# [", "a: [",
        ] {
            for before in [brackets.clone(), "[".repeat(128)] {
                let _ = check_nesting(&format!("{before}{}", text.repeat(500_000)));
            }
        }
        let stairs = (0..3_000).map(|n| format!("{}a:\n", " ".repeat(n)));
        let stairs: String = stairs.collect();
        let _ = check_nesting(&format!("{brackets}---\n{stairs}"));
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    }
}
