//! Checks of the text: no word of `.ci/words` in identifiers, comments, messages and pages, no module that the table of its crate or
//! folder does not list, and no broken relative link.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are read. Generated results quote what was printed, so `docs/results` is left out.
const FOLDERS: [&str; 6] = [".ci", "bench", "crates", "docs", "scripts", "tests"];
const LEFT_OUT: [&str; 4] =
    ["docs/results", ".ci/words", "bench/reproduce/quotations.toml", "tests/layers/tests/prose.rs"];
const ENDINGS: [&str; 11] = ["rs", "md", "c", "h", "cpp", "toml", "html", "css", "S", "py", "sh"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text files of the repository, by their paths below the root.
fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("the folder exists").flatten() {
            let path = folder.join(entry.file_name());
            let is_text = path.extension().is_none_or(|ending| ENDINGS.iter().any(|text| ending == *text));
            if LEFT_OUT.iter().any(|out| path.starts_with(out)) {
            } else if entry.path().is_dir() {
                folders.push(path);
            } else if is_text {
                files.push(path);
            }
        }
    }
    let top = fs::read_dir(root()).expect("the root exists").flatten().map(|entry| PathBuf::from(entry.file_name()));
    files.extend(top.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    files
}

/// `text` in lower case as words between single blanks; `HeldPage` and `held_page` are two words each.
fn words(text: &str) -> String {
    let mut words = String::from(" ");
    let mut last = ' ';
    for letter in text.chars() {
        let starts = letter.is_uppercase() && last.is_lowercase();
        if (starts || !letter.is_alphabetic()) && !words.ends_with(' ') {
            words.push(' ');
        }
        if letter.is_alphabetic() {
            words.extend(letter.to_lowercase());
        }
        last = letter;
    }
    words.push(' ');
    words
}

/// The lines of a text that are checked, numbered from 0. Left out are the names of saved fields, which old files have, and in pages the
/// fenced blocks, which quote what was printed.
fn checked(text: &str, is_page: bool) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter(move |(_, line)| {
        is_fenced ^= is_page && line.starts_with("```");
        !is_fenced && !line.contains("#[serde(rename")
    })
}

/// The forbidden words in `lines`, with the numbers of their lines from 1.
fn findings<'a>(lines: impl Iterator<Item = (usize, &'a str)>, forbidden: &[String]) -> Vec<(usize, String)> {
    let lines = lines.map(|(index, line)| (index, words(line)));
    let found = lines.flat_map(|(index, line)| {
        let in_line = forbidden.iter().filter(move |word| line.contains(&format!(" {word} ")));
        in_line.map(move |word| (index + 1, word.clone()))
    });
    found.collect()
}

fn forbidden() -> Vec<String> {
    let list = fs::read_to_string(root().join(".ci/words")).expect("the list exists");
    list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).map(str::to_owned).collect()
}

#[test]
fn no_file_uses_a_forbidden_word() {
    let (forbidden, files) = (forbidden(), files());
    assert!(forbidden.len() > 20 && files.len() > 500, "{} words, {} files", forbidden.len(), files.len());
    let mut found = Vec::new();
    for file in &files {
        // What is no text has no words.
        let Ok(text) = fs::read_to_string(root().join(file)) else { continue };
        let is_page = file.extension().is_some_and(|ending| ending == "md");
        let of_file = findings(checked(&text, is_page), &forbidden);
        found.extend(of_file.into_iter().map(|(line, word)| format!("{}:{line}: {word}", file.display())));
    }
    assert!(found.is_empty(), "words of .ci/words:\n{}", found.join("\n"));
}

#[test]
fn a_forbidden_word_is_found_in_prose_and_in_identifiers() {
    let forbidden = ["anew".to_owned(), "given back".to_owned()];
    let text = "It is read anew.\nfn is_anew() {}\nstruct AnewPage;\nlet given_back = 1;\nGiven  back.\nrenewal, banew, anewer\n";
    let lines: Vec<usize> = findings(checked(text, false), &forbidden).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5]);
}

#[test]
fn printed_blocks_of_pages_and_saved_names_are_left_out() {
    let forbidden = ["anew".to_owned()];
    let page = "```\nanew\n```\nanew\n#[serde(rename = \"anew\")]\n";
    assert_eq!(findings(checked(page, true), &forbidden), [(4, "anew".to_owned())]);
    assert_eq!(findings(checked(page, false), &forbidden).len(), 2);
}

/// The lines of a source whose `SAFETY:` comment states nothing: fewer than five words, or a reference to another comment.
fn empty_safety(source: &str) -> Vec<usize> {
    let refers = |text: &str| ["as above", "see above", "the same"].iter().any(|start| text.starts_with(start));
    let lines = source.lines().enumerate().filter_map(|(index, line)| Some((index, line.split_once("// SAFETY: ")?.1)));
    lines.filter(|(_, text)| text.split_whitespace().count() < 5 || refers(text)).map(|(index, _)| index + 1).collect()
}

#[test]
fn every_safety_comment_states_an_invariant() {
    let mut found = Vec::new();
    for file in files().iter().filter(|file| file.extension().is_some_and(|ending| ending == "rs")) {
        let source = fs::read_to_string(root().join(file)).expect("a source is text");
        found.extend(empty_safety(&source).into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(found.is_empty(), "SAFETY comments without an invariant:\n{}", found.join("\n"));
}

#[test]
fn a_safety_comment_without_an_invariant_is_found() {
    let source = "// SAFETY: as above, and it is ours\n// SAFETY: just checked.\n// SAFETY: the range lies inside the mapping.\n";
    assert_eq!(empty_safety(source), [1, 2]);
}

/// The modules of a file, and those of them that no table row and no drawing of its documentation names. Modules of tests and inline
/// modules need none.
fn modules(source: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut listed, mut modules) = (String::new(), Vec::new());
    let (mut is_fenced, mut is_of_tests) = (false, false);
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("//! ") {
            is_fenced ^= text.starts_with("```");
            if is_fenced || text.starts_with('|') {
                listed.extend([text, "\n"]);
            }
        } else if line.starts_with("#[") {
            is_of_tests |= line.starts_with("#[cfg(test)]");
        } else {
            let module = line.strip_suffix(';').and_then(|line| line.split_once("mod "));
            let module = module.filter(|(before, _)| before.is_empty() || before.starts_with("pub"));
            modules.extend(module.filter(|_| !is_of_tests).map(|(_, name)| name));
            is_of_tests = false;
        }
    }
    let is_part = |letter: char| letter == '_' || letter.is_alphanumeric();
    let is_listed = |module: &str| listed.split(|letter| !is_part(letter)).any(|word| word == module);
    let unlisted = modules.iter().copied().filter(|module| !is_listed(module)).collect();
    (modules, unlisted)
}

/// The documentation of the crate that contains `file`.
fn crate_documentation(file: &Path) -> String {
    let folder = file.ancestors().find(|folder| folder.ends_with("src")).expect("a source is in src");
    let roots =
        ["lib.rs", "main.rs"].map(|name| fs::read_to_string(root().join(folder).join(name)).unwrap_or_default());
    roots.iter().flat_map(|source| source.lines()).filter(|line| line.starts_with("//!")).collect()
}

/// A folder module with few files needs no table. A file may also have a row `folder/file` in the table of its crate.
#[test]
fn every_crate_and_folder_lists_its_modules() {
    let is_source = |file: &&PathBuf| {
        file.components().any(|part| part.as_os_str() == "src") && file.extension().is_some_and(|ending| ending == "rs")
    };
    let mut unlisted = Vec::new();
    for file in files().iter().filter(is_source) {
        let source = fs::read_to_string(root().join(file)).expect("a source is text");
        let is_root = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
        let (modules, mut missing) = modules(&source);
        if missing.is_empty() || !is_root && modules.len() < 3 {
            continue;
        }
        let (folder, documentation) =
            (file.file_stem().unwrap_or_default().to_string_lossy(), crate_documentation(file));
        missing.retain(|module| !documentation.contains(&format!("{folder}/{module}`")));
        unlisted.extend(missing.into_iter().map(|module| format!("{}: {module}", file.display())));
    }
    assert!(unlisted.is_empty(), "modules that the table at the top does not list:\n{}", unlisted.join("\n"));
}

#[test]
fn a_module_without_a_row_is_found() {
    let source = "//! About rows and prose.\n//! | `a` | first |\n//! ```text\n//! b  second\n//! ```\nmod a;\npub mod b;\nmod prose;\n\
                  #[cfg(test)]\nmod tests;\npub(crate) mod c;\nmod inline {\n";
    assert_eq!(modules(source), (vec!["a", "b", "prose", "c"], vec!["prose", "c"]));
}

/// The targets of the relative links in a page, without their anchors.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let relative = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    relative.filter_map(|target| target.split('#').next()).filter(|target| !target.is_empty()).collect()
}

#[test]
fn every_relative_link_leads_to_a_file() {
    let pages = files().into_iter().filter(|file| file.extension().is_some_and(|ending| ending == "md"));
    let mut seen = 0;
    let mut broken = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root().join(&page)).expect("a page is text");
        for target in links(&text) {
            seen += 1;
            let folder = page.parent().expect("a page is in a folder");
            if !root().join(folder).join(target).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 30, "only {seen} links were found");
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn only_relative_links_are_followed() {
    let page = "[a](docs/a.md) [b](https://b) [c](#c) [d](d.md#e)";
    assert_eq!(links(page), ["docs/a.md", "d.md"]);
}
