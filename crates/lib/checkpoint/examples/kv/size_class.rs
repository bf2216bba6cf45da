//! Size classes of blocks: each number of words up to 8, then four classes for each power of two.

/// Classes, the unused class 0 included.
pub(crate) const CLASSES: usize = 192;

/// The words of a block that was allocated with `words` words.
pub(crate) fn rounded(words: usize) -> usize {
    size_of_class(class_of(words))
}

/// The class of the smallest blocks with at least `words` words.
pub(crate) fn class_of(words: usize) -> usize {
    if words <= 8 {
        return words.max(1);
    }
    let log = (words - 1).ilog2() as usize;
    let quarter = 1 << (log - 2);
    8 + (log - 3) * 4 + (words - (1 << log)).div_ceil(quarter)
}

/// Words of a block of a class.
pub(crate) fn size_of_class(class: usize) -> usize {
    if class <= 8 {
        return class;
    }
    let (log, step) = ((class - 9) / 4 + 3, (class - 9) % 4 + 1);
    (1 << log) + (step << (log - 2))
}

/// The size of the largest blocks with at most `words` words.
pub(crate) fn largest_class_within(words: usize) -> usize {
    let class = class_of(words);
    size_of_class(if size_of_class(class) > words { class - 1 } else { class })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_contains_it() {
        for words in 1..5000 {
            let class = class_of(words);
            assert!(size_of_class(class) >= words && (class == 1 || size_of_class(class - 1) < words), "{words}");
            assert!(largest_class_within(words) <= words && rounded(words) * 4 <= words * 5, "{words}");
        }
        assert!(class_of(1 << 44) < CLASSES);
    }
}
