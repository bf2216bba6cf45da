//! Prints the memory of a process by page size: `cargo run -p fieldstone-sys --example page_sizes
//! -- PID`. Without a process number it prints its own.

use fieldstone_sys::{huge_pages, smaps};

fn main() -> fieldstone_sys::Result<()> {
    let pid = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(std::process::id);
    let mappings = smaps::read(pid)?;
    let sum = |bytes: fn(&smaps::Mapping) -> u64| mappings.iter().map(bytes).sum::<u64>();
    let (resident, huge) = (sum(|mapping| mapping.present_bytes()), sum(|mapping| mapping.anon_huge_bytes));
    let hugetlb = sum(|mapping| mapping.present_bytes() - mapping.resident_bytes);
    println!("process {pid}: {} KiB resident in {} mappings", resident >> 10, mappings.len());
    println!("  transparent huge pages {:>12} KiB", huge >> 10);
    println!("  reserved huge pages    {:>12} KiB", hugetlb >> 10);
    for pool in huge_pages::pools() {
        println!("pool of {} KiB pages: {} available", pool.page_bytes >> 10, pool.available());
    }
    Ok(())
}
