//! Sums of one interval, and its log line. Pure.

use std::time::Duration;

use halyard_platform_api::hooks::StatRecord;

/// Sums of an interval, and the last values of gauges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    engine_index: u32,
    prompt_tokens: u64,
    generation_tokens: u64,
    num_running: u32,
    num_waiting: u32,
    usage: f64,
    prefix_queries: u64,
    prefix_hits: u64,
    external_queries: u64,
    external_hits: u64,
    num_rejected: u64,
    active: bool,
}

impl Window {
    /// Takes note of a record.
    pub fn observe(&mut self, record: &StatRecord) {
        match record {
            StatRecord::Start(start) => self.engine_index = start.engine_index,
            StatRecord::Scheduler(record) => {
                self.num_running = record.num_running;
                self.num_waiting = record.num_waiting;
                self.active = true;
            }
            StatRecord::Iteration(record) => {
                self.prompt_tokens += record.prompt_tokens + record.cached_tokens;
                self.generation_tokens += record.generation_tokens;
                self.active = true;
            }
            StatRecord::Cache(record) => {
                self.usage = record.usage;
                self.prefix_queries += record.prefix_queries;
                self.prefix_hits += record.prefix_hits;
                self.external_queries += record.external_queries;
                self.external_hits += record.external_hits;
            }
            StatRecord::Rejected(_) => {
                self.num_rejected += 1;
                self.active = true;
            }
            StatRecord::Finished(_) | StatRecord::Lora(_) | StatRecord::Shutdown(_) => {}
        }
    }

    /// Whether there is anything to say.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// The line for an interval of `elapsed`, and a fresh interval. The prefix hit rate is of the tokens looked up in
    /// it.
    pub fn line(&mut self, elapsed: Duration) -> String {
        let per_second = |tokens: u64| tokens as f64 / elapsed.as_secs_f64().max(1e-3);
        let mut line = format!(
            "Engine {:03}: Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {:.1} tokens/s, Running: \
             {} reqs, Waiting: {} reqs, KV cache usage: {:.1}%",
            self.engine_index,
            per_second(self.prompt_tokens),
            per_second(self.generation_tokens),
            self.num_running,
            self.num_waiting,
            self.usage * 100.0,
        );
        if self.prefix_queries > 0 {
            let rate = self.prefix_hits as f64 / self.prefix_queries as f64 * 100.0;
            line.push_str(&format!(", Prefix cache hit rate: {rate:.1}%"));
        }
        if self.external_queries > 0 {
            let rate = self.external_hits as f64 / self.external_queries as f64 * 100.0;
            line.push_str(&format!(", External prefix cache hit rate: {rate:.1}%"));
        }
        if self.num_rejected > 0 {
            line.push_str(&format!(", Rejected: {} reqs", self.num_rejected));
        }
        *self = Window {
            engine_index: self.engine_index,
            num_running: self.num_running,
            num_waiting: self.num_waiting,
            usage: self.usage,
            // What still runs is worth a line even when no step ends.
            active: self.num_running > 0,
            ..Window::default()
        };
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halyard_platform_api::hooks::{CacheRecord, IterationRecord, RejectedRecord, SchedulerRecord};

    fn scheduler(num_running: u32, num_waiting: u32) -> StatRecord {
        StatRecord::Scheduler(SchedulerRecord {
            num_running,
            num_waiting,
            ..SchedulerRecord::default()
        })
    }

    #[test]
    fn a_line_tells_rates_of_its_interval_and_gauges_of_its_end() {
        let mut window = Window::default();
        assert!(!window.is_active());
        for generation_tokens in [10, 20] {
            window.observe(&StatRecord::Iteration(IterationRecord {
                prompt_tokens: 100,
                cached_tokens: 50,
                generation_tokens,
                ..IterationRecord::default()
            }));
        }
        window.observe(&scheduler(9, 9));
        window.observe(&scheduler(3, 1));
        window.observe(&StatRecord::Cache(CacheRecord {
            usage: 0.125,
            prefix_queries: 300,
            prefix_hits: 100,
            ..CacheRecord::default()
        }));
        window.observe(&StatRecord::Rejected(RejectedRecord::default()));
        assert_eq!(
            window.line(Duration::from_secs(10)),
            "Engine 000: Avg prompt throughput: 30.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 3 \
             reqs, Waiting: 1 reqs, KV cache usage: 12.5%, Prefix cache hit rate: 33.3%, Rejected: 1 reqs"
        );
        assert!(window.is_active(), "three still run");
        window.observe(&scheduler(0, 0));
        assert_eq!(
            window.line(Duration::from_secs(10)),
            "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 \
             reqs, Waiting: 0 reqs, KV cache usage: 12.5%"
        );
        assert!(!window.is_active(), "an idle engine logs nothing");
    }
}
