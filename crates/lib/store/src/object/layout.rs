//! The layout of a type: where its objects have pointers, as it is kept in the file.
//!
//! ```text
//!  0 number of the type   4 size in bytes   8 runs of pointers
//! 10 for each run: offset, number of pointers, length of the name of their type, name
//!  … the text of the fields; of a long one the beginning, and a hash of all of it
//! ```

use xxhash_rust::xxh3::xxh3_64;

use crate::object::stored::Object;
use crate::page::{set_u16, set_u32, u16_at, u32_at};

/// Adjacent pointers to objects of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointerRun {
    /// Of the first one, in bytes from the start of the object.
    pub(crate) offset: usize,
    pub(crate) count: usize,
    /// The name of the type to which they point.
    pub(crate) target: String,
}

/// A type without its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// In bytes.
    pub(crate) size: usize,
    pub(crate) runs: Vec<PointerRun>,
    /// The fields.
    pub(crate) text: String,
}

/// The longest text that is kept as a whole, in bytes, and what is kept of a longer one.
const LONGEST_TEXT: usize = 400;
const KEPT_TEXT: usize = 370;

/// Shortens a long text, so that the entry of a type fits into a page. Different texts stay different.
fn shorten(text: &mut String) {
    if text.len() > LONGEST_TEXT {
        let hash = xxh3_64(text.as_bytes());
        text.truncate(text.floor_char_boundary(KEPT_TEXT));
        text.push_str(&format!("… {hash:016x}"));
    }
}

impl Layout {
    pub(crate) fn of<T: Object>() -> Self {
        let mut layout = Self { size: size_of::<T>(), runs: Vec::new(), text: String::new() };
        T::describe(&mut layout.text);
        shorten(&mut layout.text);
        T::pointers(0, &mut |offset, target| match layout.runs.last_mut() {
            Some(run) if run.offset + 4 * run.count == offset && run.target == target => run.count += 1,
            _ => layout.runs.push(PointerRun { offset, count: 1, target: target.to_owned() }),
        });
        layout
    }

    /// The offset of each pointer.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.runs.iter().flat_map(|run| (0..run.count).map(|index| run.offset + 4 * index))
    }

    /// The name of the type to which each pointer leads.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().flat_map(|run| std::iter::repeat_n(run.target.as_str(), run.count))
    }

    pub(crate) fn encode(&self, number: u32) -> Vec<u8> {
        let mut bytes = vec![0; 10];
        set_u32(&mut bytes, 0, number);
        set_u32(&mut bytes, 4, self.size as u32);
        set_u16(&mut bytes, 8, self.runs.len());
        for run in &self.runs {
            let mut fields = [0; 6];
            set_u16(&mut fields, 0, run.offset);
            set_u16(&mut fields, 2, run.count);
            set_u16(&mut fields, 4, run.target.len());
            bytes.extend_from_slice(&fields);
            bytes.extend_from_slice(run.target.as_bytes());
        }
        bytes.extend_from_slice(self.text.as_bytes());
        bytes
    }

    /// The number of a type, and the type; `None` of bytes that describe none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(u32, Self)> {
        let (start, mut rest) = bytes.split_at_checked(10)?;
        let mut runs = Vec::new();
        for _ in 0..u16_at(start, 8) {
            let (fields, names) = rest.split_at_checked(6)?;
            let (target, behind) = names.split_at_checked(u16_at(fields, 4))?;
            let target = String::from_utf8(target.to_vec()).ok()?;
            runs.push(PointerRun { offset: u16_at(fields, 0), count: u16_at(fields, 2), target });
            rest = behind;
        }
        let text = String::from_utf8(rest.to_vec()).ok()?;
        Some((u32_at(start, 0), Self { size: u32_at(start, 4) as usize, runs, text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::stored::Ptr;

    crate::stored! {
        struct Other { a: u8 }
        struct Node { next: Ptr<Node>, before: Ptr<Node>, others: [Ptr<Other>; 3], number: u32, last: Ptr<Other> }
    }

    #[test]
    fn a_layout_is_read_as_it_was_written() {
        let layout = Layout::of::<Node>();
        let runs: Vec<_> = layout.runs.iter().map(|run| (run.offset, run.count, run.target.as_str())).collect();
        assert_eq!(runs, [(0, 2, "Node"), (8, 3, "Other"), (24, 1, "Other")]);
        let bytes = layout.encode(7);
        assert_eq!(Layout::decode(&bytes), Some((7, layout)));
        for end in 0..40 {
            assert!(Layout::decode(&bytes[..end]).is_none(), "{end} bytes");
        }
    }
}
