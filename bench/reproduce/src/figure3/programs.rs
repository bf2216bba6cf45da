//! The programs: source, compilation and run of each.
//!
//! Shell commands may use `$SOURCE`, the directory of the source, `$BUNDLED`, the directory of the
//! bundled sources, and `$PROGRAM`.

use super::source::Source;

/// A C program.
#[derive(Clone, Copy, Debug)]
pub struct StackProgram {
    /// Its name in columns and ids.
    pub name: &'static str,
    /// The origin of its source.
    pub source: Source,
    /// The shell command that prepares the source, run in its directory. Does nothing the second
    /// time.
    pub prepare: &'static str,
    /// Arguments of the compiler in addition to `-O2 -c`.
    pub compile: &'static str,
    /// Arguments of the linker in addition to the objects.
    pub link: &'static str,
    /// The shell commands that run it, in full and with `--quick`. Empty for a program that prints
    /// its own times.
    pub run: [&'static str; 2],
}

impl StackProgram {
    const fn bundled(name: &'static str, compile: &'static str, run: [&'static str; 2]) -> Self {
        Self { name, source: Source::Bundled, prepare: "", compile, link: "", run }
    }
}

/// Fibonacci numbers by recursion; prints nanoseconds per call.
pub const FIB: StackProgram = StackProgram::bundled("fib", "$SOURCE/fib.c", [""; 2]);
/// The same without inlining: a compiler merges several calls otherwise.
pub const FIB_ALONE: StackProgram = StackProgram::bundled("fib-alone", "-DALONE $SOURCE/fib.c", [""; 2]);
/// The sum of the first integers by recursion; prints nanoseconds per call and the number of times
/// that the stack took memory.
pub const SUM: StackProgram =
    StackProgram { link: "-Wl,--wrap=syscall", ..StackProgram::bundled("sum", "$SOURCE/sum.c", [""; 2]) };
/// A call that crosses a border of segments.
pub const BORDER: StackProgram = StackProgram::bundled("border", "$SOURCE/border.c", [""; 2]);
/// Waiting coroutines; built with stacks of blocks only.
pub const COROUTINES: StackProgram = StackProgram::bundled("coroutines", "-I$SOURCE $SOURCE/coroutines.c", [""; 2]);

/// Lua's interpreter, with a script of calls, strings, tables, closures and coroutines.
pub const LUA: StackProgram = StackProgram {
    name: "lua",
    source: Source::Package("lua5.4"),
    prepare: "",
    // All files except luac.c.
    compile: "-DLUA_USE_POSIX $SOURCE/src/l[!u]*.c $SOURCE/src/lua.c $SOURCE/src/lu[!a]*.c",
    link: "",
    run: ["exec $PROGRAM $BUNDLED/bench.lua 4", "exec $PROGRAM $BUNDLED/bench.lua 1"],
};

/// SQLite with its own speed test, in memory.
pub const SQLITE: StackProgram = StackProgram {
    name: "sqlite",
    source: Source::Package("sqlite3"),
    prepare: "[ -e sqlite3.c ] || { ./configure --disable-tcl && make sqlite3.h sqlite3.c; }",
    compile: "-DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -I$SOURCE $SOURCE/sqlite3.c $SOURCE/test/speedtest1.c",
    link: "",
    // It also prints times, which differ.
    run: [
        "$PROGRAM --memdb --verify --size 20 | grep 'Verification Hash'",
        "$PROGRAM --memdb --verify --size 5 | grep 'Verification Hash'",
    ],
};

/// The command that creates the input of bzip2 and zstd: their own sources and manuals.
const INPUT: &str = "[ -e input ] || { find . -type f \\( -name '*.[ch]' -o -name '*.html' -o -name '*.ps' -o -name '*.xml' \\) \
                     | LC_ALL=C sort | xargs cat >input.new && mv input.new input; }";

/// bzip2, compressing.
const BZIP2: StackProgram = StackProgram {
    name: "bzip2",
    source: Source::Package("bzip2"),
    prepare: INPUT,
    compile: "-D_FILE_OFFSET_BITS=64 $SOURCE/blocksort.c $SOURCE/huffman.c $SOURCE/crctable.c $SOURCE/randtable.c $SOURCE/compress.c \
              $SOURCE/decompress.c $SOURCE/bzlib.c $SOURCE/bzip2.c",
    link: "",
    run: ["exec $PROGRAM -c $SOURCE/input $SOURCE/input $SOURCE/input $SOURCE/input", "exec $PROGRAM -c $SOURCE/input"],
};

/// zstd, compressing.
const ZSTD: StackProgram = StackProgram {
    name: "zstd",
    source: Source::Package("libzstd"),
    prepare: INPUT,
    compile: "-DZSTD_DISABLE_ASM -I$SOURCE/lib -I$SOURCE/lib/common $SOURCE/lib/common/*.c $SOURCE/lib/compress/*.c \
              $SOURCE/lib/decompress/*.c $SOURCE/lib/dictBuilder/*.c $SOURCE/programs/*.c",
    link: "",
    run: ["exec $PROGRAM -q -c -15 $SOURCE/input", "exec $PROGRAM -q -c -9 $SOURCE/input"],
};

/// The programs of Figure 3: the counterparts of PARSEC's programs and of SPEC's.
pub(super) const ALL: [StackProgram; 9] = [
    StackProgram::bundled("similar", "$SOURCE/similar.c", ["exec $PROGRAM 3000", "exec $PROGRAM 300"]),
    StackProgram::bundled(
        "streamcluster",
        "$SOURCE/streamcluster.c",
        [
            "exec $PROGRAM --threads 1 --padded --points 100000 --rounds 60",
            "exec $PROGRAM --threads 1 --padded --points 100000 --rounds 6",
        ],
    ),
    StackProgram::bundled(
        "histogram",
        "$SOURCE/histogram.c",
        [
            "exec $PROGRAM --threads 1 --pixels 1000000 --rounds 300",
            "exec $PROGRAM --threads 1 --pixels 1000000 --rounds 30",
        ],
    ),
    StackProgram::bundled(
        "string match",
        "$SOURCE/string_match.c",
        [
            "exec $PROGRAM --threads 1 --padded --words 100000 --rounds 100",
            "exec $PROGRAM --threads 1 --padded --words 100000 --rounds 10",
        ],
    ),
    StackProgram::bundled(
        "word count",
        "$SOURCE/word_count.c",
        [
            "exec $PROGRAM --threads 1 --padded --words 100000 --rounds 100",
            "exec $PROGRAM --threads 1 --padded --words 100000 --rounds 10",
        ],
    ),
    LUA,
    SQLITE,
    BZIP2,
    ZSTD,
];
