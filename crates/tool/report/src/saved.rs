//! Reports as files: JSON, distinguished by a schema string.

use crate::{Collapse, Error, GuardStats, HeapError, PagingStats, Profile, RunStats, Sharing};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The schema of `fieldstone run --repair --stats`, whose events are defined where repairs are
/// made.
pub const REPAIR_SCHEMA: &str = "fieldstone-repair/1";

/// The contents of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum SavedFile {
    /// The result of `fieldstone profile`.
    Profile(Box<Profile>),
    /// The result of `fieldstone run --region --stats`.
    RunStats(Box<RunStats>),
    /// The result of `fieldstone attach --huge --stats`.
    Collapse(Box<Collapse>),
    /// The result of `fieldstone sharing`.
    Sharing(Box<Sharing>),
    /// The result of `fieldstone run --repair --stats`, as it is in the file.
    Repair(Box<serde_json::Value>),
    /// The findings of `fieldstone run --guard-report`, one JSON object each.
    HeapErrors(Vec<HeapError>),
    /// The result of `fieldstone run --guard --stats`.
    GuardStats(Box<GuardStats>),
    /// The result of `fieldstone run --resident --stats`.
    PagingStats(Box<PagingStats>),
}

impl SavedFile {
    /// Reads the file at `path`. Fields that this version does not know are skipped. Of the statistics
    /// that `--stats-every` has written, the last ones count; a last line that is cut off is skipped.
    ///
    /// # Errors
    /// If the file cannot be read, is not JSON, has no known schema, is of another version, or does
    /// not fit its schema.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read(path).map_err(|cause| Error::Read { path: path.to_owned(), cause })?;
        if has_findings(&text) {
            return load_findings(&text, path);
        }
        let value = last_value(&text).map_err(|source| no_json(path.to_owned(), text.len(), source))?;
        let Some(schema) = value.get("schema").and_then(serde_json::Value::as_str).map(str::to_owned) else {
            return Err(Error::NoSchema { path: path.to_owned() });
        };
        match schema.as_str() {
            Profile::SCHEMA => decode(value, path, schema).map(|profile| Self::Profile(Box::new(profile))),
            RunStats::SCHEMA => decode(value, path, schema).map(|run| Self::RunStats(Box::new(run))),
            Collapse::SCHEMA => decode(value, path, schema).map(|done| Self::Collapse(Box::new(done))),
            REPAIR_SCHEMA => Ok(Self::Repair(Box::new(value))),
            GuardStats::SCHEMA => decode(value, path, schema).map(|stats| Self::GuardStats(Box::new(stats))),
            PagingStats::SCHEMA => decode(value, path, schema).map(|stats| Self::PagingStats(Box::new(stats))),
            Sharing::SCHEMA => decode(value, path, schema).map(|sharing| Self::Sharing(Box::new(sharing))),
            _ if schema.starts_with("fieldstone-") => Err(Error::OtherSchema { path: path.to_owned(), found: schema }),
            _ => Err(Error::NoSchema { path: path.to_owned() }),
        }
    }

    /// Reads the profile at `path`, for a command that can use nothing else.
    ///
    /// # Errors
    /// As [`SavedFile::load`], and [`Error::NotProfile`] if the file holds something else.
    pub fn load_profile(path: &Path) -> Result<Profile, Error> {
        match Self::load(path)? {
            Self::Profile(profile) => Ok(*profile),
            _ => Err(Error::NotProfile { path: path.to_owned() }),
        }
    }
}

/// The error for a file of `bytes` bytes that is no JSON.
fn no_json(path: PathBuf, bytes: usize, source: serde_json::Error) -> Error {
    if source.is_eof() { Error::Incomplete { path, bytes } } else { Error::NotJson { path, source } }
}

/// The last of one or several JSON values.
fn last_value(text: &[u8]) -> Result<serde_json::Value, serde_json::Error> {
    let mut last = None;
    for value in serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>() {
        match (value, &last) {
            (Ok(value), _) => last = Some(value),
            (Err(error), Some(_)) if error.is_eof() => {}
            (Err(error), _) => return Err(error),
        }
    }
    last.map_or_else(|| serde_json::from_slice(text), Ok)
}

/// Whether the first of several JSON objects is a finding of `run --guard-report`. That option leaves
/// an empty file if there was no finding.
fn has_findings(text: &[u8]) -> bool {
    if text.is_empty() {
        return true;
    }
    let first = serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>().next();
    matches!(first, Some(Ok(first)) if first.get("schema").is_some_and(|schema| schema == HeapError::SCHEMA))
}

fn load_findings(text: &[u8], path: &Path) -> Result<SavedFile, Error> {
    let all: Result<Vec<HeapError>, _> = serde_json::Deserializer::from_slice(text).into_iter().collect();
    let (path, schema) = (path.to_owned(), HeapError::SCHEMA.to_owned());
    all.map(SavedFile::HeapErrors).map_err(|source| Error::Malformed { path, schema, source })
}

fn decode<T: DeserializeOwned>(value: serde_json::Value, path: &Path, schema: String) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|source| Error::Malformed { path: path.to_owned(), schema, source })
}

/// `report` (a [`Profile`], a [`RunStats`], a summary, a diff) as indented JSON with a newline at
/// its end.
///
/// # Errors
/// [`Error::Encode`] if it cannot be written as JSON; the types of this crate can.
pub fn to_json(report: &impl Serialize) -> Result<String, Error> {
    let mut json = serde_json::to_string_pretty(report).map_err(|source| Error::Encode { source })?;
    json.push('\n');
    Ok(json)
}

/// `report` as one line.
///
/// # Errors
/// As [`to_json`].
pub fn to_json_line(report: &impl Serialize) -> Result<String, Error> {
    let mut json = serde_json::to_string(report).map_err(|source| Error::Encode { source })?;
    json.push('\n');
    Ok(json)
}

/// Writes `report` to `path` as [`to_json`] does, and as [`write()`] does.
///
/// # Errors
/// [`Error::Encode`] and [`Error::Write`].
pub fn save(report: &impl Serialize, path: &Path) -> Result<(), Error> {
    write(&to_json(report)?, path)
}

/// Writes `text` to `path`. A file that was there is replaced once all of the new one is written,
/// where its directory allows that.
///
/// # Errors
/// [`Error::Write`]: an old file is unchanged then.
pub fn write(text: &str, path: &Path) -> Result<(), Error> {
    let failed = |cause| Error::Write { path: path.to_owned(), cause };
    // The target of a link is replaced, not the link; a device or a pipe is written to.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = fs::symlink_metadata(&target);
    if old.as_ref().is_ok_and(|old| !old.is_file()) {
        return fs::write(&target, text).map_err(failed);
    }
    let mut partial = target.clone().into_os_string();
    partial.push(format!(".{}", std::process::id()));
    let replaced = fs::write(&partial, text)
        .and_then(|()| old.map_or(Ok(()), |old| fs::set_permissions(&partial, old.permissions())))
        .and_then(|()| fs::rename(&partial, &target));
    replaced.or_else(|error| {
        let _ = fs::remove_file(&partial);
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => fs::write(&target, text).map_err(failed),
            _ => Err(failed(error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Finding, fixture};
    use proptest::prelude::*;

    fn load_text(text: &str) -> Result<SavedFile, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved.json");
        std::fs::write(&path, text).unwrap();
        SavedFile::load(&path)
    }

    #[test]
    fn each_kind_of_file_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        let mut profile = fixture::profile();
        profile.findings = vec![
            Finding::OutputVaries { kind: "4k".into() },
            Finding::TimedOut { kind: "thp".into(), limit_s: 2.5, runs: 1 },
        ];
        save(&profile, &path).unwrap();
        assert!(SavedFile::load_profile(&path).unwrap() == profile);
        save(&fixture::run_stats(), &path).unwrap();
        assert_eq!(SavedFile::load(&path).unwrap(), SavedFile::RunStats(Box::new(fixture::run_stats())));
        assert!(matches!(SavedFile::load_profile(&path), Err(Error::NotProfile { .. })));
        let done = Collapse { schema: Collapse::SCHEMA.into(), ..Collapse::default() };
        save(&done, &path).unwrap();
        assert_eq!(SavedFile::load(&path).unwrap(), SavedFile::Collapse(Box::new(done)));
    }

    #[test]
    fn a_file_of_findings_has_one_object_a_line() {
        let error =
            |kind: &str| HeapError { schema: HeapError::SCHEMA.into(), kind: kind.into(), ..HeapError::default() };
        let all = [error("double-free"), error("invalid-free")];
        let text: String = all.iter().map(|error| serde_json::to_string(error).unwrap() + "\n").collect();
        assert_eq!(load_text(&text).unwrap(), SavedFile::HeapErrors(all.to_vec()));
        assert_eq!(load_text("").unwrap(), SavedFile::HeapErrors(Vec::new()), "no findings");
        let cut_off = load_text(&text[..text.len() - 9]).unwrap_err().to_string();
        assert!(cut_off.contains("fieldstone-guard/1"), "{cut_off}");
    }

    #[test]
    fn the_last_whole_line_of_repeated_statistics_counts() {
        let stats =
            |bytes| PagingStats { schema: PagingStats::SCHEMA.into(), bound_bytes: bytes, ..PagingStats::default() };
        let text = to_json_line(&stats(1)).unwrap() + &to_json_line(&stats(2)).unwrap();
        assert_eq!(load_text(&text).unwrap(), SavedFile::PagingStats(Box::new(stats(2))));
        assert_eq!(load_text(&text[..text.len() - 9]).unwrap(), SavedFile::PagingStats(Box::new(stats(1))));
        assert!(load_text(&format!("{text}}}")).is_err());
    }

    #[test]
    fn an_old_file_stays_until_all_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("page.html"), folder.path().join("link"));
        write("first", &path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write("second", &link).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(matches!(write("third", Path::new("/dev/full")), Err(Error::Write { .. })));
        // Where the new file has no room for its name, the old one is as it was.
        let long = folder.path().join("x".repeat(255));
        fs::write(&long, "old").unwrap();
        assert!(write("new", &long).is_err());
        assert_eq!(fs::read_to_string(&long).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left behind");
    }

    #[test]
    fn fields_of_a_later_version_are_skipped_and_missing_ones_are_empty() {
        let mut value = serde_json::to_value(fixture::profile()).unwrap();
        value["added"] = 1.into();
        value["samples"][0]["added"] = serde_json::json!({"deep": [1]});
        value["findings"] = serde_json::json!([{"finding": "added-later", "kind": "thp"}]);
        value.as_object_mut().unwrap().remove("warnings");
        value["machine"].as_object_mut().unwrap().remove("swap_bytes");
        let SavedFile::Profile(profile) = load_text(&value.to_string()).unwrap() else { panic!("not a profile") };
        assert_eq!((profile.warnings.len(), profile.machine.swap_bytes), (0, 0));
        assert_eq!(profile.findings, [Finding::Unknown]);
        assert_eq!(profile.samples.len(), fixture::profile().samples.len());
    }

    #[test]
    fn a_trace_comes_back_and_a_file_from_before_traces_opens() {
        let profile = fixture::profile();
        let SavedFile::Profile(back) = load_text(&to_json(&profile).unwrap()).unwrap() else { panic!("not a profile") };
        assert_eq!(back.translation, profile.translation);
        let mut value = serde_json::to_value(&profile).unwrap();
        value["translation"] = serde_json::json!({"processor": {"name": "zen4"}, "configurations": [{"name": "4k"}]});
        let SavedFile::Profile(sparse) = load_text(&value.to_string()).unwrap() else { panic!("not a profile") };
        assert_eq!(sparse.translation.unwrap().configurations[0].name, "4k");
        value.as_object_mut().unwrap().remove("translation");
        let SavedFile::Profile(before) = load_text(&value.to_string()).unwrap() else { panic!("not a profile") };
        assert_eq!(before.translation, None);
        assert!(!to_json(&*before).unwrap().contains("translation"));
    }

    #[test]
    fn each_wrong_file_has_its_own_error() {
        assert!(matches!(SavedFile::load(Path::new("/nowhere/at/all.json")), Err(Error::Read { .. })));
        for (text, part) in [
            (r#"{"schema": "fieldstone-profile/1", "progr"#, "incomplete: it ends at byte 41"),
            ("<html>", "is not JSON"),
            ("[1, 2]", "no schema of Fieldstone"),
            (r#"{"schema": 1}"#, "no schema of Fieldstone"),
            (r#"{"schema": "somebody-else/1"}"#, "no schema of Fieldstone"),
            (r#"{"schema": "fieldstone-profile/2"}"#, "fieldstone-profile/2; this version reads"),
            (r#"{"schema": "fieldstone-profile/1"}"#, "missing field `program`"),
            (r#"{"schema": "fieldstone-run/1", "command": 3}"#, "does not fit"),
        ] {
            let error = load_text(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("saved.json"), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_survive_readers_that_know_doubles_only() {
        let mut stats = fixture::run_stats();
        let address = (1u64 << 57) - 4096;
        stats.processes[0].region.limit = address;
        let value: serde_json::Value = serde_json::from_str(&to_json(&stats).unwrap()).unwrap();
        let limit = &value["processes"][0]["region"]["limit"];
        assert_eq!(limit.as_u64(), Some(address));
        assert_eq!(format!("{:.0}", limit.as_f64().unwrap()), address.to_string());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn measured_values_come_back_exactly(value in 1e-9f64..1e9) {
            let sample = crate::MeasuredRun { value, ..crate::MeasuredRun::default() };
            let back: crate::MeasuredRun = serde_json::from_str(&to_json(&sample).unwrap()).unwrap();
            prop_assert_eq!(back.value, value);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{1,200}") {
            prop_assert!(load_text(&text).is_err());
        }
    }
}
