//! Finds the pages to which an unreadable branch of a tree has led.
//!
//! ```text
//! walk over all trees ─→ unreadable places: the tree, and the keys between two fences
//! maps ─→ pages in use that no page refers to, with their own fences ─→ the only place with these keys
//! ```
//! A page does not contain the name of its table. So pages are used only if exactly one unreadable
//! place has keys that include theirs, and no two of them have the same keys. With a damaged
//! catalog or log, none are.

use std::collections::HashMap;
use std::convert::Infallible;

use crate::contents::{Part, visit};
use crate::node::Node;
use crate::page::PAGE;
use crate::space::{GROUP, is_used};
use crate::store_file::StoreFile;
use crate::walk::{KeyRange, Place, Substitute, Walk};

/// The pages that replace unreadable ones, by number and first key of those.
pub(crate) fn substitutes(file: &StoreFile) -> HashMap<(u32, Vec<u8>), Substitute> {
    let (mut walk, mut lost) = (Walk::new(file), Vec::new());
    let mut is_certain = !file.findings.iter().any(|finding| finding.is_loss());
    let Ok(()) = visit(&mut walk, &mut |part| {
        match part {
            Part::Damage { place: Some(place), .. } => lost.push(place),
            Part::Damage { place: None, .. } => is_certain = false,
            Part::Table(_) | Part::Node(..) => {}
        }
        Ok::<(), Infallible>(())
    });
    if !is_certain || lost.is_empty() {
        return HashMap::new();
    }
    let mut found: HashMap<usize, Vec<Place>> = HashMap::new();
    for orphan in orphans(&walk) {
        if walk.visited.contains(orphan.page) {
            continue;
        }
        let mut owners = (0..lost.len()).filter(|&index| includes(&lost[index], &orphan));
        let owner = owners.next().filter(|_| owners.next().is_none());
        // What is below it has the same owner.
        let Ok(()) = walk.places(vec![orphan.clone()], &mut |_| Ok::<(), Infallible>(()));
        if let Some(owner) = owner {
            found.entry(owner).or_default().push(orphan);
        }
    }
    let substitutes = found.into_iter().filter_map(|(owner, places)| {
        let owner = &lost[owner];
        Some(((owner.page, owner.lower.clone()), substitute(owner, places)?))
    });
    substitutes.collect()
}

/// Nodes in use that no page refers to, those of higher levels first.
fn orphans(walk: &Walk<'_>) -> Vec<Place> {
    let (file, mut orphans) = (walk.file, Vec::new());
    let (mut map, mut page) = ([0; PAGE], [0; PAGE]);
    for first in file.maps() {
        if file.map(first, &mut map).is_err() {
            continue;
        }
        for number in first + 1..file.end().min(first + GROUP) {
            let is_orphan = is_used(&map, number - first) && !walk.referenced.contains(number);
            if is_orphan && file.page(number, &mut page).is_ok() {
                orphans.extend(place_of(number, Node(&page)));
            }
        }
    }
    orphans.sort_by_key(|orphan: &Place| std::cmp::Reverse(orphan.level));
    orphans
}

/// The place that a node has by its own fences; `None` if it is damaged.
fn place_of(page: u32, node: Node<'_>) -> Option<Place> {
    node.check().ok()?;
    let fences = node.fences();
    node.verify(None, fences).ok()?;
    let (lower, upper) = (fences.lower.to_vec(), fences.upper.map(<[u8]>::to_vec));
    Some(Place { page, parent: page, level: Some(node.level()), lower, upper })
}

/// Whether a node can be below an unreadable place.
fn includes(place: &Place, node: &Place) -> bool {
    let is_below = match (&place.upper, &node.upper) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(limit), Some(upper)) => upper <= limit,
    };
    is_below && node.lower >= place.lower && place.level.is_none_or(|level| node.level < Some(level))
}

/// What is visited instead of an unreadable place; `None` if nodes have the same keys.
fn substitute(lost: &Place, mut places: Vec<Place>) -> Option<Substitute> {
    places.sort_by(|one, other| one.lower.cmp(&other.lower));
    let (mut missing, mut next): (Vec<KeyRange>, _) = (Vec::new(), Some(lost.lower.clone()));
    for place in &places {
        let from = next.take()?;
        if from > place.lower {
            return None;
        }
        if from < place.lower {
            missing.push((from, Some(place.lower.clone())));
        }
        next = place.upper.clone();
    }
    if let Some(from) = next.filter(|from| lost.upper.as_ref().is_none_or(|upper| from < upper)) {
        missing.push((from, lost.upper.clone()));
    }
    Some(Substitute { places, missing })
}
