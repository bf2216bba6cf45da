//! The message about a page that its store does not return.

use fieldstone_paging::StoreError;
use fieldstone_preload::line;

/// Prints the message. The pager does not try again: the thread that needs the page gets `SIGBUS`.
pub(crate) fn report(page: usize, store: &'static str, error: StoreError) -> bool {
    line::print(format_args!(
        "fieldstone: cannot bring back the page {page:#x} from the store {store}: {error}; its thread gets SIGBUS"
    ));
    false
}
