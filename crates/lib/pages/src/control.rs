//! Taking and releasing control of memory: the process-wide setup that a region needs, and its
//! order.

#![allow(unsafe_code, reason = "populates memory")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::controlled_range::ControlledRange;
use crate::error::{Error, Result};
use crate::mechanism::Mechanism;
use crate::memory::Memory;
use crate::mprotect_fill::MprotectFill;
use crate::protect::mprotect;
use crate::region::{Handler, Region, RegionConfig};
use crate::shared_userfaultfd::{self, Delivery, SharedUserfaultfd, shared_userfaultfd};
use crate::{fault_workers, fork, registry, signal};

/// What a fork does in the parent and in the child.
static FORK_HOOKS: fork::Hooks = fork::Hooks { lock: registry::lock, unlock: registry::unlock, reset: reset_in_child };

/// Drops the parent's state, in a child with one thread.
fn reset_in_child() {
    registry::reset_readers_in_child();
    registry::each_in_child(|region| region.make_plain());
    shared_userfaultfd::reset_in_child();
    fault_workers::reset_in_child();
}

fn start_workers(userfaultfd: &'static SharedUserfaultfd) -> io::Result<()> {
    fault_workers::serve_userfaultfd(userfaultfd, signal::send_fault)
}

impl Region {
    /// Takes control of memory; every page is accessible, or missing.
    pub(crate) fn new(
        memory: &Memory,
        config: RegionConfig,
        mprotect_fill: Option<MprotectFill>,
        handler: Handler,
    ) -> Result<Box<Self>> {
        let RegionConfig { mechanism, watch, modes } = config;
        let range = memory.start()..memory.start() + memory.bytes();
        let delivery = match mechanism {
            Mechanism::UserfaultThread => Some(Delivery::Thread),
            Mechanism::UserfaultSignal => Some(Delivery::Signal),
            Mechanism::Scan => Some(Delivery::Scan),
            Mechanism::ProtectThread | Mechanism::ProtectSignal => None,
        };
        let (start, bytes) = (memory.start(), memory.bytes());
        let failed = |call| move |error: io::Error| Error::system(call, start, bytes, error);
        fork::watch(&FORK_HOOKS);
        let userfaultfd = delivery
            .map(|delivery| shared_userfaultfd(delivery, start_workers))
            .transpose()
            .map_err(failed("userfaultfd"))?;
        if mechanism.is_protect() || mechanism.is_in_signal() {
            signal::install().map_err(failed("sigaction"))?;
        }
        if mechanism == Mechanism::ProtectThread {
            fault_workers::serve_signals().map_err(failed("pthread_create"))?;
        }
        memory.take_control()?;
        let mut region = Box::new(Self {
            controlled: ControlledRange {
                memory: memory.share(),
                range: range.clone(),
                page_bytes: memory.page_bytes(),
                mechanism,
                watch,
                userfaultfd,
                generation: fork::generation(),
                mprotect_fill,
                missing: modes.missing,
                is_closed_in_child: AtomicBool::new(false),
            },
            handler,
            pins: AtomicUsize::new(0),
        });
        registry::insert(&region);
        if let Some(userfaultfd) = userfaultfd {
            if let Err(error) = userfaultfd.run(|fd| fd.register(range.clone(), modes)) {
                // Another userfaultfd may have registered the memory: this one must not unregister
                // it.
                region.controlled.userfaultfd = None;
                return Err(failed("UFFDIO_REGISTER")(error));
            }
            // Populating missing pages would fill them all.
            if modes.write_protect && !userfaultfd.unpopulated {
                populate(memory)?;
            }
        }
        Ok(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // First: a running handler must find its region unchanged.
        registry::remove(self);
        // In a child the descriptor refers to the parent's memory.
        if self.check_generation().is_ok() {
            if let Some(userfaultfd) = self.userfaultfd {
                // Waiting threads find the memory plain or unmapped. Unregistering itself wakes
                // only threads that wait for missing pages.
                let _ = userfaultfd.run(|fd| fd.unregister(self.range.clone()).and(fd.wake(self.range.clone())));
            } else {
                let _ = mprotect(self.range.clone(), libc::PROT_READ | libc::PROT_WRITE);
            }
        }
        self.memory.release_control();
    }
}

/// Before Linux 6.4, write protection does not hold on untouched pages.
fn populate(memory: &Memory) -> Result<()> {
    // SAFETY: populating for reading changes no contents.
    let done =
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.bytes(), rustix::mm::Advice::LinuxPopulateRead) };
    done.map_err(|errno| Error::system("madvise(POPULATE_READ)", memory.start(), memory.bytes(), errno))
}
