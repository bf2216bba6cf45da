//! Parses sizes on the command line: `64M`, `2G`, `1.5GiB`.

/// Parses a size and returns it in bytes; K, M, G and T are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_uppercase();
    let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text:?} is no size: give one like 64M or 2G")),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let too_large = || "the size exceeds 64 bits".to_owned();
    let whole: u64 = whole.parse().map_err(|_| "give a number and a unit, like 64M or 2G".to_owned())?;
    let whole = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return Ok(whole);
    }
    let digits: u64 = fraction.parse().map_err(|_| "give at most 19 digits after the point".to_owned())?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(u32::MAX).min(19));
    let part = (u128::from(digits) << shift) / scale;
    whole.checked_add(u64::try_from(part).map_err(|_| too_large())?).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65536),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("1TB", 1 << 40),
            ("2gb", 2 << 30),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_rejected() {
        for text in ["", "G", "-1", "2X", "1e9", "99999999T", "1.2.3G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
