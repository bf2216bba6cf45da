//! Saves that were read.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::{
    CHUNK_PAGES, Chunk, HEADER_BYTES, Identity, Kind, LATER_VERSION, Manifest, PAGE, TRAILER_BYTES, check,
    parse_header, parse_trailer,
};

/// A save, with the ones that it continues. Its manifests were verified; its pages are verified when they
/// are restored.
#[derive(Debug)]
pub struct Saved {
    /// Oldest first; the last one is the save itself.
    pub(crate) files: Vec<SavedFile>,
}

/// The file of a save.
#[derive(Debug)]
pub(crate) struct SavedFile {
    pub(crate) file: fs::File,
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) identity: Identity,
}

impl Saved {
    /// The save of these files, oldest first.
    pub(crate) fn of(files: Vec<SavedFile>) -> Result<Self> {
        if let Some(other) = files.windows(2).find(|pair| pair[0].manifest.regions != pair[1].manifest.regions) {
            return Err(Error::damaged(&other[1].path, "its regions are not those of the save that it continues"));
        }
        Ok(Self { files })
    }

    /// The number that the safe point returned.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.files.last().map_or(0, |file| file.manifest.value)
    }

    /// The size of each memory in bytes.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        let regions = self.files.last().map_or(&[][..], |file| &file.manifest.regions);
        regions.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).collect()
    }
}

impl SavedFile {
    /// Opens a file, and reads its manifest.
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let file = fs::File::open(&path).map_err(Error::file("open", &path))?;
        let (manifest, digest) = parse(&file, &path)?;
        let identity = Identity { id: manifest.id, digest };
        Ok(Self { file, path, manifest, identity })
    }

    /// Reads the contents of a chunk, and verifies them.
    pub(crate) fn read<'a>(&self, chunk: &Chunk, buffers: &'a mut Buffers) -> Result<&'a [u8]> {
        let contents = &mut buffers.contents[..chunk.pages as usize * PAGE];
        let failed = Error::file("read", &self.path);
        match chunk.kind {
            Kind::Zeros => contents.fill(0),
            Kind::Raw => self.file.read_exact_at(contents, chunk.offset).map_err(failed)?,
            Kind::Lz4 => {
                let packed = &mut buffers.packed[..chunk.stored as usize];
                self.file.read_exact_at(packed, chunk.offset).map_err(failed)?;
                let unpacked = lz4_flex::block::decompress_into(packed, contents);
                if !unpacked.is_ok_and(|bytes| bytes == contents.len()) {
                    return Err(Error::damaged(&self.path, "pages do not decompress"));
                }
            }
        }
        if check(contents, self.manifest.id, chunk.region, chunk.first) != chunk.check {
            return Err(Error::damaged(&self.path, "the check of a page is wrong"));
        }
        Ok(contents)
    }
}

/// Room for the contents of a chunk, and for what is stored of it.
pub(crate) struct Buffers {
    contents: Vec<u8>,
    packed: Vec<u8>,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self { contents: vec![0; CHUNK_PAGES * PAGE], packed: vec![0; CHUNK_PAGES * PAGE] }
    }
}

/// The manifest of a save, and its digest.
fn parse(file: &fs::File, path: &Path) -> Result<(Manifest, u64)> {
    let read = |bytes: &mut [u8], offset| file.read_exact_at(bytes, offset).map_err(Error::file("read", path));
    let wrong = |what| match what {
        LATER_VERSION => Error::Unsupported { path: path.to_owned(), what },
        what => Error::damaged(path, what),
    };
    let size = file.metadata().map_err(Error::file("read", path))?.len();
    if size < (HEADER_BYTES + TRAILER_BYTES) as u64 {
        return Err(wrong("it is too short"));
    }
    let (mut header, mut trailer) = ([0; HEADER_BYTES], [0; TRAILER_BYTES]);
    read(&mut header, 0)?;
    let id = parse_header(&header).map_err(wrong)?;
    let body = size - TRAILER_BYTES as u64;
    read(&mut trailer, body)?;
    let (offset, bytes) = parse_trailer(&trailer, id).map_err(wrong)?;
    if offset.checked_add(bytes) != Some(body) {
        return Err(wrong("its end contradicts its size"));
    }
    let mut manifest = vec![0; usize::try_from(bytes).unwrap_or(0)];
    read(&mut manifest, offset)?;
    Manifest::parse(&manifest, id, offset).map_err(wrong)
}
