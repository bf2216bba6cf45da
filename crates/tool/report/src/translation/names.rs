//! Short names of functions for tables, without template arguments and closures. JSON and pages
//! have the whole names.

/// A demangled name without what stands in angle brackets: `fill_from` of `fill_from<u64, F>`. Of
/// `<Vec<T> as Trait>::f` it keeps the type: `Vec::f`. C++'s operators are not brackets: a name
/// with one stays as it is.
#[must_use]
pub fn without_generics(name: &str) -> String {
    if ["operator<", "operator>", "operator-"].iter().any(|operator| name.contains(operator)) {
        return name.to_owned();
    }
    let (mut depth, mut kept, mut before) = (0_u32, String::new(), ' ');
    // The bracket that such a name opens with is no argument list; its trait, from ` as ` on, is.
    let qualified = name.starts_with('<');
    for (place, sign) in name.char_indices().skip(usize::from(qualified)) {
        match sign {
            '<' => depth += 1,
            // Not that of an arrow.
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ if depth == 0 && qualified && name[place..].starts_with(" as ") => depth = 1,
            _ if depth == 0 => kept.push(sign),
            _ => {}
        }
        before = sign;
    }
    kept.replace("::::", "::").trim_end_matches("::").to_owned()
}

/// The function that a reader looks for: without generics, and of a closure the one that holds it.
pub(crate) fn plain(name: &str) -> String {
    let name = without_generics(name);
    match name.split_once("{closure") {
        None => name,
        Some((holder, _)) => match holder.trim_end_matches(['{', ':']) {
            "" => "a closure".to_owned(),
            holder => holder.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closures_are_named_by_the_function_that_contains_them() {
        for (name, short) in [
            ("main", "main"),
            ("fill_from<u64, gups::table::{closure_env#0}>", "fill_from"),
            ("gups::fill_from::<u64, fn(u32) -> u32>", "gups::fill_from"),
            ("gups::run::{closure#0}", "gups::run"),
            ("gups::run::<u64>::{closure#0}::{closure#1}", "gups::run"),
            ("game::World::grow::{{closure}}", "game::World::grow"),
            ("{closure#0}<u64>", "a closure"),
            ("<alloc::vec::Vec<T> as core::convert::Into<U>>::into", "alloc::vec::Vec::into"),
            ("std::vector<std::pair<int, char>, std::allocator<int> >::push_back(int)", "std::vector::push_back(int)"),
            ("std::ostream& operator<< <char>(std::ostream&)", "std::ostream& operator<< <char>(std::ostream&)"),
            ("(mapped by the program, or an allocator's own)", "(mapped by the program, or an allocator's own)"),
        ] {
            assert_eq!(plain(name), short, "{name}");
        }
    }
}
