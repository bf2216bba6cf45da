//! The map of a cache line for a terminal: a row a thread.
//!
//! ```text
//!           0       8       16      24      32
//!   A 4243  AAAAAAAAAAAAAAAA................        written
//!   B 4244  ........................bbbbbbbb        only read
//! ```

use super::Sheet;
use crate::document::{ByteMap, ByteUser};

/// Rows of a map; of more users the heaviest are drawn.
const MOST_USERS: usize = 12;

/// Draws as many bytes side by side as there is room for.
pub(super) fn draw(map: &ByteMap, sheet: &mut Sheet) {
    let mut order: Vec<usize> = (0..map.users.len()).collect();
    order.sort_by(|&one, &other| map.users[other].weight.total_cmp(&map.users[one].weight));
    order.truncate(MOST_USERS);
    order.sort_unstable();
    let label = |user: &ByteUser| format!("{} {}", user.letter, user.number);
    let users: Vec<&ByteUser> = order.into_iter().map(|at| &map.users[at]).collect();
    let room = users.iter().map(|user| label(user).len()).max().unwrap_or(0);
    let width = [64, 32, 16].into_iter().find(|bytes| room + 2 + bytes <= sheet.room()).unwrap_or(8);
    for start in (0..map.bytes).step_by(width) {
        let end = (start + width).min(map.bytes);
        let ruler: String = (start..end).step_by(8).map(|byte| format!("{byte:<8}")).collect();
        sheet.row(&format!("{:room$}  {}", "", ruler));
        for user in &users {
            let uses = user.uses.iter().take(end).skip(start);
            let letters: String = uses.map(|of_byte| of_byte.letter(user.letter)).collect();
            sheet.row(&format!("{:room$}  {letters}", label(user)));
        }
    }
    let rest = match map.users.len() - users.len() {
        0 => String::new(),
        rest => format!(" {rest} threads with fewer samples are not drawn."),
    };
    sheet.paragraph(&format!("Capital letter: written. Small letter: only read.{rest}"));
}
