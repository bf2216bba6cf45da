//! Sizes as text.

/// Bytes in the largest fitting unit, with one decimal unless they fill it evenly.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let unit = 1_u64 << (10 * power);
    let tenths = u128::from(bytes) * 10 / u128::from(unit);
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, units[power]),
        tenth => format!("{}.{tenth} {}", tenths / 10, units[power]),
    }
}
