//! Words in lines of a limited width.

use crate::shell::printable;

/// `text` without control characters and line ends.
pub(super) fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// Characters, which are taken for columns of the terminal.
pub(super) fn letters(text: &str) -> usize {
    text.chars().count()
}

/// Lines of at most `width` characters, broken between words, and within a word only if it is
/// longer than a line. At least one.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').flat_map(|word| pieces(word, width)) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = word,
            Some(line) if letters(line) + 1 + letters(&word) <= width => *line += &format!(" {word}"),
            _ => lines.push(word),
        }
    }
    lines
}

fn pieces(word: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(width.max(1)).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_whole_where_a_line_has_room() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
