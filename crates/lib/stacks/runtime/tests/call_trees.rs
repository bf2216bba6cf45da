//! Differential fuzzing: random programs of functions that call each other. Their frames have
//! random sizes; arguments and results are of every kind (registers, stack, structures by value,
//! variable); they use alloca and variable-length arrays. Built normally and with stacks of blocks,
//! they print the same.
//!
//! An ordinary run tests a few programs; `FIELDSTONE_FUZZ_SECONDS` tests as many as fit in that
//! time.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{HERE, compilers, driver, library, program as limited, run};

/// SplitMix64: pseudo-random numbers from a seed.
struct TreeRandom(u64);

impl TreeRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ResultKind {
    Long,
    Double,
    Extended,
    Struct(u64),
}

const STRUCTS: [u64; 5] = [3, 16, 24, 40, 200];

impl ResultKind {
    fn random(random: &mut TreeRandom) -> Self {
        match random.below(8) {
            0..3 => Self::Long,
            3..5 => Self::Double,
            5 => Self::Extended,
            _ => Self::Struct(random.one(&STRUCTS)),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Long => "long".into(),
            Self::Double => "double".into(),
            Self::Extended => "long double".into(),
            Self::Struct(bytes) => format!("struct s{bytes}"),
        }
    }

    /// A C expression of this kind, computed from the expression `from`.
    fn value(self, from: &str) -> String {
        match self {
            Self::Long => format!("(long)({from})"),
            Self::Double => format!("(double)(({from}) & 1023)"),
            Self::Extended => format!("(long double)(({from}) & 511)"),
            Self::Struct(bytes) => format!("make_s{bytes}({from})"),
        }
    }

    /// A C expression for a number, computed from the value `of`.
    fn number(self, of: &str) -> String {
        match self {
            Self::Struct(bytes) => format!("hash_s{bytes}({of})"),
            _ => format!("(uint64_t)(int64_t)({of})"),
        }
    }
}

struct Function {
    result: ResultKind,
    arguments: Vec<ResultKind>,
    /// Kinds that are passed as variable arguments.
    variable: Vec<ResultKind>,
    frame: u64,
    /// Bytes of alloca and of a variable-length array, if any.
    dynamic: Option<(u64, u64)>,
}

impl Function {
    fn random(random: &mut TreeRandom, is_variadic: bool) -> Self {
        let count = random.below(13);
        let more = if is_variadic && random.below(3) == 0 { 1 + random.below(9) } else { 0 };
        Self {
            result: ResultKind::random(random),
            arguments: (0..count).map(|_| ResultKind::random(random)).collect(),
            variable: (0..more).map(|_| ResultKind::random(random)).collect(),
            frame: random.one(&[1, 30, 100, 180, 300, 900, 3000, 9000, 30000, 70000]),
            dynamic: (random.below(3) == 0).then(|| (1 + random.below(5000), 1 + random.below(20000))),
        }
    }

    fn signature(&self, number: usize) -> String {
        let mut text = format!("static {} KEEP f{number}(int depth", self.result.name());
        for (at, kind) in self.arguments.iter().enumerate() {
            let _ = write!(text, ", {} a{at}", kind.name());
        }
        text + if self.variable.is_empty() { ")" } else { ", ...)" }
    }

    fn call(&self, number: usize, random: &mut TreeRandom) -> String {
        let mut text = format!("f{number}(depth - 1");
        for kind in self.arguments.iter().chain(&self.variable) {
            let from = format!("h * {} + {}", random.below(1000) * 2 + 1, random.below(1000));
            let _ = write!(text, ", {}", kind.value(&from));
        }
        self.result.number(&(text + ")"))
    }

    fn body(&self, number: usize, all: &[Self], random: &mut TreeRandom) -> String {
        let mut text = format!("{} {{\n", self.signature(number));
        let _ = writeln!(
            text,
            "    volatile char frame[{}];\n    USE(frame);\n    uint64_t h = {number} + (uint64_t)depth;",
            self.frame
        );
        let _ = writeln!(text, "    frame[0] = (char)depth; frame[sizeof frame - 1] = (char)depth;");
        for (at, kind) in self.arguments.iter().enumerate() {
            let _ = writeln!(text, "    h = mix(h, {});", kind.number(&format!("a{at}")));
        }
        if !self.variable.is_empty() {
            let last = self.arguments.len().checked_sub(1).map_or("depth".into(), |at| format!("a{at}"));
            let _ = writeln!(text, "    va_list list; va_start(list, {last});");
            for kind in &self.variable {
                let _ = writeln!(text, "    h = mix(h, {});", kind.number(&format!("va_arg(list, {})", kind.name())));
            }
            text += "    va_end(list);\n";
        }
        if let Some((alloca, array)) = self.dynamic {
            let _ = writeln!(text, "    size_t first = 1 + h % {alloca}, second = 1 + h % {array};");
            text += "    unsigned char *taken = alloca(first), array[second];\n";
            text += "    memset(taken, (int)h, first); memset(array, (int)(h >> 8), second);\n";
        }
        text += "    if (depth > 0) {\n";
        for _ in 0..1 + random.below(2) {
            let to = usize::try_from(random.below(all.len() as u64)).unwrap();
            let _ = writeln!(text, "        h = mix(h, {});", all[to].call(to, random));
        }
        text += "    }\n";
        if self.dynamic.is_some() {
            text += "    h = mix(h, taken[first / 2] + taken[first - 1] * 3 + array[0] * 5 + array[second - 1] * 7);\n";
        }
        text += "    CHECK(frame[0] == (char)depth && frame[sizeof frame - 1] == (char)depth);\n";
        let _ = writeln!(text, "    return {};\n}}", self.result.value("h"));
        text
    }
}

/// The source of a program.
fn program(seed: u64, is_variadic: bool) -> String {
    let mut random = TreeRandom(seed);
    let mut text = String::from(
        "#include \"check.h\"\n#include <alloca.h>\n#include <stdarg.h>\n#include <stdint.h>\n#include <string.h>\n\
         static uint64_t mix(uint64_t h, uint64_t x) { h = (h ^ x) * 0x9e3779b97f4a7c15u; return h ^ (h >> 29); }\n",
    );
    for bytes in STRUCTS {
        let _ = writeln!(
            text,
            "struct s{bytes} {{ unsigned char bytes[{bytes}]; }};\n\
             static struct s{bytes} make_s{bytes}(uint64_t h) {{ struct s{bytes} made; \
             for (int at = 0; at < {bytes}; at++) made.bytes[at] = (unsigned char)(h + (uint64_t)at * 13); return made; }}\n\
             static uint64_t hash_s{bytes}(struct s{bytes} of) {{ uint64_t h = 0; \
             for (int at = 0; at < {bytes}; at++) h = h * 31 + of.bytes[at]; return h; }}"
        );
    }
    let all: Vec<Function> = (0..10).map(|_| Function::random(&mut random, is_variadic)).collect();
    for (number, function) in all.iter().enumerate() {
        let _ = writeln!(text, "{};", function.signature(number));
    }
    for (number, function) in all.iter().enumerate() {
        text += &function.body(number, &all, &mut random);
    }
    text += "static uint64_t KEEP descend(int level, int depth) {\n    volatile char frame[200];\n    frame[0] = 1;\n    \
             uint64_t h = (uint64_t)level;\n";
    for (number, function) in all.iter().enumerate() {
        let _ = writeln!(
            text,
            "    if (level % {} == {number}) h = mix(h, {});",
            all.len(),
            function.call(number, &mut random)
        );
    }
    text += "    if (level > 0) h = mix(h, descend(level - 1, depth));\n    return h + (uint64_t)frame[0];\n}\n\
             int main(void) {\n    uint64_t h = 0;\n    for (int round = 0; round < 4; round++) h = mix(h, descend(400 + round, 5));\n    \
             printf(\"%llu\\n\", (unsigned long long)h);\n    return 0;\n}\n";
    text
}

/// Builds a program both ways and compares the output.
fn compare(seed: u64, compiler: &str) {
    let source = library().join(format!("tree-{compiler}-{seed}.c"));
    std::fs::write(&source, program(seed, compiler == "gcc")).unwrap();
    let level = ["-O0", "-O1", "-O2", "-O3"][usize::try_from(seed % 4).unwrap()];
    let (plain, split) = (source.with_extension("plain"), source.with_extension("split"));
    let include = format!("-I{HERE}/tests/programs");
    let both = |command: &mut Command, out| run(command.args(["-w", level, &include, "-o"]).arg(out).arg(&source));
    both(Command::new(compiler).arg(format!("-I{HERE}/../include")), &plain);
    both(&mut driver("c", compiler), &split);
    let expected = run(Command::new("sh").args(["-c", "ulimit -s 1000000; exec \"$0\""]).arg(&plain));
    let found = run(&mut limited(&split));
    assert_eq!(expected, found, "seed {seed} by {compiler} {level}: {}", source.display());
    for file in [source, plain, split] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn random_call_trees_print_the_same_as_on_a_plain_stack() {
    let seconds = std::env::var("FIELDSTONE_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let (start, compilers) = (Instant::now(), compilers("c"));
    let (first, least) = match seconds {
        Some(_) => (std::process::id().into(), 0),
        None => (0_u64, 3),
    };
    let mut done = 0;
    while done < least || start.elapsed() < Duration::from_secs(seconds.unwrap_or(0)) {
        for compiler in &compilers {
            compare(first * 1_000_003 + done, compiler);
        }
        done += 1;
    }
    println!("{done} programs by {compilers:?}");
    assert!(done > 0, "nothing was compared");
}
