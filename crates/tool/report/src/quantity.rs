//! The text of numbers, shared by all renderers, so that the same measurement has the same text
//! everywhere.
//!
//! Measured numbers have three significant digits, bytes have binary units, and a space is before
//! each unit.

use fieldstone_stats::Interval;

/// Seconds as `12.3 s`, `456 ms`, `7.89 ms`, `12.3 µs`, `30.1 ns`; hours stay seconds, so that
/// ratios are easy to read.
pub fn seconds(value_s: f64) -> String {
    let (scale, unit) = second_unit(value_s);
    format!("{} {unit}", significant(value_s / scale))
}

/// The unit in which a time, or an axis that ends at it, is written: its length in seconds, and its
/// name.
pub fn second_unit(value_s: f64) -> (f64, &'static str) {
    match value_s.abs() {
        0.0 => (1.0, "s"),
        tiny if tiny < 0.999_5e-6 => (1e-9, "ns"),
        small if small < 0.999_5e-3 => (1e-6, "µs"),
        middling if middling < 0.999_5 => (1e-3, "ms"),
        _ => (1.0, "s"),
    }
}

/// Bytes as `4 KiB`, `512 MiB`, `1.50 GiB`.
pub fn bytes(value_bytes: u64) -> String {
    let (scale, unit) = byte_unit(value_bytes);
    let value = value_bytes as f64 / scale;
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{} {unit}", significant(value)) }
}

/// The unit in which bytes, or an axis that ends at them, are written: its size in bytes, and its
/// name.
pub fn byte_unit(value_bytes: u64) -> (f64, &'static str) {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = (1.0, "B");
    for name in UNITS {
        // 1023.6 MiB would be written as 1024 MiB: the next unit begins a little early.
        if (value_bytes as f64) < unit.0 * 1023.5 {
            break;
        }
        unit = (unit.0 * 1024.0, name);
    }
    unit
}

/// A whole number with separated thousands: `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 line`, `12 lines`, `2 processes`.
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    let ending = if noun.ends_with('s') { "es" } else { "s" };
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}{ending}", count(number)) }
}

/// A ratio: `0.612`, `12.3`.
pub fn ratio(value: f64) -> String {
    if value.abs() < 9.9995 { format!("{value:.3}") } else { significant(value) }
}

/// A price: `30.4 ns`.
pub fn nanoseconds(value_ns: f64) -> String {
    format!("{} ns", significant(value_ns))
}

/// A time as a part of another, an estimate: `0.61`, at least `< 0.01`.
pub fn hundredths(value: f64) -> String {
    if value < 0.005 { "< 0.01".to_owned() } else { format!("{value:.2}") }
}

/// A change, given as a fraction: `38.8 %`, `-2.5 %`.
pub fn percent(fraction: f64) -> String {
    // `+ 0.0` turns the -0.0 that rounding may leave into 0.0.
    format!("{:.1} %", (fraction * 1000.0).round() / 10.0 + 0.0)
}

/// A part of a whole, given as a fraction: as [`percent`], but with two digits near 0 and 1: `99.96
/// %`. A small part is never written as 0: `< 0.01 %`; nearly all is never written as 100 %.
pub fn share(fraction: f64) -> String {
    match fraction {
        tiny if tiny > 0.0 && tiny < 1e-4 => "< 0.01 %".to_owned(),
        small if (1e-4..0.01).contains(&small) => format!("{:.2} %", small * 100.0),
        large if (0.99..1.0).contains(&large) => format!("{:.2} %", (large * 1e4).floor() / 100.0),
        _ => percent(fraction),
    }
}

/// A share that is known to about 0.01 or worse: `97 %`, `< 1 %`.
pub fn rough_share(fraction: f64) -> String {
    match fraction {
        tiny if tiny > 0.0 && tiny < 0.01 => "< 1 %".to_owned(),
        large if (0.99..1.0).contains(&large) => "99 %".to_owned(),
        _ => format!("{:.0} %", fraction * 100.0 + 0.0),
    }
}

/// The two ends of an interval, written by `write`: `0.590 – 0.612`.
pub fn interval(low: f64, high: f64, write: fn(f64) -> String) -> String {
    format!("{} – {}", write(low), write(high))
}

/// An estimate with its bounds, which share its unit: `34.1 % (20.9–47.3)`.
/// A bound without a number has words: `0.01 % (< 0.01 % to 0.02 %)`.
pub fn estimate(of: &Interval, write: fn(f64) -> String) -> String {
    let [likely, low, high] = [of.likely, of.low, of.high].map(write);
    if high.starts_with('<') && low == high {
        return high;
    }
    if low.starts_with('<') || high.starts_with('<') {
        return format!("{likely} ({low} to {high})");
    }
    let bare = |words: &str| words.trim_end_matches(" %").trim_end_matches(" ns").to_owned();
    format!("{likely} ({}–{})", bare(&low), bare(&high))
}

/// The bounds of an estimate whose middle means nothing: `10.8 % to 100.0 %`.
pub fn bounds(of: &Interval, write: fn(f64) -> String) -> String {
    let [low, high] = [of.low, of.high].map(write);
    if low == high { low } else { format!("{low} to {high}") }
}

/// A rate, such as walks a thousand accesses: `0`, `0.004`, `1.25`, `962`. A small rate is never
/// written as 0.
pub fn rate(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        tiny if tiny < 0.001 => "< 0.001".to_owned(),
        small if small < 0.995 => format!("{value:.3}"),
        _ => significant(value),
    }
}

/// An address: `0x7f0000000000`.
pub fn address(value: u64) -> String {
    format!("{value:#x}")
}

/// A moment, in seconds since 1970, as `2026-11-20 16:14 UTC`. At most the end of the year 9999.
pub fn moment(unix_s: u64) -> String {
    let unix_s = unix_s.min(253_402_300_799);
    let (days, second_of_day) = (unix_s / 86_400, unix_s % 86_400);
    let (mut year, mut day) = (1970, days);
    while day >= days_of_year(year) {
        day -= days_of_year(year);
        year += 1;
    }
    let mut month = 1;
    while day >= days_of_month(year, month) {
        day -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute) = (second_of_day / 3600, second_of_day / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", day + 1)
}

/// Three significant digits, without an exponent.
fn significant(value: f64) -> String {
    match value.abs() {
        tiny if tiny < 9.995 => format!("{value:.2}"),
        small if small < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_fitting_unit() {
        for (value_s, text) in [
            (0.0, "0.00 s"),
            (1.234, "1.23 s"),
            (12.34, "12.3 s"),
            (1234.6, "1235 s"),
            (0.4567, "457 ms"),
            (0.00789, "7.89 ms"),
            (0.9996, "1.00 s"),
            (0.9994, "999 ms"),
            (12.3e-6, "12.3 µs"),
            (30.12e-9, "30.1 ns"),
        ] {
            assert_eq!(seconds(value_s), text);
        }
    }

    #[test]
    fn bytes_never_read_1024_of_a_unit() {
        for (value_bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1536 << 20, "1.50 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (512 << 20, "512 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(value_bytes), text);
        }
    }

    #[test]
    fn counts_ratios_and_shares() {
        assert_eq!((count(0), count(999), count(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
        assert_eq!((ratio(0.6124), ratio(12.34)), ("0.612".into(), "12.3".into()));
        assert_eq!((percent(0.388), percent(-0.0001)), ("38.8 %".into(), "0.0 %".into()));
        assert_eq!(share(0.99961), "99.96 %");
        assert_eq!(share(0.999_999_9), "99.99 %", "not all is never written as all");
        assert_eq!((share(1.0), share(0.0)), ("100.0 %".into(), "0.0 %".into()));
        let small = [7e-7, 0.000_099_9, 0.0001, 0.000_101, 0.0012, 0.009_999, 0.01].map(share);
        assert_eq!(small, ["< 0.01 %", "< 0.01 %", "0.01 %", "0.01 %", "0.12 %", "1.00 %", "1.0 %"]);
        let rough = [0.0, 0.001, 0.0625, 0.5, 0.974, 0.997, 1.0].map(rough_share);
        assert_eq!(rough, ["0 %", "< 1 %", "6 %", "50 %", "97 %", "99 %", "100 %"]);
        assert_eq!(interval(0.59, 0.6124, ratio), "0.590 – 0.612");
        let range = Interval { low: 0.209, likely: 0.341, high: 1.0 };
        assert_eq!(estimate(&range, share), "34.1 % (20.9–100.0)");
        assert_eq!(estimate(&range, hundredths), "0.34 (0.21–1.00)");
        let range = Interval { low: 7e-7, likely: 0.0001, high: 0.0002 };
        assert_eq!(estimate(&range, share), "0.01 % (< 0.01 % to 0.02 %)");
        let range = Interval { low: 1e-9, likely: 7e-7, high: 9e-7 };
        assert_eq!(estimate(&range, share), "< 0.01 %");
        let range = Interval { low: 0.0, likely: 0.56, high: 0.89 };
        assert_eq!(estimate(&range, hundredths), "0.56 (< 0.01 to 0.89)", "no run takes no time");
        assert_eq!(bounds(&range, hundredths), "< 0.01 to 0.89");
        assert_eq!(bounds(&Interval { low: 1.0, likely: 1.0, high: 1.0 }, hundredths), "1.00");
        assert_eq!(estimate(&Interval { low: 0.0, likely: 9.04, high: 32.4 }, nanoseconds), "9.04 ns (0.00–32.4)");
        let rates = [0.0, 1e-9, 0.0042, 0.99, 0.996, 961.7].map(rate);
        assert_eq!(rates, ["0", "< 0.001", "0.004", "0.990", "1.00", "962"]);
    }

    #[test]
    fn moments_follow_the_calendar() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(moment(1_767_225_599), "2025-12-31 23:59 UTC");
        assert_eq!(moment(u64::MAX), "9999-12-31 23:59 UTC");
    }
}
