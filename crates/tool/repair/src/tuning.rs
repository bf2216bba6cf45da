//! Constants of detection and repair: each with its unit and the reason for its value.
//!
//! Constants of the machine (register numbers, instruction lengths, message bytes) are not here;
//! they are next to the code that uses them.

use std::time::Duration;

use rustix::event::Timespec;

// Detection without repair: `fieldstone sharing`.

/// Samples per second of thread time, unless the user chooses another rate. At this rate sampling
/// costs a thread about 2 % of its time in a virtual machine.
pub(crate) const DETECT_HERTZ: u32 = 1000;
/// Share of one processor that the analysis of samples may take. A report is worth more than the
/// share of a repair, because the user waits for it.
pub(crate) const DETECT_CPU_SHARE: f64 = 0.1;
/// Time between two analyses. Short enough that a thread's memory can be read before it ends.
pub(crate) const DETECT_INTERVAL: Duration = Duration::from_millis(20);
/// Lines per analysis, the heaviest first. Bounds the time of one analysis.
pub(crate) const DETECT_MAX_LINES: usize = 256;
/// Smallest share of the threads' time that a line must take to be reported.
pub(crate) const DETECT_MIN_SHARE: f64 = 0.01;
/// Smallest weight, in samples, that a line must have to be reported. Fewer show no pattern.
pub(crate) const DETECT_MIN_WEIGHT: f64 = 8.0;
/// Lookups of the objects on one line. Samples after the first few rarely show new objects.
pub(crate) const MAX_OBJECT_LOOKUPS: u32 = 5;
/// Instructions in the report of one line, the heaviest first. Bounds the length of the report.
pub(crate) const MAX_REPORTED_INSTRUCTIONS: usize = 8;
/// Longest time between the moment a process releases its memory and its end.
pub(crate) const MEMORY_RELEASE_TO_END: Duration = Duration::from_millis(100);
/// Age at which the list of mappings and heap blocks is read again: the program may have changed
/// it.
pub(crate) const OBJECT_LIST_AGE: Duration = Duration::from_millis(200);
/// Bytes from one object to the next within a line, at least: the alignment of a pointer.
pub(crate) const OBJECT_STEP_BYTES: u64 = 8;

// Sampling during a repair.

/// Samples per second of thread time. Twenty samples show the cost of a line within 20 ms.
pub(crate) const REPAIR_HERTZ: u32 = 1000;
/// Share of one processor that the analysis of samples may take: the program pays for it.
pub(crate) const REPAIR_CPU_SHARE: f64 = 0.003;
/// Time between two analyses: short against the time that a repair needs to take effect.
pub(crate) const REPAIR_INTERVAL: Duration = Duration::from_millis(5);
/// Lines per analysis, the heaviest first. Bounds the time of one analysis.
pub(crate) const REPAIR_MAX_LINES: usize = 64;
/// Analyses in a row (50 ms) without a new thread, a new suspect or a page on trial before sampling
/// pauses. Sampling costs a thread about 2 % of its time.
pub(crate) const QUIET_ANALYSES: u32 = 10;
/// Analyses (25 ms) between two pauses.
pub(crate) const ANALYSES_BETWEEN_PAUSES: u32 = 5;
/// Length of the first pause. Each further pause without news is twice as long.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(230);
/// Longest pause: a thread that begins to contend is found within one second.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(920);
/// Time between two checks for new threads during a pause.
pub(crate) const PAUSED_INTERVAL: Duration = Duration::from_millis(12);
/// Lines that are remembered as known suspects. Bounds memory; the set is cleared when it is full.
pub(crate) const MAX_SUSPECTS: usize = 4096;
/// Time after which a rule without a matching symbol is reported. A library may be loaded until
/// then.
pub(crate) const MISSING_SYMBOL_DELAY: Duration = Duration::from_secs(2);
/// First interval, in nanoseconds, between two searches for missing symbols. It doubles each time:
/// a search reads the symbols of all files, which takes as long as the detection of a line.
pub(crate) const FIRST_SYMBOL_SEARCH_NS: u64 = 250_000_000;
/// Longest interval, in nanoseconds, between two searches for missing symbols.
pub(crate) const MAX_SYMBOL_SEARCH_NS: u64 = 8_000_000_000;

// Analysis of samples.

/// Slowdown of the analysis in a build without optimization. Budgets grow by it, so that tests of
/// debug builds see as many samples.
pub(crate) const ANALYSIS_SLOWDOWN: f64 = if cfg!(debug_assertions) { 20.0 } else { 1.0 };
/// Processor time, in nanoseconds, that can be saved for a burst of analysis.
pub(crate) const MAX_SAVED_NS: f64 = 5e6 * ANALYSIS_SLOWDOWN;
/// Part of the processor share that is reserved for threads that start.
pub(crate) const NEW_THREAD_SHARE: f64 = 0.25;
/// Largest n where one of n windows is analysed. Some samples are analysed at any cost.
pub(crate) const MAX_WINDOW_RATIO: u64 = 1024;
/// Threads that the budget distinguishes, ended ones included. Bounds memory.
pub(crate) const MAX_BUDGET_THREADS: usize = 4096;
/// Samples that a running thread takes, on average, until it counts as not running. One or two can
/// be missing by chance.
pub(crate) const SAMPLES_UNTIL_STOPPED: u64 = 3;
/// Age, in nanoseconds, up to which a hardware address still holds for its instruction.
pub(crate) const MAX_ADDRESS_AGE_NS: u64 = 20_000_000;
/// Instructions, and lines, of which hardware samples are kept. Bounds memory.
pub(crate) const MAX_HARDWARE_ENTRIES: usize = 1 << 14;
/// Code regions that are kept decoded, by sampled instruction. A program spends its time in few.
pub(crate) const MAX_CODE_REGIONS: usize = 4096;
/// Callers of a sampled instruction that are searched for a loop counter.
pub(crate) const MAX_CALLERS: usize = 8;
/// Words of the stack that are searched for return addresses: one read of 768 bytes.
pub(crate) const MAX_STACK_WORDS: usize = 96;
/// Distance from the stack pointer, in bytes, below which a word is an address on the stack and not
/// a return address.
pub(crate) const STACK_NEIGHBOURHOOD_BYTES: u64 = 1 << 24;
/// Samples in a loop after which one was probably taken in each block that runs regularly.
pub(crate) const SAMPLES_TO_SEE_ALL_BLOCKS: u32 = 16;
/// Samples from which the cost of a line is known well enough to be reported.
pub(crate) const MIN_COST_SAMPLES: u64 = 20;
/// Recent samples that are kept per line, with registers. They show the objects on the line.
pub(crate) const MAX_LINE_SAMPLES: usize = 8;

// Which pages are moved.

/// Smallest share of the threads' time that a line must take before its page is moved.
pub(crate) const REPAIR_MIN_SHARE: f64 = 0.02;
/// Smallest weight, in samples, that a line must have before its page is moved. Twice as many laps
/// suffice too: in a loop of many accesses each access has little weight.
pub(crate) const REPAIR_MIN_WEIGHT: f64 = 8.0;
/// Length, in nanoseconds, of the baseline before a move. Threads often begin to contend shortly
/// before.
pub(crate) const BASELINE_NS: u64 = 40_000_000;

// Trials of moved pages.

/// Share of the elapsed time that all failed trials together may take.
pub(crate) const FAILED_TRIALS_SHARE: f64 = 0.02;
/// Time, in nanoseconds, that failed trials may take at once, and in a program that has just
/// started.
pub(crate) const FAILED_TRIALS_BURST_NS: f64 = 30e6;
/// Slowdown of our own code in a build without optimization.
pub(crate) const REPAIR_SLOWDOWN: f64 = if cfg!(debug_assertions) { 10.0 } else { 1.0 };
/// Time, in nanoseconds, that single redirects of one page may take at once: about 100 accesses.
pub(crate) const TRIAL_BURST_NS: f64 = 8e6;
/// Single redirects of a moved page may take this part of the time that its line took. The rest is
/// the gain.
pub(crate) const SINGLE_REDIRECT_PART: f64 = 0.1;
/// Part of a redirect, in nanoseconds, that takes none of our processor time: the page fault and
/// two context switches.
pub(crate) const FAULT_NS: f64 = 15e3;
/// Length, in nanoseconds, of a trial with code that is entered and left at each access. Loops take
/// as long until all threads run their clones.
pub(crate) const STRETCH_TRIAL_NS: u64 = 60_000_000;
/// Length, in nanoseconds, of a trial with loops only.
pub(crate) const LOOP_TRIAL_NS: u64 = 1_000_000_000;
/// A page counts as settling until this many nanoseconds after its last redirect.
pub(crate) const SETTLING_NS: u64 = STRETCH_TRIAL_NS / 4;
/// Progress in this many nanoseconds after a clone was made is not compared: caches are cold.
pub(crate) const COLD_CLONE_NS: u64 = 2_000_000;
/// Progress is compared from this many nanoseconds after the last clone on: as long as the
/// baseline.
pub(crate) const COMPARE_AFTER_NS: u64 = 40_000_000;
/// A page that was restored without a gain is compared again after this many nanoseconds.
pub(crate) const RECHECK_AFTER_NS: u64 = 250_000_000;
/// Loss of a failed trial, as a part of its time, where the loss is unknown. High, so that the next
/// trial begins late.
pub(crate) const UNKNOWN_LOSS: f64 = 1.0;
/// An instruction is blamed for a failed trial if it made at least one of this many redirects.
pub(crate) const BLAMED_REDIRECTS: u32 = 8;

// Cooldowns after failed repairs.

/// First interval, in nanoseconds, after the kernel refused a move. A thread was in a system call;
/// the call may end soon.
pub(crate) const FIRST_RETRY_NS: u64 = 20_000_000;
/// First interval, in nanoseconds, after a failed repair. Doubling intervals bound the total cost.
pub(crate) const FIRST_COOLDOWN_NS: u64 = 1_000_000_000;
/// Doublings of the first interval: at most 64 s.
pub(crate) const MAX_DOUBLINGS: u32 = 6;

// The helper process of `run --repair`.

/// Time between two checks of the helper process.
pub(crate) const HELPER_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Failed checks in a row (2 s) after which the helper process is killed. A shorter stop can be a
/// debugger or a busy machine.
pub(crate) const MAX_FAILED_CHECKS: u32 = 8;
/// Longest wait for the last events after the helper's end. A child of the helper may keep its
/// output open.
pub(crate) const MAX_READ_TIME: Duration = Duration::from_secs(1);

// Watchdogs.

/// Watchdogs per repairer: one works while the other one is replaced.
pub(crate) const WATCHDOGS: usize = 2;
/// Longest start of a watchdog: some milliseconds, more where all processors are busy.
pub(crate) const MAX_WATCHDOG_START: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Longest end of a dismissed watchdog.
pub(crate) const MAX_WATCHDOG_END: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Time between two checks whether a rescuer is stopped.
pub(crate) const RESCUER_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Rescuers that are started one after the other. Bounds the rescue where each one is killed.
pub(crate) const MAX_RESCUERS: u32 = 8;
/// Time between two checks of the heartbeat. A working repairer changes it every 12 ms.
pub(crate) const HEARTBEAT_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Checks in a row (2 s, in which this process ran) with the same heartbeat while threads wait,
/// after which the repairer is killed.
pub(crate) const MAX_SAME_HEARTBEATS: u32 = 8;
/// First pause between two attempts to restore all pages. The other watchdog or a debugger may
/// trace the program. The pause doubles.
pub(crate) const FIRST_RESCUE_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause between two attempts to restore all pages: threads of the program wait.
pub(crate) const MAX_RESCUE_PAUSE: Duration = Duration::from_millis(100);
