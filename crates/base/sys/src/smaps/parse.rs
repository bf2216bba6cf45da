//! The text of smaps: a header line for each mapping, then its `Name: value` lines.
//!
//! The first word of a header is `start-end`; that of a field ends in a colon. A mapping's name
//! cannot make one look like the other.

use std::io::{self, BufRead};

use super::{Mapping, Permissions};
use crate::kernel_file::kilobytes;

/// Parses the text of smaps. Skips unknown lines, and fields before the first header.
///
/// # Errors
/// Those of the reader.
pub fn parse(mut reader: impl BufRead) -> io::Result<Vec<Mapping>> {
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        // Bytes, because a file's name need not be UTF-8.
        if reader.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(mappings);
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        if let Some(mapping) = header(line) {
            mappings.push(mapping);
        } else if let (Some(mapping), Some((name, value))) = (mappings.last_mut(), line.split_once(':')) {
            set_field(mapping, name, value.trim());
        }
    }
}

/// Parses `7f00-7f80 rw-p 00001000 fe:00 1234      /a path`.
fn header(line: &str) -> Option<Mapping> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    // A mapping without a name may end right after its inode.
    let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
    (start < end).then_some(())?;
    Some(Mapping {
        start,
        end,
        permissions: letters(permissions)?,
        offset: hexadecimal(offset)?,
        device: device_numbers(device)?,
        inode: inode.parse().ok()?,
        name: name.trim_start().to_owned(),
        ..Mapping::default()
    })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Parses `fe:01`.
fn device_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
}

/// Parses `rw-p`.
pub(super) fn letters(text: &str) -> Option<Permissions> {
    let &[read, write, execute, kind] = text.as_bytes() else { return None };
    matches!(kind, b's' | b'p').then_some(Permissions {
        read: read == b'r',
        write: write == b'w',
        execute: execute == b'x',
        shared: kind == b's',
    })
}

fn set_field(mapping: &mut Mapping, name: &str, value: &str) {
    match name {
        "THPeligible" => mapping.thp_eligible = Some(value == "1"),
        "VmFlags" => {
            let pairs = value.split_ascii_whitespace().filter_map(|flag| flag.as_bytes().try_into().ok());
            mapping.flags = pairs.collect();
        }
        _ => {
            let (Some(field), Some(bytes)) = (bytes_field(mapping, name), kilobytes(value)) else { return };
            *field = bytes;
        }
    }
}

fn bytes_field<'a>(mapping: &'a mut Mapping, name: &str) -> Option<&'a mut u64> {
    Some(match name {
        "Rss" => &mut mapping.resident_bytes,
        "Anonymous" => &mut mapping.anonymous_bytes,
        "Swap" => &mut mapping.swap_bytes,
        "AnonHugePages" => &mut mapping.anon_huge_bytes,
        "Private_Hugetlb" => &mut mapping.hugetlb_private_bytes,
        "Shared_Hugetlb" => &mut mapping.hugetlb_shared_bytes,
        "KernelPageSize" => &mut mapping.kernel_page_bytes,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
Rss:  999 kB
00400000-00452000 r-xp 00001000 fe:01 173521                             /usr/bin/a program: with 1-2 names
Size:                328 kB
Rss:                 300 kB
FutureField:          12 kB
FutureWord:   yes please
THPeligible:           0
VmFlags: rd ex mr mw me dw toolong
7f0000000000-7f0000800000 rw-p 00000000 00:00 0 
Size:               8192 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                6144 kB
Anonymous:          6144 kB
AnonHugePages:      4096 kB
Swap:               2048 kB
Swap: nonsense
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg 
7f1000000000-7f1000200000 rw-p 00000000 00:0f 99    /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Private_Hugetlb:    2048 kB
Shared_Hugetlb:        0 kB
VmFlags: rd wr mr mw me de ht
55550000-55560000 rw-p 00000000 00:00 0                          [heap]
7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]
7f3000000000-7f3000001000 rw-s 00000000 00:01 5                  /dev/zero (deleted)
7f4000000000-7f4000001000 ---p 00000000 00:00 0                  [anon:\xff arena]
zzzz-7f40 rw-p 00000000 00:00 0
7f50-7f40 rw-p 00000000 00:00 0
";

    #[test]
    fn known_fields_belong_to_their_mapping() {
        let mappings = parse(TEXT).unwrap();
        assert_eq!(mappings.len(), 7);
        let program = &mappings[0];
        assert_eq!(
            (program.start, program.end, program.offset, program.inode),
            (0x40_0000, 0x45_2000, 0x1000, 173_521)
        );
        assert_eq!(program.name, "/usr/bin/a program: with 1-2 names");
        assert_eq!((program.resident_bytes, program.permissions.to_string().as_str()), (300 << 10, "r-xp"));
        assert!(program.has_flag("ex") && !program.has_flag("toolong") && !program.has_flag("wr"));
        assert_eq!((program.thp_eligible, program.is_private_anonymous()), (Some(false), false));

        let anonymous = &mappings[1];
        assert_eq!(anonymous.name, "");
        assert_eq!((anonymous.resident_bytes, anonymous.anon_huge_bytes), (6 << 20, 4 << 20));
        assert_eq!((anonymous.swap_bytes, anonymous.kernel_page_bytes), (2 << 20, 4 << 10));
        assert!(anonymous.has_flag("hg") && anonymous.thp_eligible == Some(true) && anonymous.is_private_anonymous());
    }

    #[test]
    fn kinds_of_memory_are_distinguished() {
        let mappings = parse(TEXT).unwrap();
        let [_, _, hugetlb, heap, stack, shared, named] = &mappings[..] else { panic!("seven mappings") };
        assert!(hugetlb.is_hugetlb() && hugetlb.is_private_anonymous());
        assert_eq!((hugetlb.present_bytes(), hugetlb.resident_bytes, hugetlb.kernel_page_bytes), (2 << 20, 0, 2 << 20));
        assert!(heap.is_private_anonymous() && !heap.is_hugetlb() && heap.thp_eligible.is_none());
        assert!(!stack.is_private_anonymous());
        assert!(shared.permissions.shared && !shared.is_private_anonymous());
        assert!(named.is_private_anonymous() && !named.is_read_write() && named.name.contains("arena"));
    }
}
