//! Types of heap blocks and stack memory, inferred from variables of running threads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fieldstone_sharing::ObjectLayout;

use super::super::Objects;
use super::program::{TestProgram, build, compilers, samples};

const LINEAR_REGRESSION: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/workloads/src/sharing/linear_regression.c");
/// Number of samples that contains each of three threads on two processors.
const ENOUGH: usize = 64;

fn names(object: &ObjectLayout) -> Vec<&str> {
    object.members.iter().map(|member| member.name.as_str()).collect()
}

/// The paper's linear regression, in its main loop.
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

    /// The address of its array: the value of the variable, whose address is found by nm.
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
fn the_array_of_linear_regression_has_its_structure_type() {
    for compiler in compilers() {
        for (options, arguments) in [
            ("-g -O0", &[][..]),
            ("-g -O0", &["--shift", "24", "--threads", "3"][..]),
            ("-g -O0 -fomit-frame-pointer", &[][..]),
            ("-g -O2", &[][..]),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let program = directory.path().join("linear_regression");
            if !build(compiler, options, Path::new(LINEAR_REGRESSION), &program) {
                continue;
            }
            let running = Regression::start(&program, arguments);
            let Some(samples) = samples(running.0.id(), 3 * ENOUGH) else { return };
            let array = running.array(&program);
            let mut objects = Objects::open(running.0.id()).unwrap();
            // Element 1, its last sum. The first samples are of the main thread, which generates
            // points.
            let object = objects.infer_type(array + 64 + 56, &samples[samples.len() - ENOUGH..]);
            let object = object.unwrap_or_else(|| panic!("{compiler} {options} {arguments:?}: no type"));
            assert_eq!((object.name.as_str(), object.stride, object.on_heap), ("lreg_args", 64, true), "{object:?}");
            assert_eq!(object.address, array, "{compiler} {options} {arguments:?}: {object:?}");
            assert!(object.elements >= 2, "{object:?}");
            assert_eq!(names(&object), ["tid", "points", "num_elems", "SX", "SY", "SXX", "SYY", "SXY"]);
            let declared = |name| object.members.iter().find(|member| member.name == name).unwrap().declaration.clone();
            assert_eq!([declared("tid"), declared("points")], ["pthread_t tid", "POINT_T *points"]);
            assert!(declared("SX").starts_with("long long") && declared("SX").ends_with(" SX"));
        }
    }
}

/// The type inferred at `block + offset` while a thread runs the function `name`. Also returns the
/// block's address and size.
fn typed(
    compiler: &str,
    options: &str,
    name: &str,
    block: &str,
    offset: u64,
) -> Option<(Option<ObjectLayout>, u64, u64)> {
    let running = TestProgram::start(compiler, options, &[name])?;
    let samples = samples(running.pid(), ENOUGH)?;
    let (start, bytes) = running.reported(block);
    Some((running.objects().infer_type(start + offset, &samples), start, bytes))
}

#[test]
fn a_type_is_inferred_from_a_pointer_a_member_and_a_global() {
    for compiler in compilers() {
        for options in ["-g -O0", "-g -O2", "-g -O1 -no-pie -gdwarf-4"] {
            // sums[2].sum by a local pointer, sums[1].square by a member in an inlined function,
            // sums[1].sum by a variable of the source file.
            for (name, offset) in [("by_pointer", 32), ("through_worker", 24), ("by_index", 16)] {
                let Some((object, start, _)) = typed(compiler, options, name, "sums", offset) else { continue };
                let object = object.unwrap_or_else(|| panic!("{compiler} {options} {name}: no type"));
                assert_eq!(
                    (object.name.as_str(), object.stride),
                    ("partial", 16),
                    "{compiler} {options} {name}: {object:?}"
                );
                assert_eq!((object.address, object.elements, object.on_heap), (start, 4, true), "{name}");
                assert_eq!(names(&object), ["sum", "square"]);
            }
        }
    }
}

#[test]
fn types_of_numbers_flexible_arrays_and_stack_memory_are_inferred() {
    for options in ["-g -O0", "-g -O2"] {
        if let Some((object, start, bytes)) = typed("cc", options, "by_number", "numbers", 8) {
            let object = object.unwrap();
            assert_eq!(
                (object.name.as_str(), object.stride, object.address),
                ("numbers", 8, start),
                "{options}: {object:?}"
            );
            assert_eq!(
                (object.elements, object.members[0].declaration.as_str()),
                (bytes / 8, "volatile uint64_t value")
            );
        }
        if let Some((object, start, bytes)) = typed("cc", options, "by_packet", "message", 32) {
            let object = object.unwrap();
            assert_eq!(
                (object.name.as_str(), object.address, object.elements),
                ("packet", start, 1),
                "{options}: {object:?}"
            );
            assert_eq!((object.stride, names(&object)), (bytes, vec!["length"]), "the number of its words is unknown");
        }
        if let Some((object, start, _)) = typed("cc", options, "on_stack", "here", 24) {
            let object = object.unwrap();
            assert_eq!(
                (object.name.as_str(), object.stride, object.on_heap),
                ("partial", 16, false),
                "{options}: {object:?}"
            );
            assert!(object.address <= start + 16 && object.address + object.elements * 16 > start + 16);
        }
    }
}

#[test]
fn without_debug_info_there_is_no_type() {
    if let Some((object, ..)) = typed("cc", "-O0", "by_pointer", "sums", 32) {
        assert_eq!(object, None);
    }
}
