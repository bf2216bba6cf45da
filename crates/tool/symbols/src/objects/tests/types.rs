//! Types of blocks, by the variables that point to them while a program runs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fieldstone_sharing::Object;

use super::super::Objects;
use super::program::{Running, build, compilers, samples};

const LINEAR_REGRESSION: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/workloads/src/sharing/linear_regression.c");
/// Samples, so that each of three threads on two processors is among them.
const ENOUGH: usize = 64;

fn names(object: &Object) -> Vec<&str> {
    object.members.iter().map(|member| member.name.as_str()).collect()
}

/// The paper's program, in the midst of its loop.
struct Regression(Child);

impl Drop for Regression {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Regression {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let child = Command::new(program)
            .args(["--points", "100000", "--rounds", "1000000"])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Where its array is: what the variable holds, by nm and the kernel.
    fn array(&self, program: &Path) -> u64 {
        let listing = String::from_utf8(Command::new("nm").arg(program).output().unwrap().stdout).unwrap();
        let line = listing.lines().find(|line| line.ends_with(" b array")).unwrap();
        let symbol = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        let first = maps.lines().find(|line| line.ends_with(program.to_str().unwrap())).unwrap();
        let bias = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        let mut word = [0; 8];
        let memory = fs::File::open(format!("/proc/{}/mem", self.0.id())).unwrap();
        memory.read_exact_at(&mut word, bias + symbol).unwrap();
        u64::from_le_bytes(word)
    }
}

#[test]
fn linear_regressions_array_is_known_by_its_threads() {
    for compiler in compilers() {
        for (way, arguments) in [
            ("-g -O0", &[][..]),
            ("-g -O0", &["--shift", "24", "--threads", "3"][..]),
            ("-g -O0 -fomit-frame-pointer", &[][..]),
            ("-g -O2", &[][..]),
        ] {
            let room = tempfile::tempdir().unwrap();
            let program = room.path().join("linear_regression");
            if !build(compiler, way, Path::new(LINEAR_REGRESSION), &program) {
                continue;
            }
            let running = Regression::start(&program, arguments);
            let Some(samples) = samples(running.0.id(), 3 * ENOUGH) else { return };
            let array = running.array(&program);
            let mut objects = Objects::of(running.0.id()).unwrap();
            // Element 1, the last of its sums. The first samples are of the main thread, which draws points.
            let object = objects.typed(array + 64 + 56, &samples[samples.len() - ENOUGH..]);
            let object = object.unwrap_or_else(|| panic!("{compiler} {way} {arguments:?}: no type"));
            assert_eq!((object.name.as_str(), object.stride, object.on_heap), ("lreg_args", 64, true), "{object:?}");
            assert_eq!(object.address, array, "{compiler} {way} {arguments:?}: {object:?}");
            assert!(object.elements >= 2, "{object:?}");
            assert_eq!(names(&object), ["tid", "points", "num_elems", "SX", "SY", "SXX", "SYY", "SXY"]);
            let declared = |name| object.members.iter().find(|member| member.name == name).unwrap().declaration.clone();
            assert_eq!([declared("tid"), declared("points")], ["pthread_t tid", "POINT_T *points"]);
            assert!(declared("SX").starts_with("long long") && declared("SX").ends_with(" SX"));
        }
    }
}

/// The type that a thread which runs in a function of this name gives an address.
fn typed(compiler: &str, way: &str, name: &str, block: &str, offset: u64) -> Option<(Option<Object>, u64, u64)> {
    let running = Running::start(compiler, way, &[name])?;
    let samples = samples(running.pid(), ENOUGH)?;
    let (start, bytes) = running.said(block);
    Some((running.objects().typed(start + offset, &samples), start, bytes))
}

#[test]
fn a_pointer_a_member_and_a_global_lead_to_the_type() {
    for compiler in compilers() {
        for way in ["-g -O0", "-g -O2", "-g -O1 -no-pie -gdwarf-4"] {
            // sums[2].sum, by its own pointer; sums[1].square, by the worker's, inlined; sums[1].sum, by the variable of the file.
            for (name, offset) in [("by_pointer", 32), ("through_worker", 24), ("by_index", 16)] {
                let Some((object, start, _)) = typed(compiler, way, name, "sums", offset) else { continue };
                let object = object.unwrap_or_else(|| panic!("{compiler} {way} {name}: no type"));
                assert_eq!(
                    (object.name.as_str(), object.stride),
                    ("partial", 16),
                    "{compiler} {way} {name}: {object:?}"
                );
                assert_eq!((object.address, object.elements, object.on_heap), (start, 4, true), "{name}");
                assert_eq!(names(&object), ["sum", "square"]);
            }
        }
    }
}

#[test]
fn numbers_packets_and_the_stack_are_told_too() {
    for way in ["-g -O0", "-g -O2"] {
        if let Some((object, start, bytes)) = typed("cc", way, "by_number", "numbers", 8) {
            let object = object.unwrap();
            assert_eq!(
                (object.name.as_str(), object.stride, object.address),
                ("numbers", 8, start),
                "{way}: {object:?}"
            );
            assert_eq!(
                (object.elements, object.members[0].declaration.as_str()),
                (bytes / 8, "volatile uint64_t value")
            );
        }
        if let Some((object, start, bytes)) = typed("cc", way, "by_packet", "message", 32) {
            let object = object.unwrap();
            assert_eq!(
                (object.name.as_str(), object.address, object.elements),
                ("packet", start, 1),
                "{way}: {object:?}"
            );
            assert_eq!((object.stride, names(&object)), (bytes, vec!["length"]), "its words have no known number");
        }
        if let Some((object, start, _)) = typed("cc", way, "on_stack", "here", 24) {
            let object = object.unwrap();
            assert_eq!(
                (object.name.as_str(), object.stride, object.on_heap),
                ("partial", 16, false),
                "{way}: {object:?}"
            );
            assert!(object.address <= start + 16 && object.address + object.elements * 16 > start + 16);
        }
    }
}

#[test]
fn without_debug_information_there_is_no_type() {
    if let Some((object, ..)) = typed("cc", "-O0", "by_pointer", "sums", 32) {
        assert_eq!(object, None);
    }
}
