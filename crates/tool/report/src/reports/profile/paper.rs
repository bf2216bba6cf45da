//! The numbers of the paper that stand beside ours: Basu, Gandhi, Chang, Hill and Swift, *Efficient Virtual Memory for
//! Big Memory Servers* (ISCA 2013), as told by the slides of a review of it (seed 003_). Each is kept with the words
//! it comes from, and the test looks for them there.

/// On permissions, as the slides put it.
pub(crate) const READ_WRITE: &str = "Más del 99 % de la memoria reservada se hace con permisos de lectura y escritura.";

/// The same in English.
pub(crate) const READ_WRITE_SENSE: &str = "more than 99 % of the reserved memory has read and write permission.";

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

    #[test]
    fn the_slides_say_so() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/seeds");
        let seed = std::fs::read_dir(folder)
            .ok()
            .and_then(|files| files.flatten().find(|file| file.file_name().to_string_lossy().starts_with("003_")));
        let Some(seed) = seed else {
            println!("SKIP seed 003_ is not beside the repository");
            return;
        };
        let text = std::fs::read_to_string(seed.path()).unwrap();
        assert!(text.contains(READ_WRITE));
        let heading = text.find("Percentage of allocated memory with read-write permission").unwrap();
        for (workload, percentage) in READ_WRITE_TABLE {
            assert!(text[heading..].contains(&format!("{workload}\t{percentage}")), "{workload}");
        }
    }
}
