//! The order of writes on which recovery relies, as rules that are checked.
//!
//! ```text
//! record ─→ visible
//! all records of an epoch ─→ their pages ─→ sync ─→ header of the next epoch ─→ first record of the epoch after it
//! ```
//! [`log_model`](crate::log_model) shows that these rules suffice: it tries all sequences of writes that they
//! permit, with a crash after each. The tests here show that a store keeps them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::crash::{Disk, Model, OnDisk, Random, both, change, empty};
use crate::flush::Flusher;
use crate::header::Header;
use crate::lock::lock;
use crate::log::{self, BLOCK};
use crate::object::ObjectOptions;
use crate::page::{PAGE, Page, is_sealed, u64_at};
use crate::progress::RecoveryOptions;
use crate::recovery::{read_header, recover};
use crate::shared::Shared;
use crate::storage::Storage;
use crate::{Result, Store};

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A half of the log is written again when the header excludes what it contained from recovery.
    LogAfterHeader,
    /// The header excludes an epoch when the pages that it changed are durable in their places.
    HeaderAfterSync,
    /// A commit is visible when its record is durable.
    PublishAfterLog,
    /// A page gets to its place when the record of its contents is durable.
    PageAfterLog,
    /// A record has all that a commit has changed.
    RecordIsComplete,
}

/// What has happened to the contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Logged,
    Written,
}

/// What was written, as far as the rules need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Order {
    /// The epoch of the header.
    header: u64,
    /// The last record that is durable.
    pub(crate) last: u64,
    /// For pages and epochs, the last record of that page until its contents are durable in their place.
    pending: BTreeMap<(u32, u64), (u64, Stage)>,
}

impl Order {
    pub(crate) fn new(header: u64, last: u64) -> Self {
        Self { header, last, pending: BTreeMap::new() }
    }

    /// A record with these pages becomes durable.
    pub(crate) fn log(&mut self, epoch: u64, sequence: u64, pages: impl IntoIterator<Item = u32>) -> Option<Rule> {
        self.last = sequence;
        let pending = pages.into_iter().map(|page| ((page, epoch), (sequence, Stage::Logged)));
        self.pending.extend(pending);
        (epoch > self.header + 1).then_some(Rule::LogAfterHeader)
    }

    /// The contents of a page as of a commit are written to its place.
    pub(crate) fn page(&mut self, page: u32, version: u64) -> Option<Rule> {
        for (_, (sequence, stage)) in self.pending.range_mut((page, 0)..=(page, u64::MAX)) {
            if *sequence <= version {
                *stage = Stage::Written;
            }
        }
        (version > self.last).then_some(Rule::PageAfterLog)
    }

    pub(crate) fn sync(&mut self) {
        self.pending.retain(|_, &mut (_, stage)| stage == Stage::Logged);
    }

    /// A header becomes durable, of a file with `end` pages: what was changed behind them is dropped.
    pub(crate) fn header(&mut self, epoch: u64, end: u32) -> Option<Rule> {
        self.header = epoch;
        let is_early = self.pending.keys().any(|&(page, logged)| logged < epoch && page < end);
        self.pending.retain(|&(_, logged), _| logged >= epoch);
        is_early.then_some(Rule::HeaderAfterSync)
    }

    /// A commit becomes visible.
    pub(crate) fn publish(&self, sequence: u64) -> Option<Rule> {
        (sequence > self.last).then_some(Rule::PublishAfterLog)
    }
}

/// Commits, and the contents of a page after them.
type Versions = Vec<(u64, Box<Page>)>;

/// What the calls of a store on its file are in terms of the rules.
#[derive(Debug)]
struct Seen {
    order: Order,
    header: Header,
    /// The contents of each page, and those after each record.
    pages: HashMap<u32, (Box<Page>, Versions)>,
    broken: Vec<Rule>,
    headers: usize,
    records: usize,
}

/// A disk that checks the rules.
#[derive(Debug)]
struct OrderedDisk {
    disk: OnDisk,
    seen: Arc<Mutex<Seen>>,
    shared: Arc<OnceLock<Weak<Shared>>>,
}

impl OrderedDisk {
    fn published(&self) -> u64 {
        self.shared.get().and_then(Weak::upgrade).map_or(0, |shared| shared.published().0)
    }
}

impl Seen {
    /// The records that are written to the log.
    fn log(&mut self, disk: &OnDisk, mut bytes: &[u8]) {
        while bytes.len() >= BLOCK {
            let (epoch, sequence) = (u64_at(bytes, 8), u64_at(bytes, 16));
            let record = log::find(bytes, self.header.store, epoch, sequence).expect("a whole record");
            let mut apart = vec![0; if record.apart == 0 { 0 } else { record.bytes }];
            disk.read(&mut apart, record.apart).unwrap();
            let lines = if record.apart == 0 { record.lines(bytes).unwrap() } else { &apart };
            let mut changed = Vec::new();
            for change in record.changes(lines).map(Option::unwrap) {
                let (page, versions) = self.pages.entry(change.number).or_insert_with(|| {
                    let mut page = Box::new([0; PAGE]);
                    // A page behind the end of the file is new.
                    let _ = disk.read(&mut *page, u64::from(change.number) * PAGE as u64);
                    (page, Vec::new())
                });
                change.apply(page);
                versions.push((sequence, page.clone()));
                changed.push(change.number);
            }
            self.broken.extend(self.order.log(epoch, sequence, changed));
            self.records += 1;
            bytes = &bytes[record.in_log()..];
        }
    }

    /// A page that is written to its place.
    fn page(&mut self, number: u32, page: &Page) {
        let is_same = |(_, other): &&(u64, Box<Page>)| other[12..] == page[12..];
        let version = self.pages.get(&number).and_then(|(_, versions)| versions.iter().rev().find(is_same));
        let broken = version.map_or(Some(Rule::RecordIsComplete), |&(version, _)| self.order.page(number, version));
        self.broken.extend(broken);
    }
}

impl Storage for OrderedDisk {
    fn bytes(&self) -> io::Result<u64> {
        self.disk.bytes()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.disk.reserve(bytes)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.disk.cut(bytes)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.read(bytes, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut seen = lock(&self.seen);
        for (index, page) in bytes.as_chunks::<PAGE>().0.iter().enumerate() {
            let number = (offset / PAGE as u64) as u32 + index as u32;
            if is_sealed(page, number, seen.header.store) {
                seen.page(number, page);
            }
        }
        self.disk.write(bytes, offset)
    }

    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let published = self.published();
        let mut seen = lock(&self.seen);
        let visible = seen.order.publish(published);
        seen.broken.extend(visible);
        self.disk.write_durably(bytes, offset)?;
        if offset < 2 * PAGE as u64 {
            let header = Header::parse(bytes.try_into().unwrap()).unwrap();
            let early = seen.order.header(header.epoch, header.end);
            seen.broken.extend(early);
            seen.headers += 1;
        } else {
            seen.log(&self.disk, bytes);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut seen = lock(&self.seen);
        self.disk.sync()?;
        seen.order.sync();
        Ok(())
    }
}

/// Opens a store that is empty, on a disk that checks the rules.
fn open(log_pages: u32) -> Result<(Store, Arc<Mutex<Seen>>)> {
    let disk = OnDisk(Disk::new(empty(log_pages), u64::MAX, Random(1)));
    let path = PathBuf::from("disk");
    let header = read_header(&path, &disk)?;
    let order = Order::new(header.epoch, header.sequence);
    let seen = Seen { order, header, pages: HashMap::new(), broken: Vec::new(), headers: 0, records: 0 };
    let (seen, weak) = (Arc::new(Mutex::new(seen)), Arc::new(OnceLock::new()));
    let storage = OrderedDisk { disk, seen: Arc::clone(&seen), shared: Arc::clone(&weak) };
    let (shared, header) = recover(path, Box::new(storage), 64 * PAGE, &RecoveryOptions::default())?;
    weak.set(Arc::downgrade(&shared)).unwrap();
    let flusher = Flusher::start_thread(&shared, header)?;
    Ok((Store::new(shared, flusher, ObjectOptions::DEFAULT)?, seen))
}

#[test]
fn a_store_keeps_the_order_on_which_recovery_relies() {
    for log_pages in [4, 16] {
        let (store, seen) = open(log_pages).unwrap();
        let (mut model, mut random) = (Model::default(), Random(5));
        for round in 0..150 {
            change(&store, &mut model, &mut random).unwrap();
            if round % 50 == 49 {
                store.compact().unwrap();
            }
        }
        assert!(both(&store).unwrap() == model);
        drop(store);
        let seen = lock(&seen);
        assert_eq!(seen.broken, [], "{log_pages} pages of log");
        assert!(seen.headers > 5 && seen.records > 100, "{} headers, {} records", seen.headers, seen.records);
    }
}

#[test]
fn each_order_can_be_wrong() {
    let mut order = Order::new(1, 0);
    assert_eq!(order.clone().log(3, 1, [7]), Some(Rule::LogAfterHeader));
    assert_eq!((order.publish(1), order.clone().page(7, 1)), (Some(Rule::PublishAfterLog), Some(Rule::PageAfterLog)));
    assert_eq!((order.log(1, 1, [7]), order.publish(1)), (None, None));
    assert_eq!(order.clone().header(2, 9), Some(Rule::HeaderAfterSync));
    assert_eq!(order.page(7, 1), None);
    assert_eq!(order.clone().header(2, 9), Some(Rule::HeaderAfterSync), "the page is written and not synced");
    order.sync();
    assert_eq!((order.header(2, 9), order.log(2, 2, [7]), order.log(3, 3, [7])), (None, None, None));
    assert_eq!(order.log(4, 4, [7]), Some(Rule::LogAfterHeader));
}
