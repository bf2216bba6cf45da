//! Writes by the program and by the kernel.

use crate::{
    model::{Access, PAGE},
    world::{FILE_PAGES, Verdict, World},
};

/// Pages that one write covers at most.
const MOST_PAGES: usize = 24;

/// Writes random bytes into writable memory, at any byte.
pub(crate) fn write(world: &mut World) -> Verdict {
    let Some((span, page)) = world.model.pick(&mut world.random) else { return Ok(()) };
    let pages = &world.model.spans[span].pages;
    let writable = pages[page..].iter().take(MOST_PAGES).take_while(|page| page.access == Access::Write).count();
    if writable == 0 {
        return Ok(());
    }
    let at = world.random.below(PAGE);
    let count = 1 + world.random.below(writable * PAGE - at);
    let bytes = random_bytes(world, count);
    world.write(span, page, at, &bytes);
    world.check_pages(span, page..page + writable)
}

/// `count` random bytes.
pub(crate) fn random_bytes(world: &mut World, count: usize) -> Vec<u8> {
    let mut words = std::iter::repeat_with(|| world.random.draw().to_le_bytes()).flatten();
    words.by_ref().take(count).collect()
}

/// Has the kernel write: a read from the file. Where memory is not writable the kernel says EFAULT.
pub(crate) fn kernel_write(world: &mut World) -> Verdict {
    let Some((span, page)) = world.model.pick(&mut world.random) else { return Ok(()) };
    let pages = &world.model.spans[span].pages;
    let writable = pages[page..].iter().take(MOST_PAGES).take_while(|page| page.access == Access::Write).count();
    let from = world.random.below(FILE_PAGES - MOST_PAGES);
    let address = world.model.spans[span].address(page);
    let offset = i64::try_from(from * PAGE).unwrap_or(0);
    let bytes = writable.max(1) * PAGE;
    match (world.memory.read_file(world.file, address, bytes, offset), writable) {
        (Err(errno), 0) if errno.0 == libc::EFAULT => world.check_pages(span, page..page + 1),
        (Ok(count), 1..) if count == bytes => {
            for index in 0..writable {
                world.note(span, page + index, 0, &crate::model::file_page(from + index));
            }
            world.check_pages(span, page..page + writable)
        }
        (answer, _) => Err(format!("pread into {address:#x}, of whose pages {writable} are writable, gave {answer:?}")),
    }
}
