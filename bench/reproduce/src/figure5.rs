//! Figure 5, and the blog's sweep of block sizes: programs with trees instead of large arrays.
//! Option pricing, and a game search.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `blackscholes` | option prices from arrays and from trees |
//! | `game` | the game search with its table in an array and in trees |

pub mod blackscholes;
pub mod game;

use crate::experiment::{Cell, Experiment, Needs, Scale};

/// Figure 5.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "figure5",
        title: "Programs whose large arrays are trees",
        source: "Zagieboylo, Suh and Myers, section 4.2, Figure 5; Zagieboylo's blog, \"Evaluating Tree Overheads\"",
        about: "Black-Scholes prices from five arrays (and one of flags), the layout of PARSEC, and from one array of \
                structs, the blog's \"Modified Blackscholes\"; and a game search (Connect Four, the counterpart of \
                deepsjeng) with its transposition table in an array or in a tree. All sides are on 4 KiB pages, as in the \
                paper, and write prices to a contiguous array. Ratios are to contiguous arrays; above 1 is overhead.",
        needs: Needs { minutes: 20, memory_bytes: 8 << 30, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let mut cells = blackscholes::cells(scale);
    cells.extend(game::cells(scale));
    cells
}
