//! Parses intervals on the command line: `1s`, `500ms`, `2m`.

use std::time::Duration;

/// The shortest interval: each takes the time to format the statistics of up to 256 processes.
const SHORTEST: Duration = Duration::from_millis(10);

/// Parses an interval. A number without a unit is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        _ => return Err(format!("unknown unit {unit:?}: give an interval like 1s or 500ms")),
    };
    let number: f64 = number.parse().map_err(|_| "give a number and a unit, like 1s or 500ms".to_owned())?;
    let interval = Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())?;
    if interval < SHORTEST { Err("the shortest interval is 10ms".to_owned()) } else { Ok(interval) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_parsed() {
        for (text, ms) in [("1s", 1000), ("2", 2000), ("500ms", 500), ("0.25s", 250), ("1.5m", 90_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "1h", "-1s", "0s", "1.2.3s", "9e99s", "99999999999999999999999s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
