//! Corrupted ELF files: no query panics or runs forever.

use std::fs::{self, File};
use std::path::Path;

use fieldstone_rewrite::{MemoryImage, Registers};
use object::{Object, ObjectSection};

use super::super::image::ElfImage;
use super::super::location::SampledFrame;
use super::super::scope;
use super::program::{build, compilers};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/objects/tests/program.c");
const SECTIONS: [&str; 10] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_str",
    ".debug_loclists",
    ".debug_rnglists",
    ".eh_frame",
    ".eh_frame_hdr",
    ".symtab",
    ".debug_line",
    ".debug_aranges",
];
const ROUNDS: u64 = 150;

/// Makes all kinds of queries. Returns the number of answers.
fn query_all(path: &Path) -> usize {
    let Some(image) = File::open(path).ok().and_then(|file| ElfImage::open(file, path)) else { return 0 };
    let mut answers = 0;
    let data: Vec<u64> =
        image.segments.iter().flat_map(|segment| segment.addresses.clone().step_by(64).take(200)).collect();
    for &address in &data {
        answers += usize::from(image.symbol(address).is_some());
        answers += image.symbols_in(&(address..address.saturating_add(64))).len();
    }
    let Some(debug) = image.debug() else { return answers };
    let (globals, reader) = (debug.globals(), debug.reader());
    for &address in &data {
        answers += usize::from(globals.at(&reader, address).is_some());
        answers += globals.within(&reader, &(address..address.saturating_add(64))).len();
        answers += usize::from(globals.local_at(&reader, address % 64).is_some());
    }
    let memory = MemoryImage { start: 0x7000_0000, bytes: vec![0x70; 4096] };
    for address in image.segments.iter().flat_map(|segment| segment.addresses.clone().step_by(48).take(60)) {
        let registers = Registers { gpr: [0x7000_0100; 16], rip: address, ..Registers::default() };
        let mut frame = SampledFrame::of(&registers, &memory, 0, image.frames());
        let Some(scope) = scope::at(&reader, address) else { continue };
        frame.set_base(&reader, &scope.unit, scope.base);
        let locations = scope.variables.iter().filter_map(|one| frame.locate(&reader, &scope.unit, one.location));
        answers += locations.count();
    }
    answers
}

#[test]
fn queries_of_corrupted_files_return() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    for compiler in compilers() {
        if !build(compiler, "-g -O2", Path::new(SOURCE), &program) {
            return;
        }
        let sound = fs::read(&program).unwrap();
        assert!(query_all(&program) > 100, "{}", query_all(&program));
        let file = object::File::parse(&*sound).unwrap();
        let ranges: Vec<(u64, u64)> =
            SECTIONS.iter().filter_map(|name| file.section_by_name(name)?.file_range()).collect();
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        for round in 0..ROUNDS {
            let mut bytes = sound.clone();
            // Changes a few or many bytes of one section; in the last rounds, of the file's
            // headers.
            let (start, length) =
                if round >= ROUNDS - 20 { (0, 0x400) } else { ranges[usize::try_from(round).unwrap() % ranges.len()] };
            for _ in 0..1 << (next() % 8) {
                let at = usize::try_from(start + next() % length.max(1)).unwrap();
                bytes[at] = match next() % 4 {
                    0 => 0,
                    1 => 0xff,
                    _ => u8::try_from(next() % 256).unwrap(),
                };
            }
            fs::write(&program, bytes).unwrap();
            let _ = query_all(&program);
        }
    }
}
