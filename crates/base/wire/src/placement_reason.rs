//! Why private anonymous memory of a program is outside the region, or inside on another page kind.

/// A reason, counted by the agent and shown in every report. The number is the index in the slot's
/// counters.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementReason {
    /// `MAP_STACK` or `MAP_GROWSDOWN`: a thread's stack.
    Stack = 0,
    /// The program fixed the address (`MAP_FIXED`) outside the region, and no huge page fits.
    Fixed,
    /// The program passed an address hint and may check the result; no huge page fits. `--also
    /// hinted` moves it.
    Hint,
    /// `MAP_32BIT`: the low 2 GiB.
    Low32,
    /// `MAP_NORESERVE` and larger than the machine's memory: deliberately sparse.
    Giant,
    /// The program requested hugetlb pages itself.
    OwnHugetlb,
    /// Executable memory of a code generator.
    Executable,
    /// A flag that the region cannot honour.
    OddFlag,
    /// The region's address range has no space for it.
    NoRoom,
    /// The kernel refused it (a limit, or no memory). The program's own request passed unchanged or
    /// failed too.
    Refused,
    /// Requested by `--also stacks`, but no huge page fits between its ends.
    ShortStack,
    /// Requested by `--also stacks`: the first thread's stack, extended in advance and advised in
    /// place.
    FirstStack,
    /// Requested by `--also stacks`: the first thread's stack, but a limit or a neighbouring
    /// mapping prevents the extension.
    FirstStackKept,
    /// Requested by `--also globals`: whole huge pages of zero-initialised data, advised in place.
    Globals,
    /// Requested by `--also globals`: parts of data segments that fill no huge page.
    ShortGlobals,
    /// Requested by `--also globals`: initialised data, which must stay a private mapping of the
    /// file.
    FileGlobals,
    /// Advised in place, because the program depends on the address.
    InPlace,
    /// Inside the region, but on transparent pages: the hugetlb pool was empty.
    PoolEmpty,
    /// Inside the region, but on transparent pages: the program uses it in units of 4 KiB.
    PageGrained,
    /// Inside the region, but on transparent pages: hugetlb needs userfaultfd to be safe.
    NoUserfault,
    /// Inside the region, and resident before its first access: it shares a neighbour's huge page.
    Resident,
    /// Inside the region, with nothing mapped in advance: the program locks all its memory, or
    /// handles page faults itself.
    Exact,
    /// Inside the region, moved from hugetlb to transparent pages before a fork.
    DemotedByFork,
    /// Inside the region, moved from hugetlb to transparent pages for a partial munmap, mprotect or
    /// mremap.
    DemotedByCall,
    /// Inside the region and left on hugetlb although it should have moved: no memory for the copy.
    KeptNoMemory,
    /// Left on hugetlb: the region has no free addresses for the copy.
    KeptNoRoom,
    /// Left on hugetlb: the process has as many mappings as the kernel allows.
    KeptMappings,
    /// Left on hugetlb: the kernel does I/O to the page's frame, and a copy would miss what it
    /// writes.
    KeptPinned,
    /// Left on hugetlb: a limit or a filter hides which frames the kernel holds.
    KeptUnseen,
    /// Left on hugetlb: userfaultfd was permitted at the start, and no longer is.
    KeptNoUserfault,
    /// Left on hugetlb: the program has registered it with its own userfaultfd.
    KeptWatched,
}

impl PlacementReason {
    /// Every reason, in numeric order.
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

    /// The text in a report.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Stack => "thread stack",
            Self::Fixed => "less than 2 MiB at an address fixed by the program",
            Self::Hint => "less than 2 MiB at an address hinted by the program: --also hinted moves it",
            Self::Low32 => "low 32-bit address requested",
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
            Self::InPlace => "in place: on the requested pages at the program's own addresses",
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

    /// Whether the memory is on the requested pages at the program's own addresses.
    #[must_use]
    pub const fn is_in_place(self) -> bool {
        matches!(self, Self::InPlace | Self::Globals | Self::FirstStack)
    }

    /// Whether the memory is inside the region.
    #[must_use]
    pub const fn is_inside(self) -> bool {
        self as usize >= Self::PoolEmpty as usize
    }
}
