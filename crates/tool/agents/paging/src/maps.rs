//! The memory of the program, from `/proc/self`.

use core::ffi::CStr;
use core::ops::Range;

use crate::raw::{self, PAGE};

/// `/proc/self/statm`, open for the whole life of the thread.
#[derive(Debug)]
pub(crate) struct MemorySize(i32);

impl MemorySize {
    pub(crate) fn open() -> Option<Self> {
        raw::open(c"/proc/self/statm", libc::O_RDONLY | libc::O_CLOEXEC).map(Self)
    }

    /// Mapped pages, and resident private ones.
    pub(crate) fn read(&self) -> (usize, usize) {
        let mut text = [0; 128];
        let length = raw::read_start(self.0, &mut text);
        let mut numbers = text[..length].split(|&byte| byte == b' ').map(number);
        let (mapped, resident) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let shared = numbers.next().unwrap_or(0);
        (mapped, resident.saturating_sub(shared))
    }
}

/// The processor on which a thread of this process runs, or has run last.
pub(crate) fn processor(thread: u32) -> Option<usize> {
    let mut text = [0; 512];
    let text = read_of_thread(thread, b"/stat\0", &mut text)?;
    // The name may contain spaces. Field 39 of the file is the processor; field 3 follows the name.
    let end = text.iter().rposition(|&byte| byte == b')')?;
    text[end + 1..].split(|&byte| byte == b' ').nth(37).map(number)
}

/// The address of the instruction at which a thread waits.
pub(crate) fn instruction(thread: u32) -> Option<u64> {
    let mut text = [0; 256];
    // The last field. A thread that runs has no such fields.
    let text = read_of_thread(thread, b"/syscall\0", &mut text)?;
    let field = text.trim_ascii_end().rsplit(|&byte| byte == b' ').next()?;
    Some(hexadecimal(field.strip_prefix(b"0x")?)? as u64)
}

/// Reads `/proc/self/task/THREAD/…`. `name` begins with a slash and ends with a zero.
fn read_of_thread<'a>(thread: u32, name: &[u8], into: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = [0; 48];
    let (mut digits, mut at, mut rest) = ([0; 10], 10, thread);
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut length = 0;
    for part in [&b"/proc/self/task/"[..], &digits[at..], name] {
        path.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    let file = raw::open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let length = raw::read(file, into);
    raw::close(file);
    Some(&into[..length])
}

fn number(digits: &[u8]) -> usize {
    digits.iter().fold(0, |value, &digit| value * 10 + usize::from(digit.wrapping_sub(b'0').min(9)))
}

/// Calls `visit` for each private anonymous mapping that is writable or without access, stacks of
/// the main thread excluded.
pub(crate) fn for_each_mapping(buffer: &mut [u8], mut visit: impl FnMut(Range<usize>, bool)) {
    for_each_line(c"/proc/self/maps", buffer, |line| {
        if let Some((range, is_writable)) = parse(line) {
            visit(range, is_writable);
        }
    });
}

/// Calls `visit` for each mapping whose pages a forked child does not get (`MADV_WIPEONFORK`).
pub(crate) fn for_each_wiped(visit: &mut dyn FnMut(Range<usize>)) {
    let mut current = 0..0;
    for_each_line(c"/proc/self/smaps", &mut [0; 4096], |line| {
        if let Some(range) = line.split(|&byte| byte == b' ').next().and_then(parse_range) {
            current = range;
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:")
            && flags.split(|&byte| byte == b' ').any(|flag| flag == b"wf")
        {
            visit(current.clone());
        }
    });
}

/// Calls `visit` for each line of a file that fits into the buffer.
fn for_each_line(path: &CStr, buffer: &mut [u8], mut visit: impl FnMut(&[u8])) {
    let Some(file) = raw::open(path, libc::O_RDONLY | libc::O_CLOEXEC) else { return };
    let mut filled = 0;
    loop {
        let read = raw::read(file, &mut buffer[filled..]);
        filled += read;
        let end = buffer[..filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        buffer[..end].split(|&byte| byte == b'\n').for_each(&mut visit);
        buffer.copy_within(end..filled, 0);
        filled -= end;
        if read == 0 {
            break;
        }
    }
    raw::close(file);
}

/// `start-end perms offset device inode name`.
fn parse(line: &[u8]) -> Option<(Range<usize>, bool)> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let range = parse_range(fields.next()?)?;
    let access = fields.next()?;
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or(b"");
    let is_plain = name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:");
    let is_writable = access.starts_with(b"rw-");
    let is_kind = access.ends_with(b"p") && inode == b"0" && is_plain && (is_writable || access.starts_with(b"---"));
    (is_kind && range.len() >= PAGE).then_some((range, is_writable))
}

/// `start-end`.
fn parse_range(text: &[u8]) -> Option<Range<usize>> {
    let dash = text.iter().position(|&byte| byte == b'-')?;
    Some(hexadecimal(&text[..dash])?..hexadecimal(&text[dash + 1..])?)
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
#[allow(unsafe_code, reason = "makes a system call")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_selected() {
        let heap = b"55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(parse(heap), Some((0x55d0_c8a0_0000..0x55d0_c8a2_1000, true)));
        let reserved = b"7f0000021000-7f0004000000 ---p 00000000 00:00 0 ";
        assert_eq!(parse(reserved), Some((0x7f00_0002_1000..0x7f00_0400_0000, false)));
        for other in [
            &b"7ffc0a000000-7ffc0a021000 rw-p 00000000 00:00 0                          [stack]"[..],
            b"55d0c7a00000-55d0c7a21000 rw-p 00001000 08:01 1234                       /bin/cat",
            b"7f0000000000-7f0000021000 rw-s 00000000 00:00 0 ",
            b"7f0000000000-7f0000021000 r--p 00000000 00:00 0 ",
            b"",
        ] {
            assert_eq!(parse(other), None);
        }
    }

    #[test]
    fn this_process_has_memory() {
        let (mapped, private) = MemorySize::open().unwrap().read();
        assert!(mapped > private && private > 0);
        // SAFETY: the call has no arguments.
        let thread = unsafe { fieldstone_syscall::syscall(libc::SYS_gettid, [0; 6]) };
        assert!(processor(thread as u32).is_some_and(|processor| processor < 4096), "of this thread");
        assert_eq!(processor(0), None);
        assert!(instruction(thread as u32).is_some(), "the call that reads the file");
        assert_eq!(instruction(0), None);
        let mut count = 0;
        for_each_mapping(&mut [0; 4096], |range, _| count += range.len());
        assert!(count > 0);
    }
}
