//! Made-up samples, counted by the real tables of lines: their meaning is known.

use super::{LineReport, MemoryKind, MemoryOwner, SampledInstruction, SampledThread, Sampling, Sharing};
use crate::profile::{MachineRecord, ProfiledProgram};
use fieldstone_sharing::{JudgedLine, LineCost, LineTable, Member, ObjectLayout, SampledAccess, Settings};

/// Where the array of linear regression begins: 16 bytes behind a line's start, as malloc has it.
const ARRAY: u64 = 0x5555_5555_6010;
const MEMBERS: [(&str, &str, u64, u64); 8] = [
    ("tid", "pthread_t tid", 0, 8),
    ("points", "POINT_T *points", 8, 8),
    ("num_elems", "int num_elems", 16, 4),
    ("SX", "long long SX", 24, 8),
    ("SY", "long long SY", 32, 8),
    ("SXX", "long long SXX", 40, 8),
    ("SYY", "long long SYY", 48, 8),
    ("SXY", "long long SXY", 56, 8),
];

/// Thread, first byte, bytes, write.
type AccessedBytes = (u32, u64, u32, bool);

/// The lines when all threads do this every millisecond, with a third of the samples elsewhere.
fn judged(settings: Settings, uses: &[AccessedBytes]) -> Vec<(JudgedLine, LineCost)> {
    let mut lines = LineTable::new(settings).unwrap();
    for at_ns in (0..20).map(|at_ms: u64| at_ms * 1_000_000) {
        for &(thread, address, bytes, write) in uses {
            lines.record(&SampledAccess {
                address,
                bytes,
                write,
                thread,
                weight: 0.125,
                at_ns,
                cpu: thread,
                ..SampledAccess::default()
            });
        }
        lines.record_elsewhere(uses.len() as f64 / 16.0, at_ns);
    }
    let now_ns = 20_000_000;
    let all = lines.total(now_ns);
    let heaviest = lines.heaviest(usize::MAX, now_ns).into_iter();
    heaviest
        .map(|line| (LineCost::of(&line, all).unwrap(), line))
        .map(|(cost, line)| (JudgedLine::new(line), cost))
        .collect()
}

fn found((judged, cost): (JudgedLine, LineCost), place: MemoryOwner) -> LineReport {
    LineReport {
        judged,
        cost,
        places: vec![place],
        code: Vec::new(),
        redesign: None,
        other_redesigns: Vec::new(),
        refused: None,
        contended: 0,
    }
}

fn sharing(command: &[&str]) -> Sharing {
    Sharing {
        tool_version: "0.1.0".into(),
        taken_at_unix_s: 1_763_655_240,
        machine: MachineRecord {
            kernel: "Linux 6.18.5".into(),
            architecture: "x86_64".into(),
            cpu: "AMD EPYC 9R14".into(),
            cpus: 2,
            memory_bytes: 16 << 30,
            virtual_machine: true,
            ..MachineRecord::default()
        },
        program: ProfiledProgram {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            primary: command[0].to_owned(),
            ..ProfiledProgram::default()
        },
        duration_s: 2.0,
        sampling: Sampling {
            means: "perf's software clock".into(),
            hertz: 1000.0,
            samples: 8000,
            lost: 3,
            accesses: 41_250,
            apart: 0,
        },
        unseen: vec!["2 % of the samples were in code that could not be decoded.".into()],
        ..Sharing::default()
    }
}

/// Four threads of linear regression without optimisation: three lines of the array are shared
/// falsely, its first and its last are not.
pub(crate) fn regression() -> Sharing {
    let touched = |thread: u32| {
        MEMBERS[1..].iter().map(move |&(_, _, offset, bytes)| {
            let address = ARRAY + u64::from(thread) * 64 + offset;
            (100 + thread, address, u32::try_from(bytes).unwrap(), offset >= 24)
        })
    };
    let uses: Vec<AccessedBytes> = (0..4).flat_map(touched).collect();
    let lines = judged(Settings::default(), &uses);
    let judged: Vec<JudgedLine> = lines.iter().map(|(judged, _)| judged.clone()).collect();
    let redesign = array().redesign(&judged).unwrap();
    let (findings, others): (Vec<LineReport>, Vec<LineReport>) = lines
        .into_iter()
        .map(|line| {
            let mut found = found(line, place());
            found.code = code(&found);
            found.redesign = redesign.clone().filter(|_| found.judged.verdict.is_finding());
            found
        })
        .partition(|found| found.judged.verdict.is_finding());
    let thread = |tid| SampledThread { tid, name: format!("worker-{}", tid - 100), start: Some("work".into()) };
    Sharing {
        threads: (100..104).map(thread).collect(),
        findings,
        others,
        ..sharing(&["linear_regression", "--threads", "4"])
    }
}

fn array() -> ObjectLayout {
    let members = MEMBERS.map(|(name, declaration, offset, bytes)| Member {
        name: name.to_owned(),
        declaration: declaration.to_owned(),
        offset,
        bytes,
        alignment: 0,
    });
    ObjectLayout {
        name: "lreg_args".into(),
        address: ARRAY,
        elements: 4,
        stride: 64,
        members: members.into(),
        on_heap: true,
    }
}

fn place() -> MemoryOwner {
    MemoryOwner {
        kind: MemoryKind::Heap,
        name: "lreg_args".into(),
        address: ARRAY,
        bytes: 256,
        allocated_by: vec!["main (src/sharing/linear_regression.c:171)".into()],
        object: Some(array()),
        ..MemoryOwner::default()
    }
}

/// Two instructions of one loop: the sums, and the bound.
fn code(found: &LineReport) -> Vec<SampledInstruction> {
    let line = &found.judged.line;
    let code = |ip, source_line, writes, weight| SampledInstruction {
        ip,
        function: "regress".into(),
        file: Some("src/sharing/linear_regression.c".into()),
        line: Some(source_line),
        module: "linear_regression".into(),
        reads: true,
        writes,
        threads: line.threads.iter().map(|thread| thread.thread).collect(),
        weight,
    };
    vec![code(0x1187, 57, true, line.weight * 0.75), code(0x1170, 56, false, line.weight * 0.25)]
}

/// Five lines that several threads use, or seem to, and none of them a finding: each of another
/// kind.
pub(crate) fn clean() -> Sharing {
    let names = [(0x1000, "counter"), (0x2000, "ring_head"), (0x3000, "flags"), (0x4000, "table"), (0x5000, "scratch")];
    let uses: [AccessedBytes; 10] = [
        (1, 0x1000, 8, true),
        (2, 0x1000, 8, true),
        (3, 0x1000, 8, true),
        (1, 0x2000, 8, true),
        (2, 0x2000, 8, false),
        (1, 0x3000, 1, true),
        (2, 0x3000, 1, true),
        (1, 0x4000, 8, false),
        (2, 0x4010, 8, false),
        (1, 0x5000, 8, true),
    ];
    let global = |address: u64| MemoryOwner {
        kind: MemoryKind::Global,
        name: names.iter().find(|(at, _)| *at == address).unwrap().1.to_owned(),
        module: Some("/usr/bin/server".into()),
        offset: Some(address),
        address,
        bytes: 8,
        ..MemoryOwner::default()
    };
    let lines = judged(Settings::default(), &uses);
    let others = lines.into_iter().map(|of| {
        let address = of.0.line.address;
        found(of, global(address))
    });
    Sharing { others: others.collect(), ..sharing(&["server"]) }
}

/// Two threads, each with a line of a pair for itself.
pub(crate) fn pair() -> Sharing {
    let settings = Settings { pairs: true, ..Settings::default() };
    let lines = judged(settings, &[(100, 0x1_0000, 8, true), (101, 0x1_0040, 8, true)]);
    let mapping = MemoryOwner { kind: MemoryKind::Mapping, address: 0x1_0000, bytes: 4096, ..MemoryOwner::default() };
    let findings = lines.into_iter().map(|of| found(of, mapping.clone())).collect();
    Sharing { findings, ..sharing(&["pair"]) }
}
