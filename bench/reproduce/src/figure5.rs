//! Figure 5, and the blog's sweep of block sizes: programs whose large arrays are trees. Pricing of options, and a game search.

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
        about: "Black-Scholes prices from five arrays (and the options' kinds), as PARSEC lays them out, and from one array of \
                structs, the blog's \"Modified Blackscholes\"; and a game search (Connect Four, in deepsjeng's role) with its \
                transposition table in an array or in a tree. All sides lie on 4 KiB pages, as in the paper, and prices are \
                written to a contiguous array on each. Ratios are to contiguous arrays; what is above 1 is overhead.",
        needs: Needs { minutes: 20, memory_bytes: 8 << 30, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let mut cells = blackscholes::cells(scale);
    cells.extend(game::cells(scale));
    cells
}
