//! Saves that were read.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::{
    CHUNK_PAGES, Chunk, HEADER_BYTES, Identity, Kind, LATER_VERSION, Manifest, NO_ZSTD, PAGE, TRAILER_BYTES, check,
    parse_header, parse_trailer,
};
use crate::packing::unpack;

/// A save, with the ones that it continues. Its manifests were verified; its pages are verified when they
/// are restored.
#[derive(Debug)]
pub struct Saved {
    /// Oldest first; the last one is the save itself.
    pub(crate) parts: Vec<Part>,
}

/// The bytes of a save: a file, or objects.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// Reads bytes from an offset on.
    ///
    /// # Errors
    /// If that many cannot be read.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;
}

/// A complete save, or an increment.
#[derive(Debug)]
pub(crate) struct Part {
    source: Box<dyn Source>,
    /// Its file or object, for messages.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) manifest: Manifest,
    /// Of the manifest.
    digest: u64,
}

impl Saved {
    /// The save of these parts, oldest first.
    pub(crate) fn of(parts: Vec<Part>) -> Result<Self> {
        if let Some(first) = parts.first().filter(|part| part.manifest.parent.is_some()) {
            return Err(Error::MissingParent { path: first.path.clone(), parent: first.manifest.parent.id });
        }
        if let Some(other) = parts.windows(2).find(|pair| pair[0].manifest.regions != pair[1].manifest.regions) {
            return Err(Error::damaged(&other[1].path, "its regions are not those of the save that it continues"));
        }
        Ok(Self { parts })
    }

    /// The number that the safe point returned.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.manifest.value)
    }

    /// The size of each memory in bytes.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        let regions = self.parts.last().map_or(&[][..], |part| &part.manifest.regions);
        regions.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).collect()
    }
}

impl Part {
    /// Reads the manifest of a save, whose size is `bytes`.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub(crate) fn open(source: Box<dyn Source>, bytes: u64, path: PathBuf) -> Result<Self> {
        let (manifest, digest) = parse(&*source, bytes, &path)?;
        Ok(Self { source, path, bytes, manifest, digest })
    }

    /// What a save that continues this one names as its parent.
    pub(crate) fn identity(&self) -> Identity {
        let own = Identity { id: self.manifest.id, digest: self.digest };
        if self.manifest.replaced.is_some() { self.manifest.replaced } else { own }
    }

    /// Reads the contents of a chunk, and verifies them.
    pub(crate) fn read<'a>(&self, chunk: &Chunk, buffers: &'a mut Buffers) -> Result<&'a [u8]> {
        let contents = &mut buffers.contents[..chunk.pages as usize * PAGE];
        let place = (self.manifest.id, chunk.region, chunk.first, chunk.check);
        if buffers.has == Some(place) {
            return Ok(contents);
        }
        buffers.has = None;
        match chunk.kind {
            Kind::Zeros => contents.fill(0),
            Kind::Raw => self.source.read(contents, chunk.offset)?,
            Kind::Lz4 | Kind::Zstd => {
                let packed = &mut buffers.packed[..chunk.stored as usize];
                self.source.read(packed, chunk.offset)?;
                unpack(chunk.kind, packed, contents).map_err(|what| unreadable(&self.path, what))?;
            }
        }
        if check(contents, self.manifest.id, chunk.region, chunk.first) != chunk.check {
            return Err(Error::damaged(&self.path, "the check of a page is wrong"));
        }
        buffers.has = Some(place);
        Ok(contents)
    }
}

/// Room for the contents of a chunk, and for what is stored of it.
pub(crate) struct Buffers {
    contents: Vec<u8>,
    packed: Vec<u8>,
    /// The save, the place and the check of these contents. A save may have the same place several times.
    has: Option<(u64, u32, u64, u64)>,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self { contents: vec![0; CHUNK_PAGES * PAGE], packed: vec![0; CHUNK_PAGES * PAGE], has: None }
    }
}

/// Where the pages of a memory are: the part and the chunk of each, the part plus one; 0 for a page of
/// zeros.
pub(crate) struct Places(Vec<(u32, u32)>);

impl Places {
    pub(crate) fn of(parts: &[Part], region: usize, pages: usize) -> Self {
        let mut places = vec![(0, 0); pages];
        for (number, part) in (1..).zip(parts) {
            for (index, chunk) in (0..).zip(&part.manifest.chunks) {
                if chunk.region as usize == region {
                    places[chunk.first as usize..][..chunk.pages as usize].fill((number, index));
                }
            }
        }
        Self(places)
    }

    /// The places from a page on, `count` or as many as there are.
    pub(crate) fn from(&self, page: usize, count: usize) -> &[(u32, u32)] {
        &self.0[page..self.0.len().min(page + count)]
    }
}

/// The error of a save that is not as expected.
fn unreadable(path: &Path, what: &'static str) -> Error {
    match what {
        LATER_VERSION | NO_ZSTD => Error::Unsupported { path: path.to_owned(), what },
        what => Error::damaged(path, what),
    }
}

/// The manifest of a save, and its digest.
fn parse(source: &dyn Source, size: u64, path: &Path) -> Result<(Manifest, u64)> {
    let wrong = |what| unreadable(path, what);
    if size < (HEADER_BYTES + TRAILER_BYTES) as u64 {
        return Err(wrong("it is too short"));
    }
    let (mut header, mut trailer) = ([0; HEADER_BYTES], [0; TRAILER_BYTES]);
    source.read(&mut header, 0)?;
    let id = parse_header(&header).map_err(wrong)?;
    let body = size - TRAILER_BYTES as u64;
    source.read(&mut trailer, body)?;
    let (offset, bytes) = parse_trailer(&trailer, id).map_err(wrong)?;
    if offset.checked_add(bytes) != Some(body) {
        return Err(wrong("its end contradicts its size"));
    }
    let mut manifest = vec![0; usize::try_from(bytes).unwrap_or(0)];
    source.read(&mut manifest, offset)?;
    Manifest::parse(&manifest, id, offset).map_err(wrong)
}
