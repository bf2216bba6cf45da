//! Lists the page kinds by the names that users type: `cargo run -p fieldstone-wire --example
//! page_kinds`.

use fieldstone_wire::PageKind;

fn main() {
    for kind in PageKind::ALL {
        println!("{kind:12} {:>8} KiB", kind.page_bytes() >> 10);
    }
}
