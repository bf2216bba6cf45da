//! Parses sizes: `4096`, `64K`, `512M`, `2G`, also `2GiB`. K, M, G, T are powers of 1024.

use crate::Error;

/// The bytes of `text`; usable as a clap value parser.
///
/// # Errors
/// [`Error::Size`] unless `text` is a whole number with one of the suffixes, of at most
/// `usize::MAX` bytes.
pub fn parse(text: &str) -> Result<usize, Error> {
    let wrong = |reason| Error::Size { text: text.to_owned(), reason };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(wrong("it does not start with a number"));
    }
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong("its suffix is unknown")),
    };
    let number: usize = number.parse().map_err(|_| wrong("the number is too big"))?;
    number.checked_mul(1 << shift).ok_or_else(|| wrong("the number is too big"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 1 << 16), ("512m", 1 << 29), ("2GiB", 1 << 31), ("1T", 1 << 40)]
        {
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "G", "-1", "1.5G", "12Q", "64 K", "99999999999999999999", "18446744073709551615K"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
