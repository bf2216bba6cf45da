//! Pages in an object store: in a directory, through the interface of all object stores.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use crate::fixture::{can_page, largest, paged, stderr};
use crate::redis_store::{bounded_memory, same_as_alone};
use crate::wait::wait_until;

/// Whether the command was built with object stores.
fn has_object_stores() -> bool {
    let output = paged("--resident 24M --page-store opendal:fs:///proc", &["/bin/true"]).output().unwrap();
    let is_without = stderr(&output).contains("this fieldstone was built without them");
    if is_without {
        println!("SKIP the command was built without object stores: --features fieldstone/opendal");
    }
    !is_without
}

/// The number of files below a directory.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

#[test]
fn pages_come_back_from_objects_which_are_deleted_at_the_end() {
    if !(can_page() && has_object_stores()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = format!("--resident 8M --page-store lz4:512K,opendal:fs://{}", directory.path().display());
    let stats = same_as_alone(&options, &bounded_memory("16M", "3000"));
    let store = largest(&stats).stores.iter().find(|store| store.name == "opendal").unwrap();
    assert!(store.loaded_pages > 500, "{store:?}");
    assert_eq!(files(directory.path()), 0);
}

#[test]
fn objects_that_are_lost_raise_sigbus_after_a_message() {
    if !(can_page() && has_object_stores()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = bounded_memory("16M", "3000");
    let options = format!("--resident 8M --page-store opendal:fs://{}", directory.path().display());
    let running = paged(&options, &program).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("pages are in the store", || (files(directory.path()) > 500).then_some(()));
    // The store goes on writing: what was there is lost.
    let moved = directory.path().join("moved");
    fs::rename(directory.path().join("fieldstone"), &moved).unwrap();
    let output = running.wait_with_output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("no longer has pages that were stored there: they are lost\ntry: "), "{text}");
    assert!(
        text.contains("from the store opendal: it no longer has the page (ENODATA); its thread gets SIGBUS"),
        "{text}"
    );
    assert_eq!(output.status.signal(), Some(7), "{text}");
}

#[test]
fn object_stores_that_cannot_keep_pages_are_refused() {
    if !has_object_stores() {
        return;
    }
    let unused_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let unreachable = format!(
        "s3://pages/a?endpoint=http://127.0.0.1:{unused_port}&region=x&access_key_id=a&secret_access_key=secret"
    );
    for (address, why) in [
        ("none://pages", "cannot use the object store none://pages: "),
        ("fs:///proc", "cannot store pages in the object store fs:"),
        (&unreachable, "cannot store pages in the object store s3:pages"),
    ] {
        let options = format!("--resident 24M --page-store-timeout 1 --page-store opendal:{address}");
        let output = paged(&options, &["/bin/true"]).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(why) && text.contains("\ntry: ") && !text.contains("secret"), "{text}");
    }
}
