//! What several tests need.

use std::time::{Duration, Instant};

use fieldstone_store::{ErrorKind, Store, StoreBuilder};

/// Opens a store that was just closed. A child that another test has forked meanwhile has its lock until the
/// child begins another program.
pub(crate) fn wait_and_open(builder: &StoreBuilder) -> Store {
    let start = Instant::now();
    loop {
        match builder.clone().open() {
            Err(error) if error.kind() == ErrorKind::Busy && start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}
