//! The stores of `--page-store`.

use std::path::PathBuf;
use std::str::FromStr;

use fieldstone_wire::paging::{FILE, LZ4, OBJECTS, REDIS, STORE_NAMES, ZSTD};

use crate::size;

/// What `--page-store` accepts.
const STORE_FORMS: &str =
    "give lz4[:SIZE], zstd[:SIZE], file:DIRECTORY, redis://HOST:PORT, redis+cluster://HOST:PORT or opendal:ADDRESS";
/// The smallest memory of a store.
const LEAST_STORE: u64 = 64 << 10;

/// A store of `--page-store`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreOption {
    /// Memory for compressed pages; `None` for a quarter of the bound.
    Lz4(Option<u64>),
    /// As `Lz4`.
    Zstd(Option<u64>),
    File(PathBuf),
    /// The address of a server or a cluster.
    Redis(String),
    /// The address of an object store.
    Objects(String),
}

impl StoreOption {
    /// Its index in [`STORE_NAMES`].
    pub(super) const fn index(&self) -> usize {
        match self {
            Self::Lz4(_) => LZ4,
            Self::Zstd(_) => ZSTD,
            Self::File(_) => FILE,
            Self::Redis(_) => REDIS,
            Self::Objects(_) => OBJECTS,
        }
    }
}

/// Parses the memory of a store.
fn memory_limit(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0..LEAST_STORE => Err("a store needs at least 64K".to_owned()),
        bytes => Ok(bytes),
    }
}

impl FromStr for StoreOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("lz4", limit) => Ok(Self::Lz4(limit.map(memory_limit).transpose()?)),
            ("zstd", limit) => Ok(Self::Zstd(limit.map(memory_limit).transpose()?)),
            ("file", Some(directory)) if !directory.is_empty() => Ok(Self::File(directory.into())),
            ("redis" | "redis+cluster", Some(_)) => Ok(Self::Redis(text.to_owned())),
            ("opendal", Some(address)) if !address.is_empty() => Ok(Self::Objects(address.to_owned())),
            ("file" | "redis" | "redis+cluster" | "opendal", _) => Err(format!("{name} needs a value: {STORE_FORMS}")),
            _ => Err(format!("there is no store {name:?}: {STORE_FORMS}")),
        }
    }
}

/// The stores of `--page-store`, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreList(pub(super) Vec<StoreOption>);

impl FromStr for StoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let stores = text.split(',').map(str::parse).collect::<Result<Vec<StoreOption>, _>>()?;
        let twice =
            |(at, store): &(usize, &StoreOption)| stores[..*at].iter().any(|other| other.index() == store.index());
        if let Some((_, store)) = stores.iter().enumerate().find(twice) {
            return Err(format!("give {} once", STORE_NAMES[store.index()]));
        }
        let is_kept = |index| stores.iter().any(|store| store.index() == index);
        if is_kept(REDIS) && is_kept(OBJECTS) {
            return Err("give one of redis and opendal".to_owned());
        }
        Ok(Self(stores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_stores_are_parsed() {
        let (lz4, file) = (StoreOption::Lz4(Some(1 << 30)), StoreOption::File("/var/tmp".into()));
        assert_eq!("lz4:1G,file:/var/tmp".parse(), Ok(StoreList(vec![lz4.clone(), file.clone()])));
        let redis = |url: &str| StoreOption::Redis(url.to_owned());
        let list = "redis+cluster://host:7000,file:/var/tmp,lz4:1G".parse();
        assert_eq!(list, Ok(StoreList(vec![redis("redis+cluster://host:7000"), file, lz4])));
        assert_eq!("lz4,redis://a".parse(), Ok(StoreList(vec![StoreOption::Lz4(None), redis("redis://a")])));
        assert_eq!("zstd:1M".parse(), Ok(StoreList(vec![StoreOption::Zstd(Some(1 << 20))])));
        assert_eq!(
            "opendal:s3://pages/a?region=x".parse(),
            Ok(StoreList(vec![StoreOption::Objects("s3://pages/a?region=x".to_owned())]))
        );
        for wrong in [
            "opendal",
            "opendal:",
            "redis://a,opendal:fs:///b",
            "",
            "file",
            "file:",
            "brotli",
            "lz4,lz4",
            "lz4:x",
            "redis",
            "redis://a,redis+cluster://b",
        ] {
            assert!(wrong.parse::<StoreList>().is_err(), "{wrong}");
        }
    }
}
