//! The command's side of a page exchange: threads that keep the pages of `run --resident` on a server.
//!
//! ```text
//! request ─→ wakes one of the threads ─→ it finds the channel ─→ server of this process ─→ answer
//! ```

use std::array::from_fn;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use anyhow::Context;
use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_paging::{Device, Page, StoreError};
use fieldstone_sys::signals::spawn_without_signals;
use fieldstone_wire::page_exchange::{Channel, Operation, PageExchange, REQUESTED, SERVED};
use fieldstone_wire::paging::PROCESSES;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::output::message;
use crate::run::remote_pages::RemotePages;

/// Requests that are served at one time.
const THREADS: u32 = 8;

/// The threads, and the pages that they keep. Both end when it is dropped.
pub(super) struct PageServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    record: SharedRecord<PageExchange>,
    remote: RemotePages,
    /// Each process has its own pages; `None` if there is no way to them.
    devices: [OnceLock<Option<Box<dyn Device>>>; PROCESSES],
    is_ending: AtomicBool,
    /// Whether a server that does not answer was reported.
    has_warned: AtomicBool,
}

impl PageServer {
    /// Starts the threads.
    pub(super) fn start(remote: RemotePages) -> anyhow::Result<Self> {
        let record = SharedRecord::create_with(|_| ())?;
        let shared = Arc::new(Shared {
            record,
            remote,
            devices: from_fn(|_| OnceLock::new()),
            is_ending: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        });
        let spawn = |_| {
            let shared = Arc::clone(&shared);
            spawn_without_signals("page-server", move || shared.serve())
        };
        let threads = (0..THREADS).map(spawn).collect::<Result<_, _>>().context("cannot start a thread")?;
        Ok(Self { shared, threads })
    }

    /// The path of the exchange.
    pub(super) fn path(&self) -> String {
        self.shared.record.path()
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Release);
        let requests = &self.shared.record.record().requests;
        requests.fetch_add(1, Release);
        let _ = futex::wake(requests, futex::Flags::empty(), THREADS);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for device in self.shared.devices.iter().filter_map(|device| device.get()?.as_ref()) {
            if let Err(left) = device.delete_all() {
                message(format_args!("{left}"));
            }
        }
    }
}

impl Shared {
    fn serve(&self) {
        let record = self.record.record();
        loop {
            let seen = record.requests.load(Acquire);
            for (process, channels) in record.processes.iter().enumerate() {
                for channel in channels {
                    if channel.advance(REQUESTED, SERVED) {
                        channel.answer(self.answer(process, channel));
                        let _ = futex::wake(&channel.state, futex::Flags::empty(), 1);
                    }
                }
            }
            if self.is_ending.load(Acquire) {
                return;
            }
            // An error is a change or a signal: the loop looks again.
            let _ = futex::wait(&record.requests, futex::Flags::empty(), seen, None);
        }
    }

    fn answer(&self, process: usize, channel: &Channel) -> Result<usize, i32> {
        let Some(device) = self.devices[process].get_or_init(|| self.remote.open().ok()) else {
            return Err(Errno::IO.raw_os_error());
        };
        let (operation, count) = channel.requested();
        let numbers: Vec<u32> = channel.numbers().collect();
        let mut pages: Vec<Page> = vec![[0; size_of::<Page>()]; count];
        let result = match operation {
            Operation::Write => {
                pages.iter_mut().enumerate().for_each(|(index, page)| channel.read_page(index, page));
                // The numbers of a request are adjacent; one without any writes nothing.
                let first = numbers.first().copied().unwrap_or(0);
                device.write(first, &pages.iter().collect::<Vec<_>>())
            }
            Operation::Read => device.read(&numbers, &mut pages).map(|()| {
                pages.iter().enumerate().for_each(|(index, page)| channel.write_page(index, page));
                count
            }),
        };
        if let Err(StoreError::Failed(errno)) = result
            && !self.has_warned.swap(true, Relaxed)
        {
            let (remote, seconds) = (&self.remote, self.remote.timeout.as_secs_f32());
            if errno == Errno::NODATA.raw_os_error() {
                message(format_args!(
                    "the page store {remote} no longer has pages that were stored there: they are lost\n\
                     try: a store in which nothing else deletes keys or objects"
                ));
            } else {
                message(format_args!(
                    "the page store {remote} has not answered for {seconds} s: pages that are stored there are lost while \
                     it does not\ntry: --page-store-timeout with more seconds, and start the server again meanwhile"
                ));
            }
        }
        result.map_err(|error| match error {
            StoreError::Full => Errno::NOSPC.raw_os_error(),
            StoreError::Failed(errno) => errno,
            _ => Errno::IO.raw_os_error(),
        })
    }
}
