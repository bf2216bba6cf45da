//! The programs: which source, how it is compiled, how it runs.
//!
//! Shell words may name `$SOURCE`, where the source is, `$BUNDLED`, where the bundled ones are, and `$PROGRAM`.

use super::source::Source;

/// A C program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// What it is called: a column, and a part of ids.
    pub name: &'static str,
    /// Where its source comes from.
    pub source: Source,
    /// Shell words that make what is compiled or read, in the source's directory; they do nothing where it is made already.
    pub prepare: &'static str,
    /// The compiler's arguments, beside `-O2 -c`.
    pub compile: &'static str,
    /// The linker's, beside the objects.
    pub link: &'static str,
    /// Of a program that prints no number itself: shell words that run it, in full and for `--quick`.
    pub run: [&'static str; 2],
}

impl Program {
    const fn bundled(name: &'static str, compile: &'static str, run: [&'static str; 2]) -> Self {
        Self { name, source: Source::Bundled, prepare: "", compile, link: "", run }
    }
}

/// Fibonacci's numbers by recursion: prints nanoseconds a call.
pub const FIB: Program = Program::bundled("fib", "$SOURCE/fib.c", [""; 2]);
/// The same, each call one: a compiler makes one function of several.
pub const FIB_ALONE: Program = Program::bundled("fib-alone", "-DALONE $SOURCE/fib.c", [""; 2]);
/// The sum of the first integers by recursion: prints nanoseconds a call, and how often the stack took memory.
pub const SUM: Program = Program { link: "-Wl,--wrap=syscall", ..Program::bundled("sum", "$SOURCE/sum.c", [""; 2]) };
/// A call over a border of the stack.
pub const BORDER: Program = Program::bundled("border", "$SOURCE/border.c", [""; 2]);
/// Coroutines that wait; built with stacks of blocks only.
pub const COROUTINES: Program = Program::bundled("coroutines", "-I$SOURCE $SOURCE/coroutines.c", [""; 2]);

/// Lua's interpreter, with a script of calls, strings, tables, closures and coroutines.
pub const LUA: Program = Program {
    name: "lua",
    source: Source::Package("lua5.4"),
    prepare: "",
    // All but luac.c.
    compile: "-DLUA_USE_POSIX $SOURCE/src/l[!u]*.c $SOURCE/src/lua.c $SOURCE/src/lu[!a]*.c",
    link: "",
    run: ["exec $PROGRAM $BUNDLED/bench.lua 4", "exec $PROGRAM $BUNDLED/bench.lua 1"],
};

/// SQLite with its own speed test, in memory.
pub const SQLITE: Program = Program {
    name: "sqlite",
    source: Source::Package("sqlite3"),
    prepare: "[ -e sqlite3.c ] || { ./configure --disable-tcl && make sqlite3.h sqlite3.c; }",
    compile: "-DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -I$SOURCE $SOURCE/sqlite3.c $SOURCE/test/speedtest1.c",
    link: "",
    // It prints times, too, which differ.
    run: [
        "$PROGRAM --memdb --verify --size 20 | grep 'Verification Hash'",
        "$PROGRAM --memdb --verify --size 5 | grep 'Verification Hash'",
    ],
};

/// What bzip2 and zstd compress: their own sources and manuals.
const INPUT: &str = "[ -e input ] || { find . -type f \\( -name '*.[ch]' -o -name '*.html' -o -name '*.ps' -o -name '*.xml' \\) \
                     | LC_ALL=C sort | xargs cat >input.new && mv input.new input; }";

/// bzip2, compressing.
const BZIP2: Program = Program {
    name: "bzip2",
    source: Source::Package("bzip2"),
    prepare: INPUT,
    compile: "-D_FILE_OFFSET_BITS=64 $SOURCE/blocksort.c $SOURCE/huffman.c $SOURCE/crctable.c $SOURCE/randtable.c $SOURCE/compress.c \
              $SOURCE/decompress.c $SOURCE/bzlib.c $SOURCE/bzip2.c",
    link: "",
    run: ["exec $PROGRAM -c $SOURCE/input $SOURCE/input $SOURCE/input $SOURCE/input", "exec $PROGRAM -c $SOURCE/input"],
};

/// zstd, compressing.
const ZSTD: Program = Program {
    name: "zstd",
    source: Source::Package("libzstd"),
    prepare: INPUT,
    compile: "-DZSTD_DISABLE_ASM -I$SOURCE/lib -I$SOURCE/lib/common $SOURCE/lib/common/*.c $SOURCE/lib/compress/*.c \
              $SOURCE/lib/decompress/*.c $SOURCE/lib/dictBuilder/*.c $SOURCE/programs/*.c",
    link: "",
    run: ["exec $PROGRAM -q -c -15 $SOURCE/input", "exec $PROGRAM -q -c -9 $SOURCE/input"],
};

/// The programs of Figure 3: those in the roles of PARSEC's, and real ones in the roles of SPEC's.
pub(super) const ALL: [Program; 9] = [
    Program::bundled("similar", "$SOURCE/similar.c", ["exec $PROGRAM 3000", "exec $PROGRAM 300"]),
    Program::bundled(
        "streamcluster",
        "$SOURCE/streamcluster.c",
        [
            "exec $PROGRAM --threads 1 --padded --points 100000 --rounds 60",
            "exec $PROGRAM --threads 1 --padded --points 100000 --rounds 6",
        ],
    ),
    Program::bundled(
        "histogram",
        "$SOURCE/histogram.c",
        [
            "exec $PROGRAM --threads 1 --pixels 1000000 --rounds 300",
            "exec $PROGRAM --threads 1 --pixels 1000000 --rounds 30",
        ],
    ),
    Program::bundled(
        "string match",
        "$SOURCE/string_match.c",
        [
            "exec $PROGRAM --threads 1 --padded --words 100000 --rounds 100",
            "exec $PROGRAM --threads 1 --padded --words 100000 --rounds 10",
        ],
    ),
    Program::bundled(
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
