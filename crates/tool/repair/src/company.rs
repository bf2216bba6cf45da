//! Whether a thread runs beside others. One that runs alone fights with nobody: what it does need not be looked at.
//!
//! ```text
//!   thread 1   x x x x x x x x x x x x x x x           x: a sample
//!   thread 2         x x x x                           so long after the last sample of another one, a thread is alone
//!              alone |        | span | alone
//! ```

/// A thread that runs all the time has so many samples until it counts as gone.
const SAMPLES: u64 = 3;

/// Looks at whose samples come, in the order of time.
#[derive(Debug)]
pub(super) struct Company {
    span_ns: u64,
    last: Option<(u32, u64)>,
    /// The last sample of a thread other than the last one's.
    other_ns: Option<u64>,
}

impl Company {
    /// Threads that run have `hertz` samples a second, and are together that were seen in the same window.
    pub(super) fn of(hertz: u32, window_ns: u64) -> Self {
        let span_ns = window_ns.max(SAMPLES * 1_000_000_000 / u64::from(hertz.max(1)));
        Self { span_ns, last: None, other_ns: None }
    }

    /// Whether another thread than this was seen shortly before this sample of it.
    pub(super) fn has(&mut self, thread: u32, at_ns: u64) -> bool {
        if let Some((last, last_ns)) = self.last.replace((thread, at_ns))
            && last != thread
        {
            self.other_ns = Some(last_ns);
        }
        self.other_ns.is_some_and(|other_ns| at_ns.saturating_sub(other_ns) <= self.span_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_alone_when_the_others_sleep() {
        let mut company = Company::of(1000, 4_000_000);
        let mut has = |thread, at_ms: u64| company.has(thread, at_ms * 1_000_000);
        assert!((0..9).all(|at_ms| !has(1, at_ms)), "no other was ever seen");
        assert!(has(2, 9) && has(1, 9) && has(1, 10), "both run");
        assert!((10..14).all(|at_ms| has(1, at_ms)) && !has(1, 14), "the other one is gone");
        assert!(!has(1, 1000) && has(3, 1001) && has(3, 1004) && !has(3, 1006), "one took over from the other");
    }

    #[test]
    fn few_samples_a_second_make_company_last_longer() {
        let mut company = Company::of(100, 4_000_000);
        assert!(!company.has(1, 0) && company.has(2, 9_000_000) && company.has(1, 19_000_000));
        assert!(company.has(1, 29_000_000) && company.has(1, 39_000_000) && !company.has(1, 49_000_000));
    }
}
