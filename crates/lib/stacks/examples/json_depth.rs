//! Checks a JSON document of any nesting depth by recursive descent, and prints the number of its
//! values, its depth, and the memory that the stack held at the deepest value.
//!
//! `cargo run --release -p fieldstone-stacks --example json_depth [-- FILE]`
//!
//! Without FILE the document is a million nested arrays, on which most recursive parsers overflow
//! their stack or stop at a fixed limit.

use std::process::ExitCode;

use fieldstone_stacks::{grow, held_bytes};

/// The position and the results of a recursive descent.
#[derive(Default)]
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
    values: usize,
    max_depth: usize,
    max_stack_bytes: usize,
}

/// The byte offset of an error, and what the parser expected there.
type ParseResult = Result<(), (usize, &'static str)>;

impl<'a> Parser<'a> {
    /// Parses one value and the white space after it. Each level may switch to another segment.
    fn value(&mut self) -> ParseResult {
        grow(|| {
            self.skip_space();
            self.values += 1;
            match self.peek() {
                Some(b'{') => self.list(b'}', |parser| {
                    parser.skip_space();
                    parser.string()?;
                    parser.skip_space();
                    parser.expect(b':', "a colon")?;
                    parser.value()
                }),
                Some(b'[') => self.list(b']', Self::value),
                Some(b'"') => self.string(),
                _ => self.word(),
            }?;
            self.skip_space();
            Ok(())
        })
    }

    /// Parses an opening bracket, items separated by commas, and `close`.
    fn list(&mut self, close: u8, item: impl Fn(&mut Self) -> ParseResult) -> ParseResult {
        self.at += 1;
        self.depth += 1;
        if self.depth > self.max_depth {
            self.max_depth = self.depth;
            self.max_stack_bytes = self.max_stack_bytes.max(held_bytes());
        }
        self.skip_space();
        if self.peek() != Some(close) {
            item(self)?;
            while self.peek() == Some(b',') {
                self.at += 1;
                item(self)?;
            }
        }
        self.depth -= 1;
        self.expect(close, "a comma or a closing bracket")
    }

    fn string(&mut self) -> ParseResult {
        self.expect(b'"', "a string")?;
        while let Some(byte) = self.peek() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return Ok(());
            }
        }
        Err((self.at, "the end of the string"))
    }

    /// Parses a number, `true`, `false` or `null`.
    fn word(&mut self) -> ParseResult {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| b",]} \t\r\n".contains(byte)).unwrap_or(rest.len());
        let word = str::from_utf8(&rest[..end]).unwrap_or_default();
        if !matches!(word, "true" | "false" | "null") && word.parse::<f64>().is_err() {
            return Err((self.at, "a value"));
        }
        self.at += end;
        Ok(())
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> ParseResult {
        if self.peek() != Some(byte) {
            return Err((self.at, what));
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Parses a whole document.
    fn parse(text: &'a [u8]) -> Result<Self, (usize, &'static str)> {
        let mut parser = Self { text, ..Self::default() };
        parser.value()?;
        if parser.at < text.len() { Err((parser.at, "the end of the document")) } else { Ok(parser) }
    }
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

fn main() -> ExitCode {
    let text = match std::env::args_os().nth(1).map(std::fs::read) {
        None => nested(1_000_000).into_bytes(),
        Some(Ok(text)) => text,
        Some(Err(error)) => {
            eprintln!("json_depth: cannot read the file: {error}");
            return ExitCode::from(2);
        }
    };
    match Parser::parse(&text) {
        Ok(parser) => {
            let kib = parser.max_stack_bytes / 1024;
            println!("{} values, {} levels, {kib} KiB of stack", parser.values, parser.max_depth);
            ExitCode::SUCCESS
        }
        Err((at, what)) => {
            eprintln!("json_depth: byte {at}: expected {what}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_documents_need_no_large_stack() {
        let counts = Parser::parse(nested(200_000).as_bytes()).map(|parser| (parser.values, parser.max_depth));
        assert_eq!(counts, Ok((200_000, 200_000)));
    }

    #[test]
    fn values_are_counted_and_errors_located() {
        let text = br#" {"a": [1, -2.5e3, "x\"y"], "b": {}, "c": null} "#;
        assert_eq!(Parser::parse(text).map(|parser| (parser.values, parser.max_depth)), Ok((7, 2)));
        for (text, at) in [("", 0), ("[1,]", 3), ("[1 2]", 3), ("{\"a\" 1}", 5), ("\"a", 2), ("[] []", 3)] {
            assert_eq!(Parser::parse(text.as_bytes()).map(|_| ()).map_err(|(at, _)| at), Err(at), "{text}");
        }
    }
}
