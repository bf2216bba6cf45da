//! Whether a thread runs at the same time as others. Samples of a thread that runs alone need no
//! analysis: it contends with no other.
//!
//! ```text
//!   thread 1   x x x x x x x x x x x x x x x           x: a sample
//!   thread 2         x x x x                           span: SAMPLES_UNTIL_STOPPED samples
//!              alone |        | span | alone
//! ```

use crate::tuning::SAMPLES_UNTIL_STOPPED;

/// The threads of the most recent samples. Samples must be given in the order of time.
#[derive(Debug)]
pub(crate) struct Concurrency {
    span_ns: u64,
    last: Option<(u32, u64)>,
    /// Time of the last sample of a thread other than `last`.
    other_ns: Option<u64>,
}

impl Concurrency {
    /// Threads are sampled `hertz` times per second of their time. Samples within one window of
    /// `window_ns` count as simultaneous.
    pub(crate) fn new(hertz: u32, window_ns: u64) -> Self {
        let span_ns = window_ns.max(SAMPLES_UNTIL_STOPPED * 1_000_000_000 / u64::from(hertz.max(1)));
        Self { span_ns, last: None, other_ns: None }
    }

    /// Records a sample of `thread`; returns whether another thread was sampled within the span
    /// before it.
    pub(crate) fn record(&mut self, thread: u32, at_ns: u64) -> bool {
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
        let mut concurrency = Concurrency::new(1000, 4_000_000);
        let mut runs_with_another = |thread, at_ms: u64| concurrency.record(thread, at_ms * 1_000_000);
        assert!((0..9).all(|at_ms| !runs_with_another(1, at_ms)), "no other thread was sampled");
        assert!(runs_with_another(2, 9) && runs_with_another(1, 9) && runs_with_another(1, 10), "both threads run");
        assert!(
            (10..14).all(|at_ms| runs_with_another(1, at_ms)) && !runs_with_another(1, 14),
            "the other thread has stopped"
        );
        assert!(
            !runs_with_another(1, 1000)
                && runs_with_another(3, 1001)
                && runs_with_another(3, 1004)
                && !runs_with_another(3, 1006),
            "one thread replaced the other"
        );
    }

    #[test]
    fn a_low_rate_of_samples_makes_the_span_longer() {
        let mut concurrency = Concurrency::new(100, 4_000_000);
        let mut runs_with_another = |thread, at_ms: u64| concurrency.record(thread, at_ms * 1_000_000);
        assert!(!runs_with_another(1, 0) && runs_with_another(2, 9) && runs_with_another(1, 19));
        assert!(runs_with_another(1, 29) && runs_with_another(1, 39) && !runs_with_another(1, 49));
    }
}
