//! Why a piece of a program's private anonymous memory lies outside the region, or inside on pages of another kind.

/// A reason, as counted by the agent and told in every report. The number is its place in the slot's counters.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// `MAP_STACK` or `MAP_GROWSDOWN`: a thread's stack.
    Stack = 0,
    /// The program named the address (`MAP_FIXED`), it is not in the region, and no huge page fits.
    Fixed,
    /// The program asked for an address nearby and may check the result; no huge page fits. `--also hinted` moves it.
    Hint,
    /// `MAP_32BIT`: the low 2 GiB.
    Low32,
    /// `MAP_NORESERVE` and larger than the machine's memory: sparse by intention.
    Giant,
    /// The program asked for hugetlb pages by itself.
    OwnHugetlb,
    /// Executable memory of a code generator.
    Executable,
    /// A flag whose meaning the region could not keep.
    OddFlag,
    /// The region's address range has no room for it.
    NoRoom,
    /// The kernel refused it (a limit, no memory); the program's own request went through unchanged or failed alike.
    Refused,
    /// Asked for by `--also stacks`, but no huge page fits between its ends.
    ShortStack,
    /// Asked for by `--also stacks`: the first thread's, grown ahead and advised where it is.
    FirstStack,
    /// Asked for by `--also stacks`: the first thread's, which a limit or a neighbour keeps from growing ahead.
    FirstStackKept,
    /// Asked for by `--also globals`: whole huge pages of zero-initialised data, advised where they are.
    Globals,
    /// Asked for by `--also globals`: what of data segments fills no huge page.
    ShortGlobals,
    /// Asked for by `--also globals`: initialised data, a private mapping of the file, which has to stay one.
    FileGlobals,
    /// Advised where it lies, for the address has a meaning to the program.
    InPlace,
    /// Inside the region, but on transparent pages: hugetlb was asked for and the pool had none left.
    PoolEmpty,
    /// Inside the region, but on transparent pages: its page-grained use cannot bear hugetlb.
    PageGrained,
    /// Inside the region, but on transparent pages: hugetlb cannot be used safely without userfaultfd.
    NoUserfault,
    /// Inside the region, and resident before its first access: a neighbour's huge page holds it.
    Resident,
    /// Inside the region, with nothing mapped ahead: the program locks all its memory, or serves page faults by itself.
    Exact,
    /// Inside the region, moved from hugetlb to transparent pages before a fork.
    DemotedByFork,
    /// Inside the region, moved from hugetlb to transparent pages for a partial munmap, mprotect or mremap.
    DemotedByCall,
    /// Inside the region and left on hugetlb although it should have moved: there was no memory for the copy.
    KeptNoMemory,
    /// Left on hugetlb: the region has no free addresses for the copy.
    KeptNoRoom,
    /// Left on hugetlb: the process has as many mappings as the kernel allows.
    KeptMappings,
    /// Left on hugetlb: the kernel does I/O to the page's frame, and a copy would miss what it writes.
    KeptPinned,
    /// Left on hugetlb: a limit or a filter refuses what shows which frames the kernel holds.
    KeptUnseen,
    /// Left on hugetlb: userfaultfd was permitted at the start, and is not any more.
    KeptNoUserfault,
    /// Left on hugetlb: the program has registered it with a userfaultfd of its own.
    KeptWatched,
}

impl Outside {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 31] = [
        Self::Stack,
        Self::Fixed,
        Self::Hint,
        Self::Low32,
        Self::Giant,
        Self::OwnHugetlb,
        Self::Executable,
        Self::OddFlag,
        Self::NoRoom,
        Self::Refused,
        Self::ShortStack,
        Self::FirstStack,
        Self::FirstStackKept,
        Self::Globals,
        Self::ShortGlobals,
        Self::FileGlobals,
        Self::InPlace,
        Self::PoolEmpty,
        Self::PageGrained,
        Self::NoUserfault,
        Self::Resident,
        Self::Exact,
        Self::DemotedByFork,
        Self::DemotedByCall,
        Self::KeptNoMemory,
        Self::KeptNoRoom,
        Self::KeptMappings,
        Self::KeptPinned,
        Self::KeptUnseen,
        Self::KeptNoUserfault,
        Self::KeptWatched,
    ];

    /// The words in a report.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Stack => "thread stack",
            Self::Fixed => "less than 2 MiB at an address fixed by the program",
            Self::Hint => "less than 2 MiB at an address hinted by the program: --also hinted moves it",
            Self::Low32 => "low 32-bit address asked for",
            Self::Giant => "sparse giant (MAP_NORESERVE, larger than memory)",
            Self::OwnHugetlb => "the program's own hugetlb",
            Self::Executable => "executable",
            Self::OddFlag => "a flag the region cannot keep",
            Self::NoRoom => "region full",
            Self::Refused => "refused by the kernel",
            Self::ShortStack => "thread stack that holds no huge page",
            Self::FirstStack => "the first stack, advised where it is",
            Self::FirstStackKept => "the first stack: a limit keeps it from growing ahead",
            Self::Globals => "zero-initialised globals, advised where they are",
            Self::ShortGlobals => "globals that fill no huge page",
            Self::FileGlobals => "globals with initial values: pages of the file stay on small pages",
            Self::InPlace => "in place: on the pages asked for at the program's own addresses",
            Self::PoolEmpty => "in the region on transparent pages: hugetlb pool empty",
            Self::PageGrained => "in the region on transparent pages: page-grained use",
            Self::NoUserfault => "in the region on transparent pages: userfaultfd is not permitted",
            Self::Resident => "in the region, resident before its first access: a neighbour's huge page holds it",
            Self::Exact => {
                "in the region, with nothing mapped ahead: the program locks its memory or serves page faults"
            }
            Self::DemotedByFork => "moved off hugetlb before a fork",
            Self::DemotedByCall => "moved off hugetlb for a page-grained call",
            Self::KeptNoMemory => "left on hugetlb: no memory for the copy, or a limit on it",
            Self::KeptNoRoom => "left on hugetlb: region full",
            Self::KeptMappings => "left on hugetlb: too many mappings, raise vm.max_map_count",
            Self::KeptPinned => "left on hugetlb: the kernel does I/O to its frames",
            Self::KeptUnseen => "left on hugetlb: clone(2) or /proc/self is refused, which show I/O to its frames",
            Self::KeptNoUserfault => "left on hugetlb: userfaultfd(2) is refused since the program dropped a right",
            Self::KeptWatched => "left on hugetlb: registered with a userfaultfd of the program",
        }
    }

    /// Whether the memory is in the region all the same.
    #[must_use]
    pub const fn is_inside(self) -> bool {
        self as usize >= Self::PoolEmpty as usize
    }
}
