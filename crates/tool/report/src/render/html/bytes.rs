//! The map of a cache line on a page: each byte in the colour of its user.

use crate::document::{ByteMap, ByteUse, ByteUser, Legend};
use serde::Serialize;

/// Bytes in a row.
const ROW_BYTES: usize = 64;

/// Up to 64 bytes.
#[derive(Debug, Serialize)]
pub(super) struct MapRow {
    ruler: Vec<usize>,
    bytes: Vec<MapByte>,
}

/// A byte of the map.
#[derive(Debug, Serialize)]
struct MapByte {
    letters: String,
    style: String,
    title: String,
}

/// The colour of a user.
pub(super) fn legend(user: &ByteUser) -> Legend {
    Legend { css: user.colours.0.clone(), name: format!("{} {}", user.letter, user.name) }
}

/// The rows of the map.
pub(super) fn rows(map: &ByteMap) -> Vec<MapRow> {
    let row = |start: usize| {
        let end = (start + ROW_BYTES).min(map.bytes);
        let bytes = (start..end).map(|byte| MapByte::new(byte, map)).collect();
        MapRow { ruler: (start..end).step_by(8).collect(), bytes }
    };
    (0..map.bytes).step_by(ROW_BYTES).map(row).collect()
}

impl MapByte {
    fn new(byte: usize, map: &ByteMap) -> Self {
        let uses = map.users.iter().map(|user| (user, user.uses.get(byte).copied().unwrap_or_default()));
        let uses: Vec<(&ByteUser, ByteUse)> = uses.filter(|(_, of_byte)| *of_byte != ByteUse::Unused).collect();
        let letters = match uses.as_slice() {
            [] => String::new(),
            [(user, of_byte)] => of_byte.letter(user.letter).to_string(),
            several => several.len().to_string(),
        };
        let verb = |of_byte| if of_byte == ByteUse::Written { "writes" } else { "reads" };
        let words: Vec<String> =
            uses.iter().map(|(user, of_byte)| format!("{} {}", user.letter, verb(*of_byte))).collect();
        let words = if words.is_empty() { "unused".to_owned() } else { words.join(", ") };
        Self { letters, style: style(&uses), title: format!("byte {byte}: {words}") }
    }
}

/// The colour of one user, and a stripe for each of several. A written byte is filled; one that is
/// only read has a frame.
fn style(uses: &[(&ByteUser, ByteUse)]) -> String {
    match uses {
        [] => String::new(),
        [(user, ByteUse::Written)] => format!("background:{};color:{}", user.colours.0, user.colours.1),
        [(user, _)] => format!("box-shadow:inset 0 0 0 2px {}", user.colours.0),
        several => {
            let part = 100.0 / several.len() as f64;
            let stripe = |(at, (user, _)): (usize, &(&ByteUser, ByteUse))| {
                format!("{} {:.1}% {:.1}%", user.colours.0, part * at as f64, part * (at + 1) as f64)
            };
            let stripes: Vec<String> = several.iter().enumerate().map(stripe).collect();
            format!("background:linear-gradient({});color:#000", stripes.join(","))
        }
    }
}
