//! Which objects refer to which others: the same for each kind of pointer.

use fieldstone_stats::random::SplitMix64;

/// Assemblies below a complex assembly.
pub const FAN_OUT: usize = 3;
/// Levels of assemblies; the lowest one has the base assemblies.
pub const LEVELS: usize = 7;
/// Composite parts of a base assembly.
pub const BASE_COMPONENTS: usize = 3;
/// Connections from an atomic part.
pub const OUTGOING: usize = 3;
/// Dates of atomic parts.
const DATES: std::ops::Range<u32> = 1000..2000;
const COORDINATES: usize = 100_000;
const TYPES: usize = 10;

/// The values of an atomic part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartFields {
    /// The name of its type.
    pub kind: [u8; 10],
    /// From 1000 to 1999.
    pub build_date: u32,
    /// Below 100,000.
    pub x: u32,
    /// Below 100,000.
    pub y: u32,
    /// The document of its composite part.
    pub document: u32,
}

/// A graph as numbers.
#[derive(Clone, Debug)]
pub struct Design {
    /// Atomic parts of a composite part.
    pub parts: usize,
    /// The composite parts of each base assembly, from left to right.
    pub components: Vec<[usize; BASE_COMPONENTS]>,
    /// For each atomic part the atomic parts to which it is connected: the next one of its composite part, and
    /// random ones of it. The parts of a composite part are adjacent; the first is its root part.
    pub connections: Vec<[usize; OUTGOING]>,
    /// The values of each atomic part.
    pub fields: Vec<PartFields>,
}

impl Design {
    /// The small configuration: 500 composite parts of 20 atomic parts, 3 connections a part.
    #[must_use]
    pub fn small() -> Self {
        Self::new(500, 20)
    }

    /// A graph with `composites` composite parts of `parts` atomic parts each.
    #[must_use]
    pub fn new(composites: usize, parts: usize) -> Self {
        let mut random = SplitMix64::new(1);
        let bases = FAN_OUT.pow(u32::try_from(LEVELS - 1).unwrap_or(0));
        let components = (0..bases).map(|_| std::array::from_fn(|_| random.below(composites))).collect();
        let connections = (0..composites * parts).map(|part| {
            let first = part / parts * parts;
            let next = first + (part - first + 1) % parts;
            std::array::from_fn(|number| if number == 0 { next } else { first + random.below(parts) })
        });
        let connections = connections.collect();
        let fields = (0..composites * parts).map(|part| Self::fields(part / parts, &mut random)).collect();
        Self { parts, components, connections, fields }
    }

    fn fields(composite: usize, random: &mut SplitMix64) -> PartFields {
        let mut below = |end: usize| u32::try_from(random.below(end)).unwrap_or(0);
        let mut kind = *b"type #0   ";
        kind[6] += below(TYPES).to_le_bytes()[0];
        PartFields {
            kind,
            build_date: DATES.start + below(DATES.len()),
            x: below(COORDINATES),
            y: below(COORDINATES),
            document: u32::try_from(composite).unwrap_or(0) + 1,
        }
    }

    /// The number of composite parts.
    #[must_use]
    pub const fn composites(&self) -> usize {
        self.connections.len() / self.parts
    }

    /// The number of atomic parts that T1 visits: those of each composite part of each base assembly.
    #[must_use]
    pub const fn t1_visits(&self) -> u64 {
        (self.components.len() * BASE_COMPONENTS * self.parts) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_configuration_has_the_sizes_of_oo7() {
        let design = Design::small();
        assert_eq!((design.composites(), design.connections.len(), design.components.len()), (500, 10_000, 729));
        assert_eq!(design.t1_visits(), 43_740);
    }

    #[test]
    fn the_first_connections_are_a_ring_and_all_stay_in_their_composite_part() {
        let design = Design::new(3, 20);
        let ring: Vec<usize> =
            std::iter::successors(Some(20), |&part: &usize| Some(design.connections[part][0])).take(21).collect();
        assert_eq!(ring[..20], (20..40).collect::<Vec<_>>());
        assert_eq!(ring[20], 20);
        let is_inside = |(part, to): (usize, &[usize; OUTGOING])| to.iter().all(|to| to / 20 == part / 20);
        assert!(design.connections.iter().enumerate().all(is_inside));
    }
}
