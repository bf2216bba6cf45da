//! The bytes of a save. All numbers are little-endian.
//!
//! ```text
//! header     "FSCHKPT1" | version u32 | 0 u32 | id u64 | check u64
//! chunks     contents of runs of pages, compressed or not, back to back
//! manifest   id | parent id | parent digest | replaced id | replaced digest | value | regions u64 | chunks u64
//!            each region: bytes u64
//!            each chunk:  region u32 | kind u32 | first page u64 | pages u32 | stored bytes u32 | offset u64 | check u64
//!            digest u64
//! trailer    manifest offset u64 | manifest bytes u64 | id u64 | "FSCHKEND"
//! ```
//! A page has 4 KiB on every machine. A later chunk replaces the pages of an earlier one. The check of a
//! chunk covers its contents, its region and its first page, and is seeded with the id of the save: a
//! chunk of zeros, of another place or of another save does not pass.

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) const PAGE: usize = 4096;
/// Pages of a chunk at most.
pub(crate) const CHUNK_PAGES: usize = 64;
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const TRAILER_BYTES: usize = 32;
const START: &[u8; 8] = b"FSCHKPT1";
const END: &[u8; 8] = b"FSCHKEND";

/// Names a save: a random number, and the digest of its manifest; zeros for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: u64,
    pub(crate) digest: u64,
}

impl Identity {
    /// Whether it names a save.
    pub(crate) fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// How the contents of a chunk are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Raw = 0,
    Lz4 = 1,
    /// Nothing is stored: the pages contain zeros.
    Zeros = 2,
    Zstd = 3,
}

/// A run of pages of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) region: u32,
    pub(crate) kind: Kind,
    pub(crate) first: u64,
    pub(crate) pages: u32,
    pub(crate) stored: u32,
    pub(crate) offset: u64,
    pub(crate) check: u64,
}

/// What a save contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) id: u64,
    /// The save that this one continues; all zeros for none.
    pub(crate) parent: Identity,
    /// The save that this one was merged from, and whose place it takes; all zeros for none.
    pub(crate) replaced: Identity,
    pub(crate) value: u64,
    /// The bytes of each region.
    pub(crate) regions: Vec<u64>,
    pub(crate) chunks: Vec<Chunk>,
}

/// The check of a chunk's contents.
pub(crate) fn check(contents: &[u8], id: u64, region: u32, first: u64) -> u64 {
    let place = first.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(region) << 48;
    xxh3_64_with_seed(contents, id ^ place)
}

pub(crate) fn header(id: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(START);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&id.to_le_bytes());
    let check = xxh3_64_with_seed(&bytes[..24], id);
    bytes[24..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// The id of a save, from its header.
///
/// # Errors
/// What is wrong.
pub(crate) fn parse_header(bytes: &[u8]) -> Result<u64, &'static str> {
    let mut numbers = Numbers(bytes);
    if numbers.take::<8>() != Some(*START) {
        return Err("it does not begin as one");
    }
    match numbers.u32() {
        Some(VERSION) => {}
        Some(_) => return Err(LATER_VERSION),
        None => return Err("its header is cut"),
    }
    let (_, id, check) = (numbers.u32(), numbers.u64(), numbers.u64());
    match (id, check) {
        (Some(id), Some(check)) if check == xxh3_64_with_seed(&bytes[..24], id) => Ok(id),
        _ => Err("its header is damaged"),
    }
}

/// What is wrong with pages that only another build decompresses.
pub(crate) const NO_ZSTD: &str =
    "its pages are compressed by zstd; build fieldstone-checkpoint with the feature `zstd`";
/// What is wrong with a save of another version.
pub(crate) const LATER_VERSION: &str = "it has another version; use a newer fieldstone-checkpoint";

pub(crate) fn trailer(manifest_offset: u64, manifest_bytes: u64, id: u64) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    for (at, number) in [manifest_offset, manifest_bytes, id].into_iter().enumerate() {
        bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
    }
    bytes[24..].copy_from_slice(END);
    bytes
}

/// The offset and the size of the manifest.
pub(crate) fn parse_trailer(bytes: &[u8], id: u64) -> Result<(u64, u64), &'static str> {
    let mut numbers = Numbers(bytes);
    match (numbers.u64(), numbers.u64(), numbers.u64(), numbers.take::<8>()) {
        (Some(offset), Some(bytes), Some(found), Some(end)) if found == id && end == *END => Ok((offset, bytes)),
        _ => Err("its end is missing: it was not written as a whole"),
    }
}

/// The id that a trailer names.
#[cfg(feature = "opendal")]
pub(crate) fn trailer_id(bytes: &[u8; TRAILER_BYTES]) -> u64 {
    let mut numbers = Numbers(&bytes[16..]);
    numbers.u64().unwrap_or_default()
}

impl Manifest {
    /// Its bytes, and its digest.
    pub(crate) fn encode(&self) -> (Vec<u8>, u64) {
        let mut bytes = Vec::with_capacity(104 + self.regions.len() * 8 + self.chunks.len() * 40);
        let counts = [self.regions.len() as u64, self.chunks.len() as u64];
        let Self { parent, replaced, .. } = self;
        let numbers = [self.id, parent.id, parent.digest, replaced.id, replaced.digest, self.value];
        let numbers = numbers.into_iter().chain(counts);
        numbers.chain(self.regions.iter().copied()).for_each(|number| bytes.extend(number.to_le_bytes()));
        for chunk in &self.chunks {
            bytes.extend(chunk.region.to_le_bytes());
            bytes.extend((chunk.kind as u32).to_le_bytes());
            bytes.extend(chunk.first.to_le_bytes());
            bytes.extend(chunk.pages.to_le_bytes());
            bytes.extend(chunk.stored.to_le_bytes());
            bytes.extend(chunk.offset.to_le_bytes());
            bytes.extend(chunk.check.to_le_bytes());
        }
        let digest = xxh3_64_with_seed(&bytes, self.id);
        bytes.extend(digest.to_le_bytes());
        (bytes, digest)
    }

    /// Parses a manifest, and checks that each chunk lies in its region and in the first `file_bytes`.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn parse(bytes: &[u8], id: u64, file_bytes: u64) -> Result<(Self, u64), &'static str> {
        let cut = "its manifest is cut";
        let (body, digest) = bytes.split_last_chunk::<8>().ok_or(cut)?;
        let digest = u64::from_le_bytes(*digest);
        if digest != xxh3_64_with_seed(body, id) {
            return Err("its manifest is damaged");
        }
        let mut numbers = Numbers(body);
        let mut next = || numbers.u64().ok_or(cut);
        let found = next()?;
        let parent = Identity { id: next()?, digest: next()? };
        let replaced = Identity { id: next()?, digest: next()? };
        let value = next()?;
        let (region_count, chunk_count) = (next()?, next()?);
        let is_sound = found == id && region_count <= 1 << 16 && chunk_count <= body.len() as u64 / 40;
        if !is_sound {
            return Err("its manifest contradicts itself");
        }
        let regions = (0..region_count).map(|_| numbers.u64().ok_or(cut)).collect::<Result<Vec<_>, _>>()?;
        let chunk = |_| numbers.chunk(&regions, file_bytes).ok_or("its manifest names pages that it does not have");
        let chunks = (0..chunk_count).map(chunk).collect::<Result<_, _>>()?;
        Ok((Self { id, parent, replaced, value, regions, chunks }, digest))
    }
}

/// Reads numbers from the start of bytes.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn chunk(&mut self, regions: &[u64], file_bytes: u64) -> Option<Chunk> {
        let (region, kind, first) = (self.u32()?, self.u32()?, self.u64()?);
        let (pages, stored, offset, check) = (self.u32()?, self.u32()?, self.u64()?, self.u64()?);
        let kind = [Kind::Raw, Kind::Lz4, Kind::Zeros, Kind::Zstd].into_iter().find(|&known| known as u32 == kind)?;
        let bytes = u64::from(pages) * PAGE as u64;
        let end = first.checked_mul(PAGE as u64)?.checked_add(bytes)?;
        let is_inside = end <= *regions.get(usize::try_from(region).ok()?)?
            && offset.checked_add(stored.into())? <= file_bytes
            && (1..=CHUNK_PAGES as u64).contains(&u64::from(pages));
        let fits = match kind {
            Kind::Raw => u64::from(stored) == bytes,
            Kind::Lz4 | Kind::Zstd => u64::from(stored) < bytes,
            Kind::Zeros => stored == 0,
        };
        (is_inside && fits).then_some(Chunk { region, kind, first, pages, stored, offset, check })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let chunk = |kind, first, stored| Chunk { region: 1, kind, first, pages: 2, stored, offset: 32, check: 99 };
        let chunks = vec![chunk(Kind::Raw, 0, 8192), chunk(Kind::Lz4, 2, 100), chunk(Kind::Zeros, 4, 0)];
        Manifest {
            id: 7,
            parent: Identity { id: 3, digest: 4 },
            replaced: Identity { id: 8, digest: 9 },
            value: 5,
            regions: vec![1 << 20, 6 * PAGE as u64],
            chunks,
        }
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        let (bytes, digest) = manifest().encode();
        assert_eq!(Manifest::parse(&bytes, 7, 8224), Ok((manifest(), digest)));
        assert_eq!(parse_header(&header(7)), Ok(7));
        assert_eq!(parse_trailer(&trailer(32, 100, 7), 7), Ok((32, 100)));
    }

    #[test]
    fn each_changed_or_missing_byte_is_found() {
        let (bytes, _) = manifest().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Manifest::parse(&changed, 7, 8224).is_err(), "byte {at}");
            assert!(Manifest::parse(&bytes[..at], 7, 8224).is_err(), "cut at {at}");
        }
        for at in 0..HEADER_BYTES {
            let mut changed = header(7);
            changed[at] ^= 1;
            assert!(parse_header(&changed).is_err(), "byte {at}");
        }
        assert!(parse_trailer(&trailer(32, 100, 8), 7).is_err());
    }

    #[test]
    fn chunks_outside_of_their_region_or_file_are_refused() {
        let refused = |change: fn(&mut Chunk), file_bytes| {
            let mut changed = manifest();
            change(&mut changed.chunks[0]);
            Manifest::parse(&changed.encode().0, 7, file_bytes).is_err()
        };
        assert!(!refused(|_| (), 8224));
        assert!(refused(|_| (), 8223));
        assert!(refused(|chunk| chunk.region = 2, 8224));
        assert!(refused(|chunk| chunk.first = 5, 8224));
        assert!(refused(|chunk| chunk.first = u64::MAX, 8224));
        assert!(refused(|chunk| chunk.pages = 0, 8224));
        assert!(refused(|chunk| chunk.stored = 4096, 8224));
    }

    #[test]
    fn a_check_covers_contents_place_and_save() {
        let zeros = [0; PAGE];
        let checks = [check(&zeros, 1, 0, 0), check(&zeros, 1, 0, 1), check(&zeros, 1, 1, 0), check(&zeros, 2, 0, 0)];
        assert!(checks.iter().enumerate().all(|(at, check)| !checks[..at].contains(check) && *check != 0));
    }
}
