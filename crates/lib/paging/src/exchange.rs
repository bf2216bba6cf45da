//! The store of `run --resident` whose pages the `fieldstone` command keeps on a server.
//!
//! ```text
//! pages ─→ a free channel ─→ request ─→ the command wakes up ─→ server ─→ answer
//! ```
//! A request waits for its answer as long as the command tries to reach the server. If the command
//! has ended, the request fails within a tenth of a second.

use core::ffi::CStr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use fieldstone_wire::page_exchange::{
    ANSWERED, CHANNELS, Channel, EXCHANGE_PAGES, IDLE, Operation, PageExchange, REQUESTED, SERVED,
};
use fieldstone_wire::paging::STORE_NAMES;
use linux_raw_sys::general;

use crate::device::Device;
use crate::kernel::{self, EIO, ENOENT, ENOSPC, ETIMEDOUT, now_ns};
use crate::lock::Lock;
use crate::store::{Page, StoreError};

/// Milliseconds after which a waiting process looks whether the command has ended.
const LOOK: u32 = 100;

/// A process's side of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The record, which stays mapped.
    pub record: &'static PageExchange,
    /// The path by which it was opened, which ends with the command.
    pub path: &'static CStr,
    /// The index of the process.
    pub process: usize,
    /// Milliseconds that a request waits.
    pub timeout_ms: u32,
    /// The index of the store, whose pages the command keeps.
    pub store: usize,
}

/// The command, as a device.
#[derive(Debug)]
pub(crate) struct Command {
    exchange: Exchange,
    channels: [Lock<()>; CHANNELS],
    has_ended: AtomicBool,
}

impl Command {
    pub(crate) const fn new(exchange: Exchange) -> Self {
        Self { exchange, channels: [const { Lock::new(()) }; CHANNELS], has_ended: AtomicBool::new(false) }
    }

    /// Makes a request, and passes its channel and the number of its pages to `finish`.
    fn call(
        &self,
        operation: Operation,
        numbers: &[u32],
        fill: impl Fn(&Channel),
        finish: impl FnOnce(&Channel, usize),
    ) -> Result<usize, StoreError> {
        if self.has_ended.load(Relaxed) {
            return Err(StoreError::Failed(EIO));
        }
        let free = self.channels.iter().enumerate().find_map(|(index, lock)| Some((index, lock.try_acquire()?)));
        let (index, _held) = free.unwrap_or_else(|| (0, self.channels[0].acquire()));
        let channel = &self.exchange.record.processes[self.exchange.process][index];
        // The answer to a request that timed out.
        channel.advance(ANSWERED, IDLE);
        if channel.state.load(Acquire) != IDLE {
            return Err(StoreError::Failed(ETIMEDOUT));
        }
        fill(channel);
        channel.request(operation, numbers);
        self.exchange.record.requests.fetch_add(1, AcqRel);
        kernel::wake_one_shared(&self.exchange.record.requests);
        self.await_answer(channel)?;
        let result = channel.answered().map_err(|errno| match errno {
            ENOSPC => StoreError::Full,
            errno => StoreError::Failed(errno),
        });
        if let Ok(done) = result {
            finish(channel, done);
        }
        channel.advance(ANSWERED, IDLE);
        result
    }

    fn await_answer(&self, channel: &Channel) -> Result<(), StoreError> {
        let end = now_ns() + u64::from(self.exchange.timeout_ms) * 1_000_000;
        loop {
            match channel.state.load(Acquire) {
                ANSWERED => return Ok(()),
                state => kernel::wait_while_shared(&channel.state, state, LOOK),
            }
            if matches!(channel.state.load(Acquire), REQUESTED | SERVED) {
                // The path names a descriptor of the command.
                let look = kernel::open(self.exchange.path, general::O_PATH | general::O_CLOEXEC);
                if look.is_err_and(|errno| errno == ENOENT) {
                    self.has_ended.store(true, Relaxed);
                    return Err(StoreError::Failed(EIO));
                }
                if now_ns() > end {
                    channel.advance(REQUESTED, IDLE);
                    return Err(StoreError::Failed(ETIMEDOUT));
                }
            }
        }
    }
}

impl Device for Command {
    fn name(&self) -> &'static str {
        STORE_NAMES[self.exchange.store]
    }

    fn write(&self, first: u32, pages: &[&Page]) -> Result<usize, StoreError> {
        let pages = &pages[..pages.len().min(EXCHANGE_PAGES)];
        let numbers: [u32; EXCHANGE_PAGES] = core::array::from_fn(|index| first + index as u32);
        let fill = |channel: &Channel| {
            pages.iter().enumerate().for_each(|(index, page)| channel.write_page(index, page));
        };
        self.call(Operation::Write, &numbers[..pages.len()], fill, |_, _| ())
    }

    fn read(&self, numbers: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        for (numbers, pages) in numbers.chunks(EXCHANGE_PAGES).zip(pages.chunks_mut(EXCHANGE_PAGES)) {
            let wanted = numbers.len();
            let take = |channel: &Channel, done: usize| {
                pages[..done].iter_mut().enumerate().for_each(|(index, page)| channel.read_page(index, page));
            };
            if self.call(Operation::Read, numbers, |_| (), take)? < wanted {
                return Err(StoreError::Failed(EIO));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::sync::atomic::Ordering::SeqCst;

    use fieldstone_wire::paging::REDIS;

    use super::*;
    use crate::kernel::PAGE;

    /// An exchange in this process's memory, for a path that exists or not.
    fn exchange(path: &'static CStr, timeout_ms: u32) -> Exchange {
        // SAFETY: a record consists of integers, for which zeros are valid.
        #[allow(unsafe_code, reason = "makes a record as a file has it")]
        let record = Box::leak(unsafe { Box::<PageExchange>::new_zeroed().assume_init() });
        Exchange { record, path, process: 3, timeout_ms, store: REDIS }
    }

    #[test]
    fn pages_are_exchanged_by_turns() {
        let exchange = exchange(c"/proc/self/exe", 10_000);
        let command = Command::new(exchange);
        let page: Page = core::array::from_fn(|at| (at % 251) as u8);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let channel = &exchange.record.processes[3][0];
                let mut kept = [0; PAGE];
                for expected in [Operation::Write, Operation::Read] {
                    while !channel.advance(REQUESTED, SERVED) {
                        std::thread::yield_now();
                    }
                    let (operation, count) = channel.requested();
                    assert_eq!((operation, count), (expected, 1));
                    assert_eq!(channel.numbers().next(), Some(70));
                    match operation {
                        Operation::Write => channel.read_page(0, &mut kept),
                        Operation::Read => channel.write_page(0, &kept),
                    }
                    channel.answer(Ok(1));
                    kernel::wake_one_shared(&channel.state);
                }
            });
            assert_eq!(command.write(70, &[&page]), Ok(1));
            let mut back = [[0; PAGE]];
            assert_eq!(command.read(&[70], &mut back), Ok(()));
            assert!(back[0] == page);
        });
        assert_eq!(exchange.record.requests.load(SeqCst), 2);
    }

    #[test]
    fn a_command_that_has_ended_or_does_not_answer_is_an_error() {
        let page = [1; PAGE];
        let ended = Command::new(exchange(c"/proc/self/fd/999999", 60_000));
        assert_eq!(ended.write(0, &[&page]), Err(StoreError::Failed(EIO)));
        assert_eq!(ended.read(&[0], &mut [page]), Err(StoreError::Failed(EIO)));
        let slow = Command::new(exchange(c"/proc/self/exe", 150));
        assert_eq!(slow.write(0, &[&page]), Err(StoreError::Failed(ETIMEDOUT)));
        let channel = &slow.exchange.record.processes[3][0];
        assert_eq!(channel.state.load(SeqCst), IDLE, "the request is taken back");
        channel.state.store(SERVED, SeqCst);
        assert_eq!(slow.write(0, &[&page]), Err(StoreError::Failed(ETIMEDOUT)), "the command still works on it");
    }
}
