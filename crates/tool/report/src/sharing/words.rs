//! Words that terminal and page share.

use super::{Found, Sharing, members};
use crate::quantity::{count, plural, rate, seconds};

/// `Looked at for 3.20 s: 6,412 samples by perf's software clock at 1000 Hz, 12 lost; 18,230 accesses with an address.`
pub(super) fn sampled(sharing: &Sharing) -> String {
    let of = &sharing.sampling;
    let means = if of.means.is_empty() { String::new() } else { format!(" by {}", of.means) };
    let hertz = if of.hertz > 0.0 { format!(" at {} Hz", rate(of.hertz)) } else { String::new() };
    format!(
        "Looked at for {}: {}{means}{hertz}, {} lost; {} with an address.",
        seconds(sharing.duration_s),
        plural(of.samples, "sample"),
        count(of.lost),
        if of.accesses == 1 { "1 access".to_owned() } else { format!("{} accesses", count(of.accesses)) }
    )
}

/// What there is to know of a line beside its verdict, a sentence each.
pub(super) fn notes(found: &Found) -> Vec<String> {
    contended(found).into_iter().chain(members::notes(found)).collect()
}

/// What the processor recorded of a line; nothing where it recorded nothing.
fn contended(found: &Found) -> Option<String> {
    let words = || {
        format!("{} found it modified in another processor’s cache (HITM).", plural(found.contended, "sampled load"))
    };
    (found.contended > 0).then(words)
}
