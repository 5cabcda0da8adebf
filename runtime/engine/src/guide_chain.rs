//! Several guides of one sequence, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::guide::{GuideFactory, GuideWatch, LogitChanges, TokenGuide};

impl GuideFactory {
    /// Guides that work one after the other: `next` is given what these leave.
    pub fn then(self, next: GuideFactory) -> GuideFactory {
        GuideFactory::new(move |sample| Box::new(Chain::new([self.make(sample), next.make(sample)])))
    }
}

/// Two guides, each of which may be a chain.
struct Chain {
    guides: [Box<dyn TokenGuide>; 2],
    watch: Arc<ChainWatch>,
}

struct ChainWatch {
    of_guides: [Arc<dyn GuideWatch>; 2],
    /// Which of them works.
    at: AtomicUsize,
}

impl Chain {
    fn new(guides: [Box<dyn TokenGuide>; 2]) -> Chain {
        let watch = ChainWatch {
            of_guides: [guides[0].watch(), guides[1].watch()],
            at: AtomicUsize::new(0),
        };
        Chain {
            guides,
            watch: Arc::new(watch),
        }
    }
}

impl TokenGuide for Chain {
    fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
        for (at, guide) in self.guides.iter_mut().enumerate() {
            self.watch.at.store(at, Ordering::Relaxed);
            guide.next(tokens, changes)?;
        }
        Ok(())
    }

    fn watch(&self) -> Arc<dyn GuideWatch> {
        self.watch.clone()
    }
}

impl GuideWatch for ChainWatch {
    fn constraint(&self) -> String {
        self.of_guides.each_ref().map(|watch| watch.constraint()).join(" and ")
    }

    fn is_of_request(&self) -> bool {
        self.of_guides[self.at.load(Ordering::Relaxed)].is_of_request()
    }

    /// The sum, where both have one; one that has none takes no time worth counting.
    fn limit(&self) -> Option<Duration> {
        self.of_guides
            .iter()
            .filter_map(|watch| watch.limit())
            .reduce(|sum, limit| sum + limit)
    }

    fn give_up(&self, limit: Duration) -> String {
        self.of_guides[self.at.load(Ordering::Relaxed)].give_up(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forbids a token, adds a bias, and waits at most so many seconds.
    #[derive(Clone, Copy)]
    struct Named(u32, Option<u64>);

    impl TokenGuide for Named {
        fn next(&mut self, tokens: &[u32], changes: &mut LogitChanges) -> Result<(), String> {
            if tokens.contains(&self.0) {
                return Err(format!("{} has come", self.0));
            }
            changes.mask[0] &= !(1 << self.0);
            changes.biases.push((self.0, 1.0));
            Ok(())
        }

        fn watch(&self) -> Arc<dyn GuideWatch> {
            Arc::new(*self)
        }
    }

    impl GuideWatch for Named {
        fn constraint(&self) -> String {
            self.0.to_string()
        }

        fn limit(&self) -> Option<Duration> {
            self.1.map(Duration::from_secs)
        }
    }

    #[test]
    fn guides_work_in_order_on_what_the_earlier_ones_leave() {
        let of = |named: Named| GuideFactory::new(move |_| Box::new(named));
        let factory = of(Named(1, None))
            .then(of(Named(2, Some(3))))
            .then(of(Named(3, Some(4))));
        let mut chain = factory.make(0);
        let mut changes = LogitChanges::none(5);
        chain.next(&[], &mut changes).expect("goes on");
        assert_eq!(changes.mask, [!0b1110]);
        assert_eq!(changes.biases, [(1, 1.0), (2, 1.0), (3, 1.0)]);
        let watch = chain.watch();
        assert_eq!(watch.constraint(), "1 and 2 and 3");
        assert_eq!(watch.limit(), Some(Duration::from_secs(7)));
        let late = |words: &str| watch.give_up(Duration::from_secs(7)).starts_with(words);
        assert!(late("3 took longer than 7s"), "the last one worked");
        assert_eq!(chain.next(&[2], &mut changes), Err("2 has come".to_string()));
        assert!(late("2 took"), "it stopped at the second");
    }
}
