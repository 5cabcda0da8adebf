//! The figures of the last five minutes: sums and largest values of each second, durations by ten seconds. Its memory
//! is bounded by these spans, whatever happens in them. `now` is an argument.

use std::collections::VecDeque;

use halyard_platform_api::hooks::{CacheRecord, FINISH_REASONS, FinishedRecord, IterationRecord, SchedulerRecord};
use serde::Serialize;

use super::histogram::Histogram;

/// Seconds that are kept.
pub(super) const NUM_SECONDS: usize = 300;
/// Seconds of a set of histograms.
const SPAN_S: u64 = 10;
/// Records come up to this late: a second is shown once it is over by as much.
const LATE_MS: u64 = 250;

/// What happened in a second.
#[derive(Clone, Debug, Default)]
struct Second {
    at: u64,
    generation_tokens: u64,
    prompt_tokens: u64,
    steps: u64,
    replayed: u64,
    step_ns: u64,
    max_step_ns: u64,
    prefix_queries: u64,
    prefix_hits: u64,
    finished: u64,
    failed: u64,
    preempted: u64,
    /// Largest and last value in this second.
    running: (u32, u32),
    waiting: (u32, u32),
    kv_usage: (f64, f64),
}

/// Durations of ten seconds.
#[derive(Clone, Debug, Default)]
struct Durations {
    span: u64,
    first_token: Histogram,
    inter_token: Histogram,
    end_to_end: Histogram,
    step: Histogram,
}

/// The last five minutes.
pub(super) struct Live {
    /// In order of time; seconds in which nothing happened are absent.
    seconds: VecDeque<Second>,
    durations: VecDeque<Durations>,
    /// By engine: the last values of its gauges.
    engines: Vec<Gauges>,
}

/// Gauges of one engine.
#[derive(Clone, Debug, Default)]
struct Gauges {
    running: u32,
    waiting: u32,
    kv_usage: f64,
}

/// Durations of the last five minutes in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyFigures {
    /// How many there were.
    pub count: u64,
    /// Half were not longer.
    pub p50_ms: Option<f64>,
    /// Nine of ten were not longer.
    pub p90_ms: Option<f64>,
    /// 99 of 100 were not longer.
    pub p99_ms: Option<f64>,
    /// The longest.
    pub max_ms: f64,
    /// Middle and count of each bucket that is not empty.
    pub buckets: Vec<(f64, u32)>,
}

impl LatencyFigures {
    fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> LatencyFigures {
        let mut all = Histogram::default();
        histograms.for_each(|histogram| all.merge(histogram));
        LatencyFigures {
            count: all.count(),
            p50_ms: all.quantile_ms(0.5),
            p90_ms: all.quantile_ms(0.9),
            p99_ms: all.quantile_ms(0.99),
            max_ms: all.largest_ms(),
            buckets: all.buckets(),
        }
    }
}

/// One value a second, in columns. Gauges are the second's largest value.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SeriesColumns {
    /// Tokens generated.
    pub generation_tokens: Vec<u64>,
    /// Prompt tokens computed.
    pub prompt_tokens: Vec<u64>,
    /// Steps.
    pub steps: Vec<u64>,
    /// Of these, replayed from recordings.
    pub replayed_steps: Vec<u64>,
    /// Mean time of a step; none without steps.
    pub step_ms: Vec<Option<f64>>,
    /// Longest step.
    pub max_step_ms: Vec<Option<f64>>,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: Vec<u64>,
    /// Of these, found.
    pub prefix_hits: Vec<u64>,
    /// Requests that ended.
    pub finished: Vec<u64>,
    /// Of these, with an error.
    pub failed: Vec<u64>,
    /// Preemptions.
    pub preempted: Vec<u64>,
    /// Requests that own a device row.
    pub running: Vec<u32>,
    /// Requests that wait for one.
    pub waiting: Vec<u32>,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: Vec<f64>,
}

/// Figures for the page.
#[derive(Clone, Debug, Serialize)]
pub struct LiveFigures {
    /// The first second of the columns, since 1970.
    pub first_second: u64,
    /// Seconds that are kept.
    pub kept_seconds: usize,
    /// One value a second.
    pub series: SeriesColumns,
    /// Arrival to first token.
    pub first_token: LatencyFigures,
    /// Token to token.
    pub inter_token: LatencyFigures,
    /// Arrival to end.
    pub end_to_end: LatencyFigures,
    /// Steps.
    pub step: LatencyFigures,
}

impl Live {
    /// Nothing yet.
    pub(super) fn new() -> Live {
        Live {
            seconds: VecDeque::new(),
            durations: VecDeque::new(),
            engines: Vec::new(),
        }
    }

    /// A step.
    pub(super) fn iteration(&mut self, record: &IterationRecord) {
        let second = self.second(record.unix_ns);
        second.generation_tokens += record.generation_tokens;
        second.prompt_tokens += record.prompt_tokens;
        second.steps += 1;
        second.replayed += u64::from(record.replayed);
        second.step_ns += record.step_ns;
        second.max_step_ns = second.max_step_ns.max(record.step_ns);
        let durations = self.durations(record.unix_ns);
        durations.step.add(record.step_ns, 1);
        for ns in record.first_token_ns.iter() {
            durations.first_token.add(*ns, 1);
        }
        for (ns, count) in record.inter_token_ns.iter().zip(record.inter_token_counts.iter()) {
            durations.inter_token.add(*ns, *count);
        }
    }

    fn gauges(&mut self, engine: usize) -> &mut Gauges {
        if self.engines.len() <= engine {
            self.engines.resize(engine + 1, Gauges::default());
        }
        &mut self.engines[engine]
    }

    /// The state of an engine's scheduler. Shown are the sums over engines.
    pub(super) fn scheduler(&mut self, engine: usize, record: &SchedulerRecord) {
        let gauges = self.gauges(engine);
        (gauges.running, gauges.waiting) = (record.num_running, record.num_waiting);
        let (running, waiting) = self.engines.iter().fold((0, 0), |(running, waiting), gauges| {
            (running + gauges.running, waiting + gauges.waiting)
        });
        let second = self.second(record.unix_ns);
        second.preempted += u64::from(record.num_preempted);
        second.running = (second.running.0.max(running), running);
        second.waiting = (second.waiting.0.max(waiting), waiting);
    }

    /// The state of an engine's cache. Shown is the mean over engines.
    pub(super) fn cache(&mut self, engine: usize, record: &CacheRecord) {
        self.gauges(engine).kv_usage = record.usage;
        let usage = self.engines.iter().map(|gauges| gauges.kv_usage).sum::<f64>() / self.engines.len() as f64;
        let second = self.second(record.unix_ns);
        second.prefix_queries += record.prefix_queries;
        second.prefix_hits += record.prefix_hits;
        second.kv_usage = (second.kv_usage.0.max(usage), usage);
    }

    /// The end of a sequence.
    pub(super) fn finished(&mut self, record: &FinishedRecord) {
        let is_error = FINISH_REASONS.get(record.reason as usize) == Some(&"error");
        let second = self.second(record.unix_ns);
        second.finished += u64::from(record.ends_request);
        second.failed += u64::from(record.ends_request != 0 && is_error);
        if record.ends_request != 0 {
            self.durations(record.unix_ns).end_to_end.add(record.total_ns, 1);
        }
    }

    /// The second of a moment. One before the last one (a clock that was set back, a late record) counts to the last.
    fn second(&mut self, unix_ns: u64) -> &mut Second {
        let at = unix_ns / 1_000_000_000;
        let last = self.seconds.back();
        if last.is_none_or(|last| last.at < at) {
            let second = match last {
                // Gauges go on.
                Some(last) => Second {
                    at,
                    running: (last.running.1, last.running.1),
                    waiting: (last.waiting.1, last.waiting.1),
                    kv_usage: (last.kv_usage.1, last.kv_usage.1),
                    ..Second::default()
                },
                None => Second {
                    at,
                    ..Second::default()
                },
            };
            if self.seconds.len() == NUM_SECONDS {
                self.seconds.pop_front();
            }
            self.seconds.push_back(second);
        }
        let end = self.seconds.len() - 1;
        &mut self.seconds[end]
    }

    fn durations(&mut self, unix_ns: u64) -> &mut Durations {
        let span = unix_ns / 1_000_000_000 / SPAN_S;
        if self.durations.back().is_none_or(|last| last.span < span) {
            if self.durations.len() == NUM_SECONDS / SPAN_S as usize {
                self.durations.pop_front();
            }
            self.durations.push_back(Durations {
                span,
                ..Durations::default()
            });
        }
        let end = self.durations.len() - 1;
        &mut self.durations[end]
    }

    /// The figures at a moment: of the seconds after `after`, at most those that are kept.
    pub(super) fn figures(&self, after: Option<u64>, now_ms: u64) -> LiveFigures {
        let end = now_ms.saturating_sub(LATE_MS) / 1000;
        let oldest = end.saturating_sub(NUM_SECONDS as u64);
        let first = after.map_or(oldest, |after| after.saturating_add(1).clamp(oldest, end));
        let mut columns = SeriesColumns::default();
        let mut next = self.seconds.partition_point(|second| second.at < first);
        let mut before = next.checked_sub(1).map(|index| &self.seconds[index]);
        for at in first..end {
            match self.seconds.get(next).filter(|second| second.at == at) {
                Some(second) => {
                    columns.push(second);
                    before = Some(second);
                    next += 1;
                }
                None => columns.push_quiet(before),
            }
        }
        let first_span = oldest / SPAN_S;
        let of = |part: fn(&Durations) -> &Histogram| {
            let recent = self.durations.iter().filter(|durations| durations.span >= first_span);
            LatencyFigures::of(recent.map(part))
        };
        LiveFigures {
            first_second: first,
            kept_seconds: NUM_SECONDS,
            series: columns,
            first_token: of(|durations| &durations.first_token),
            inter_token: of(|durations| &durations.inter_token),
            end_to_end: of(|durations| &durations.end_to_end),
            step: of(|durations| &durations.step),
        }
    }
}

impl SeriesColumns {
    fn push(&mut self, second: &Second) {
        let ms = |ns: u64| (second.steps > 0).then(|| (ns as f64 / 1e3).round() / 1e3);
        self.generation_tokens.push(second.generation_tokens);
        self.prompt_tokens.push(second.prompt_tokens);
        self.steps.push(second.steps);
        self.replayed_steps.push(second.replayed);
        self.step_ms.push(ms(second.step_ns / second.steps.max(1)));
        self.max_step_ms.push(ms(second.max_step_ns));
        self.prefix_queries.push(second.prefix_queries);
        self.prefix_hits.push(second.prefix_hits);
        self.finished.push(second.finished);
        self.failed.push(second.failed);
        self.preempted.push(second.preempted);
        self.running.push(second.running.0);
        self.waiting.push(second.waiting.0);
        self.kv_usage.push((second.kv_usage.0 * 1e4).round() / 1e4);
    }

    /// A second without a record: gauges are as the last record before it left them.
    fn push_quiet(&mut self, before: Option<&Second>) {
        let (running, waiting, kv_usage) = before.map_or((0, 0, 0.0), |before| {
            (before.running.1, before.waiting.1, before.kv_usage.1)
        });
        self.push(&Second {
            running: (running, running),
            waiting: (waiting, waiting),
            kv_usage: (kv_usage, kv_usage),
            ..Second::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn step(at: u64, tokens: u64, step_ns: u64) -> IterationRecord {
        IterationRecord {
            unix_ns: at * SECOND_NS,
            generation_tokens: tokens,
            step_ns,
            first_token_ns: [20_000_000].into(),
            inter_token_ns: [5_000_000].into(),
            inter_token_counts: [3].into(),
            ..IterationRecord::default()
        }
    }

    fn state(at: u64, running: u32) -> SchedulerRecord {
        SchedulerRecord {
            unix_ns: at * SECOND_NS,
            num_running: running,
            ..SchedulerRecord::default()
        }
    }

    #[test]
    fn a_second_sums_its_steps_and_keeps_the_largest_gauge() {
        let mut live = Live::new();
        live.iteration(&step(1000, 3, 2_000_000));
        live.iteration(&step(1000, 4, 4_000_000));
        live.scheduler(0, &state(1000, 7));
        live.scheduler(0, &state(1000, 2));
        let shown = live.figures(Some(999), 1_003_300).series;
        assert_eq!(shown.generation_tokens, [7, 0, 0]);
        assert_eq!(shown.step_ms, [Some(3.0), None, None]);
        assert_eq!(shown.max_step_ms, [Some(4.0), None, None]);
        assert_eq!(shown.running, [7, 2, 2], "a quiet second has the last state");
    }

    #[test]
    fn gauges_of_several_engines_are_shown_together() {
        let mut live = Live::new();
        let usage = |usage| CacheRecord {
            unix_ns: 1000 * SECOND_NS,
            usage,
            ..CacheRecord::default()
        };
        live.scheduler(0, &state(1000, 3));
        live.scheduler(1, &state(1000, 4));
        live.scheduler(0, &state(1000, 1));
        live.cache(1, &usage(0.5));
        live.cache(0, &usage(0.1));
        let shown = live.figures(Some(999), 1_002_300).series;
        assert_eq!(shown.running, [7, 5], "the largest sum, then the last one");
        assert_eq!(shown.kv_usage, [0.3, 0.3], "the mean of 0.5 and 0.1");
    }

    #[test]
    fn a_second_is_shown_once_it_is_over() {
        let mut live = Live::new();
        live.iteration(&step(1000, 3, 1));
        assert_eq!(live.figures(Some(999), 1_001_200).series.steps, [0u64; 0]);
        assert_eq!(live.figures(Some(999), 1_001_250).series.steps, [1]);
        assert_eq!(
            live.figures(Some(5_000_000), 1_001_250).series.steps,
            [0u64; 0],
            "a future second"
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut live = Live::new();
        for at in 0..2000 {
            live.iteration(&step(at, 1, 1_000_000));
        }
        let shown = live.figures(None, 2_000_250);
        assert_eq!(shown.series.generation_tokens.len(), NUM_SECONDS);
        assert_eq!(shown.first_second, 1700);
        assert_eq!(shown.step.count, 300);
        assert_eq!((live.seconds.len(), live.durations.len()), (NUM_SECONDS, 30));
        let later = live.figures(None, 9_000_000);
        assert_eq!(later.step.count, 0, "old durations are not shown");
        assert_eq!(later.first_token.p50_ms, None);
    }

    #[test]
    fn a_clock_that_is_set_back_loses_nothing() {
        let mut live = Live::new();
        live.iteration(&step(1000, 3, 1));
        live.iteration(&step(400, 4, 1));
        assert_eq!(live.figures(Some(999), 1_001_250).series.generation_tokens, [7]);
        assert_eq!(live.seconds.len(), 1);
    }

    #[test]
    fn durations_have_quantiles() {
        let mut live = Live::new();
        live.iteration(&step(1000, 3, 2_000_000));
        let shown = live.figures(None, 1_001_250);
        let near = |found: Option<f64>, ms: f64| found.is_some_and(|found| (found / ms - 1.0).abs() < 0.05);
        assert!(near(shown.first_token.p50_ms, 20.0), "{:?}", shown.first_token);
        assert!(near(shown.inter_token.p99_ms, 5.0), "{:?}", shown.inter_token);
        assert_eq!(shown.inter_token.count, 3);
        assert!(near(shown.step.p90_ms, 2.0), "{:?}", shown.step);
    }
}
