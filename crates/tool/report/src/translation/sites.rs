//! Walks by allocation site, and for memory of no site.
//!
//! Control characters and line ends in names are replaced by visible ones. Names have their whole
//! length; [`shortened`] and [`shortened_path`] cut them.

use super::summary::part;
use super::{AllocationSite, SitePages, Translation};
use crate::shell::printable;
use serde::Serialize;

/// The walks for one site's memory, or for memory of no site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteLine {
    /// The function, or what the memory is.
    pub name: String,
    /// `file:line`, or the module where no debug information names them; empty for memory of no
    /// site.
    pub place: String,
    /// The call stack, innermost first.
    pub stack: Vec<String>,
    /// Part of all walks for data on 4 KiB pages.
    pub share: f64,
    /// The same on 2 MiB pages, as a part of all walks on 4 KiB pages.
    pub share_large: f64,
    /// Walks on 4 KiB pages, a thousand accesses of the program.
    pub walks_per_thousand: Option<f64>,
    /// Bytes allocated in the traced run; none for memory of no site.
    pub bytes: Option<u64>,
    /// Allocations in the traced run; none for memory of no site.
    pub allocations: Option<u64>,
    /// The pages of its memory in real runs, by the requested kind; empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<SitePages>,
}

impl SiteLine {
    /// Share of its memory on pages of at least the size of `kind`, in a run on that; `None` if
    /// unknown.
    pub(crate) fn large_on(&self, kind: &str) -> Option<f64> {
        self.pages.iter().find(|pages| pages.kind == kind).map(|pages| pages.share)
    }

    /// The page kinds for which the pages of any of `lines` are known.
    pub(crate) fn kinds<'a>(lines: impl IntoIterator<Item = &'a Self>) -> Vec<&'a str> {
        let mut kinds: Vec<&str> = Vec::new();
        for pages in lines.into_iter().flat_map(|line| &line.pages) {
            if !kinds.contains(&pages.kind.as_str()) {
                kinds.push(&pages.kind);
            }
        }
        kinds
    }

    /// The nearest `most` callers of the site's function.
    pub(crate) fn callers(&self, most: usize) -> impl Iterator<Item = &str> {
        let own = self.stack.iter().position(|frame| called(frame).0 == self.name).unwrap_or(0);
        self.stack.iter().skip(own + 1).take(most).map(String::as_str)
    }

    /// The sites, most walks first; and memory of no site, with unattributed walks at its end.
    pub(super) fn all(traced: &Translation) -> (Vec<Self>, Vec<Self>) {
        let small = traced.configuration("4k").map(|of| of.data).unwrap_or_default();
        let (attributed, attributed_large) = attributed(traced);
        let all = small.walks.max(attributed);
        let accesses = if small.accesses > 0 { small.accesses } else { traced.counted_accesses };
        let line = |name: &str, walks: u64, walks_large: u64| Self {
            name: one_line(name),
            place: String::new(),
            stack: Vec::new(),
            share: part(walks, all).unwrap_or(0.0),
            share_large: part(walks_large, all).unwrap_or(0.0),
            walks_per_thousand: part(walks, accesses).map(|part| part * 1000.0),
            bytes: None,
            allocations: None,
            pages: Vec::new(),
        };
        let mut sites: Vec<&AllocationSite> = traced.sites.iter().collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.walks));
        // An entry without allocations is no site, but memory of another origin.
        let (sites, nameless): (Vec<&AllocationSite>, Vec<&AllocationSite>) =
            sites.into_iter().partition(|site| site.allocations > 0 || site.bytes > 0);
        let sites = sites.into_iter().map(|site| Self {
            place: place(site),
            stack: site.stack.iter().map(|frame| one_line(frame)).collect(),
            bytes: Some(site.bytes),
            allocations: Some(site.allocations),
            pages: site.pages.iter().map(|of| SitePages { kind: one_line(&of.kind), ..of.clone() }).collect(),
            ..line(&site.function, site.walks, site.walks_large)
        });
        let nameless = nameless.into_iter().map(|site| line(&site.function, site.walks, site.walks_large));
        let mut rest: Vec<Self> = nameless.collect();
        if attributed > 0 && attributed < all {
            // Without attributed walks on 2 MiB pages, the unattributed ones are unknown.
            let large = traced.configuration("2m").filter(|_| attributed_large > 0).map_or(0, |of| of.data.walks);
            rest.push(line("not attributed", all - attributed, large.saturating_sub(attributed_large)));
        }
        rest.retain(|line| line.share > 0.0);
        (sites.collect(), rest)
    }
}

/// The walks for known memory: on 4 KiB pages, and on 2 MiB pages.
fn attributed(traced: &Translation) -> (u64, u64) {
    let sites = traced.sites.iter().map(|site| (site.walks, site.walks_large));
    sites.fold((0, 0), |sum, walks| (sum.0.saturating_add(walks.0), sum.1.saturating_add(walks.1)))
}

/// `graph/build.c:214`, or the module where there is no file.
fn place(site: &AllocationSite) -> String {
    match (&site.file, site.line) {
        (Some(file), Some(line)) => one_line(&format!("{file}:{line}")),
        (Some(file), None) => one_line(file),
        (None, _) => one_line(&site.module),
    }
}

/// Name and place of a frame: `work` and `src/work.c:7` of `work (src/work.c:7)`.
pub(crate) fn called(frame: &str) -> (&str, &str) {
    let parts = frame.strip_suffix(')').and_then(|frame| frame.rsplit_once(" ("));
    parts.unwrap_or((frame, ""))
}

/// `text` without control characters and line ends.
fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// At most `most` letters of the end of a path with a line number, from a directory on:
/// `…/Objects/dictobject.c:1429`. A path is cut within a name only if no directory fits.
pub(crate) fn shortened_path(path: &str, most: usize) -> String {
    let letters = path.chars().count();
    if letters <= most {
        return path.to_owned();
    }
    let tails = path.match_indices('/').map(|(at, _)| &path[at..]);
    match tails.into_iter().find(|tail| tail.chars().count() < most) {
        Some(tail) => format!("…{tail}"),
        None => format!("…{}", path.chars().skip(letters - most.saturating_sub(1).min(letters)).collect::<String>()),
    }
}

/// At most `most` letters of `text`, without its middle, where names of templates repeat
/// themselves.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let head = most.saturating_sub(1).div_ceil(2);
    let tail = most.saturating_sub(1) - head;
    let mut short: String = letters[..head].iter().collect();
    short.push('…');
    short.extend(&letters[letters.len() - tail..]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translation::{ModelledConfiguration, ReportedSide};

    fn nameless(function: &str, walks: u64) -> AllocationSite {
        AllocationSite { function: function.into(), walks, ..AllocationSite::default() }
    }

    fn traced(walks: u64, sites: &[u64], rest: &[u64]) -> Translation {
        let site = |walks: &u64| AllocationSite { allocations: 1, ..nameless(&format!("site-{walks}"), *walks) };
        let stacks = rest.iter().map(|walks| nameless("stacks", *walks));
        let data = ReportedSide { accesses: 1000, walks, ..ReportedSide::default() };
        Translation {
            configurations: vec![ModelledConfiguration { name: "4k".into(), data, ..ModelledConfiguration::default() }],
            sites: sites.iter().map(site).chain(stacks).collect(),
            ..Translation::default()
        }
    }

    #[test]
    fn shares_are_of_all_walks_and_unattributed_ones_have_a_line() {
        let (sites, rest) = SiteLine::all(&traced(200, &[20, 100], &[40, 0]));
        let shares = |lines: &[SiteLine]| lines.iter().map(|line| line.share).collect::<Vec<_>>();
        assert_eq!((shares(&sites), shares(&rest)), (vec![0.5, 0.1], vec![0.2, 0.2]));
        assert_eq!((sites[0].name.as_str(), rest[1].name.as_str()), ("site-100", "not attributed"));
        assert_eq!(sites[0].walks_per_thousand, Some(100.0));
    }

    #[test]
    fn walks_on_large_pages_are_known_only_where_they_were_attributed() {
        let mut of = traced(200, &[100], &[]);
        let large = ReportedSide { walks: 50, ..ReportedSide::default() };
        of.configurations.push(ModelledConfiguration {
            name: "2m".into(),
            data: large,
            ..ModelledConfiguration::default()
        });
        assert_eq!(SiteLine::all(&of).1[0].share_large, 0.0);
        of.sites[0].walks_large = 30;
        assert_eq!(SiteLine::all(&of).1[0].share_large, 0.1);
    }

    #[test]
    fn counts_that_do_not_fit_make_no_share_above_all() {
        let (sites, rest) = SiteLine::all(&traced(10, &[u64::MAX, u64::MAX], &[]));
        assert!(sites.iter().all(|site| site.share <= 1.0) && rest.is_empty());
        let (sites, rest) = SiteLine::all(&Translation { configurations: vec![], ..traced(0, &[0], &[0]) });
        assert_eq!((sites[0].share, sites[0].walks_per_thousand, rest.len()), (0.0, None, 0));
    }

    #[test]
    fn what_allocated_nothing_is_no_site() {
        let mut of = traced(200, &[20, 100], &[40]);
        of.sites[1].allocations = 0;
        of.configurations[0].name = "4K".into();
        let (sites, rest) = SiteLine::all(&of);
        assert_eq!((sites.len(), sites[0].name.as_str()), (1, "site-20"));
        assert_eq!((rest.len(), rest[0].name.as_str(), rest[0].share, rest[0].bytes), (3, "site-100", 0.5, None));
    }

    #[test]
    fn words_stay_in_their_line() {
        let mut of = traced(10, &[10], &[]);
        of.sites[0].function = "evil\x1b[31m\nname".into();
        of.sites[0].file = Some("a\rb.c".into());
        of.sites[0].line = Some(7);
        of.sites[0].stack = vec!["main\n".into()];
        let (sites, _) = SiteLine::all(&of);
        assert_eq!((sites[0].name.as_str(), sites[0].place.as_str()), (r"evil\x1b[31m\nname", r"a\x0db.c:7"));
        assert_eq!(sites[0].stack, [r"main\n"]);
    }

    #[test]
    fn long_paths_begin_at_a_directory() {
        let path = "/tmp/python-build.2026/Python-3.11.7/Objects/dictobject.c:1429";
        assert_eq!(shortened_path(path, 100), path);
        assert_eq!(shortened_path(path, 40), "…/Objects/dictobject.c:1429");
        assert_eq!(shortened_path(path, 27), "…/Objects/dictobject.c:1429");
        assert_eq!(shortened_path(path, 26), "…/dictobject.c:1429");
        assert_eq!(shortened_path(path, 10), "…ct.c:1429");
        assert_eq!((shortened_path("äöü.c:7", 6), shortened_path("a.c:7", 0)), ("…ü.c:7".into(), "…".into()));
    }

    #[test]
    fn pages_of_stacks_that_are_one_site_count_by_their_bytes() {
        let pages = |kind: &str, share, bytes| SitePages { kind: kind.into(), share, bytes, samples: 8 };
        let mut of = traced(10, &[6, 4], &[]);
        let mut other = of.sites.remove(1);
        other.walks_large = 2;
        other.pages = vec![pages("thp", 0.0, 100), pages("hugetlb", 0.5, 7)];
        of.sites[0].pages = vec![pages("thp", 1.0, 300)];
        of.sites[0].join(&other);
        let line = SiteLine::all(&of).0.remove(0);
        assert_eq!((line.share, line.share_large, line.allocations), (1.0, 0.2, Some(2)));
        assert_eq!(
            (line.large_on("thp"), line.large_on("hugetlb"), line.large_on("4k")),
            (Some(0.75), Some(0.5), None)
        );
        assert_eq!((line.pages[0].samples, line.pages[0].bytes), (16, 400));
        let mut nothing = SitePages::default();
        nothing.join(&SitePages::default());
        assert_eq!(nothing, SitePages::default(), "nothing has no share");
    }

    #[test]
    fn callers_follow_the_site_in_its_stack() {
        let stack = ["xmalloc (x.c:1)", "work(int) (w.c:2)", "main (app)", "_start (app)"].map(str::to_owned).into();
        let line = SiteLine { stack, ..SiteLine::all(&traced(1, &[1], &[])).0.remove(0) };
        let of = |name: &str| {
            SiteLine { name: name.into(), ..line.clone() }.callers(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of("work(int)"), ["main (app)", "_start (app)"]);
        assert_eq!(of("unknown"), ["work(int) (w.c:2)", "main (app)"]);
        assert_eq!(called("work(int) (w.c:2)"), ("work(int)", "w.c:2"));
        assert_eq!(called("work(int)"), ("work(int)", ""));
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 10), "abcde…hijk");
        assert_eq!(
            (shortened("äöü", 2), shortened("ab", 1), shortened("ab", 0)),
            ("ä…".into(), "…".into(), "…".into())
        );
    }
}
