//! Command lines for a POSIX shell, and text without control characters.

/// `words` joined so that a shell splits them into the same words. Words with control characters
/// use bash's `$'…'` form, so that no escape sequence reaches the terminal.
pub fn join<S: AsRef<str>>(words: &[S]) -> String {
    words.iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// One word, quoted where a shell would interpret it.
pub fn quote(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "@%+=:,./_-".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else if word.chars().any(char::is_control) {
        format!("$'{}'", word.chars().map(escape_ansi_c).collect::<String>())
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// `text` with each control character except the line end shown as `\x1b`: text of a measured
/// program may contain any.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            '\n' => "\n".to_owned(),
            letter if letter.is_control() => escape_ansi_c(letter),
            letter => letter.to_string(),
        })
        .collect()
}

fn escape_ansi_c(letter: char) -> String {
    match letter {
        '\n' => r"\n".to_owned(),
        '\t' => r"\t".to_owned(),
        '\\' => r"\\".to_owned(),
        '\'' => r"\'".to_owned(),
        // Two digits at most follow \x, and a control character above ASCII has more than one byte.
        letter if letter.is_ascii_control() => format!(r"\x{:02x}", u32::from(letter)),
        letter if letter.is_control() => format!(r"\u{:04x}", u32::from(letter)),
        letter => letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn words_are_quoted_only_where_needed() {
        assert_eq!(join(&["gups", "2G", "--seed=1"]), "gups 2G --seed=1");
        assert_eq!(join(&["sh", "-c", "echo \"$HOME\" it's"]), r#"sh -c 'echo "$HOME" it'\''s'"#);
        assert_eq!((quote(""), quote("~"), quote("a\x1b[2Jb")), ("''".into(), "'~'".into(), r"$'a\x1b[2Jb'".into()));
    }

    #[test]
    fn no_escape_sequence_reaches_a_terminal() {
        assert_eq!(printable("a\x1b[31mb\nc\u{9b}"), "a\\x1b[31mb\nc\\u009b");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_shell_reads_back_every_word(words in prop::collection::vec("[^\u{0}\u{80}-\u{10ffff}]{0,12}", 1..4)) {
            let Ok(output) = Command::new("bash").args(["-c", &format!("printf '%s\\0' {}", join(&words))]).output() else {
                println!("SKIP bash not installed");
                return Ok(());
            };
            let expected: String = words.iter().map(|word| format!("{word}\0")).collect();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        }
    }
}
