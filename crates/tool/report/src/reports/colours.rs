//! Colours of page sizes: Okabe and Ito's, which colour-blind readers can distinguish.

use crate::document::Colour;
use crate::translation::canonical;

/// Colours of the four page sizes, small to large.
pub(super) const PAGE_SIZES: [(&str, Colour); 4] = [
    ("4 KiB pages", Colour(148, 154, 163)),
    ("folios", Colour(86, 180, 233)),
    ("2 MiB pages", Colour(38, 118, 190)),
    ("1 GiB pages", Colour(0, 158, 115)),
];

/// The colour of a page kind, or of a configuration that was modelled: the same for the same page
/// size.
pub(super) fn colour_of(kind: &str) -> Colour {
    match &*canonical(kind) {
        "4k" => PAGE_SIZES[0].1,
        folio if folio.starts_with("folio") => PAGE_SIZES[1].1,
        "thp" | "2m" => PAGE_SIZES[2].1,
        "hugetlb-1g" | "1g" => PAGE_SIZES[3].1,
        range if range.contains("range") => Colour(204, 121, 167),
        mosaic if mosaic.contains("mosaic") || mosaic.contains('%') => Colour(160, 125, 60),
        "none" => Colour(86, 180, 233),
        _ => Colour(214, 120, 30),
    }
}
