//! Small text files of the kernel: one value, a choice in brackets, or `Name: value` lines.
//!
//! A missing file is a valid result (an older kernel, another build), not an error. Source:
//! proc(5), sysfs(5).

use std::path::Path;

/// The file's text without trailing white space, or `None` if it cannot be read.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut text = std::fs::read_to_string(path).ok()?;
    text.truncate(text.trim_end().len());
    Some(text)
}

/// The file's number, or `None` if it has none.
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// The selected word of a file such as `always [madvise] never`.
pub(crate) fn choice(path: impl AsRef<Path>) -> Option<String> {
    chosen(&text(path)?).map(str::to_owned)
}

/// The word in brackets, or the whole text if it has none.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    match text.split_once('[') {
        None => Some(text.trim()).filter(|word| !word.is_empty()),
        Some((_, rest)) => rest.split_once(']').map(|(word, _)| word),
    }
}

/// The value of a `Name: value` line with this name.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The bytes of a `Name: 123 kB` line.
pub(crate) fn field_bytes(text: &str, name: &str) -> Option<u64> {
    kilobytes(field(text, name)?)
}

/// `123 kB` in bytes.
pub(crate) fn kilobytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("12\n"), Some("12"));
        assert_eq!(chosen("always [madv"), None);
        assert_eq!(chosen(" \n"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotal:       24 kB\nMem:  7\nHugePages_Total:       3\n";
        assert_eq!(field(text, "Mem"), Some("7"));
        assert_eq!(field_bytes(text, "MemTotal"), Some(24 << 10));
        assert_eq!(field_bytes(text, "HugePages_Total"), None);
        assert_eq!(field(text, "Nothing"), None);
    }
}
