//! The numbers of the paper that a report compares: Basu, Gandhi, Chang, Hill and Swift, *Efficient
//! Virtual Memory for Big Memory Servers* (ISCA 2013), from the slides of a review (seed 003_).
//! Each has the words that it comes from; a test finds these in the slides.

/// The sentence on permissions, translated.
pub(crate) const READ_WRITE: &str = "more than 99 % of the reserved memory has read and write permission.";

/// Percentage of allocated memory with read-write permission.
pub(crate) const READ_WRITE_TABLE: [(&str, &str); 6] = [
    ("graph500", "99.96%"),
    ("memcached", "99.38%"),
    ("MySQL", "99.94%"),
    ("NPB/BT", "99.97%"),
    ("NPB/CG", "99.97%"),
    ("GUPS", "99.98%"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The sentence as printed.
    const ORIGINAL: &str = "Más del 99 % de la memoria reservada se hace con permisos de lectura y escritura.";

    #[test]
    fn the_slides_contain_each_number() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/seeds");
        let seed = std::fs::read_dir(folder)
            .ok()
            .and_then(|files| files.flatten().find(|file| file.file_name().to_string_lossy().starts_with("003_")));
        let Some(seed) = seed else {
            println!("SKIP seed 003_ is not beside the repository");
            return;
        };
        let text = std::fs::read_to_string(seed.path()).unwrap();
        assert!(text.contains(ORIGINAL));
        let heading = text.find("Percentage of allocated memory with read-write permission").unwrap();
        for (workload, percentage) in READ_WRITE_TABLE {
            assert!(text[heading..].contains(&format!("{workload}\t{percentage}")), "{workload}");
        }
    }
}
