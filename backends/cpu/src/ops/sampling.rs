//! Logits to tokens. Rows are shared out: a row's result depends on nothing but the row.

use std::collections::HashMap;

use halyard_kernels_cpu::Largest;
use halyard_platform_api::ops::{self, NO_TOKEN, NOT_FINITE, SamplingRow};

use crate::kernel::{Kernel, Worker};
use crate::view::View;

/// Philox4x32-10 (Salmon et al. 2011): four words of a counter and a key.
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// The row's parameters.
unsafe fn parameters(sampling: &View, row: usize) -> SamplingRow {
    // SAFETY: the caller's promise: `sampling` holds 128 bytes a row, plain data.
    unsafe { sampling.element_ptr(row, 0).cast::<SamplingRow>().read_unaligned() }
}

/// What `argmax` gives for a row.
fn token_of(largest: Largest) -> i32 {
    match largest {
        Largest::At(token) => token as i32,
        Largest::NotFinite => NOT_FINITE,
        Largest::Nothing => NO_TOKEN,
    }
}

pub(crate) struct Argmax {
    vocab: usize,
}

impl Argmax {
    pub(crate) fn new(op: &ops::Argmax) -> Argmax {
        Argmax {
            vocab: op.vocab as usize,
        }
    }
}

impl Kernel for Argmax {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [logits, out] = operands else {
            unreachable!("argmax has two operands")
        };
        for s in worker.share(out.len()) {
            // SAFETY: rows are shared out.
            unsafe {
                let largest = worker.kernels.argmax(logits.f32s(s, 0, self.vocab));
                out.i32s_mut(s, 0, 1)[0] = token_of(largest);
            }
        }
    }
}

pub(crate) struct LogitsProcess {
    vocab: usize,
}

impl LogitsProcess {
    pub(crate) fn new(op: &ops::LogitsProcess) -> LogitsProcess {
        LogitsProcess {
            vocab: op.vocab as usize,
        }
    }
}

impl Kernel for LogitsProcess {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [
            logits,
            rows,
            sampling,
            tokens,
            num_tokens,
            allowed,
            bias_tokens,
            bias_values,
            stops,
            bad_words,
            grammar,
        ] = operands
        else {
            unreachable!("logits_process has eleven operands")
        };
        for s in worker.share(logits.len()) {
            // SAFETY: rows are shared out; row state is only read.
            unsafe {
                let row = rows.vector()[s];
                if row < 0 {
                    continue;
                }
                let row = row as usize;
                let p = parameters(sampling, row);
                let logits = logits.f32s_mut(s, 0, self.vocab);
                let history = tokens.i32s(row, 0, num_tokens.vector()[row] as usize);
                let (_, output) = history.split_at((p.prompt_len as usize).min(history.len()));
                let words = self.vocab.div_ceil(32);
                if p.use_mask != 0 && !allowed.is_none() {
                    mask(logits, allowed.i32s(row, 0, words));
                }
                if !grammar.is_none() {
                    mask(logits, grammar.i32s(s, 0, words));
                }
                if output.len() < p.min_tokens as usize && !stops.is_none() {
                    stops
                        .i32s(row, 0, p.num_stop as usize)
                        .iter()
                        .for_each(|&v| rule_out(&mut logits[v as usize]));
                }
                if !bias_tokens.is_none() && !bias_values.is_none() {
                    let (ids, values) = (
                        bias_tokens.i32s(row, 0, p.num_bias as usize),
                        bias_values.f32s(row, 0, p.num_bias as usize),
                    );
                    ids.iter().zip(values).for_each(|(&v, bias)| logits[v as usize] += bias);
                }
                if !bad_words.is_none() {
                    forbid(
                        logits,
                        bad_words.i32s(row, 0, bad_words.shape[1]),
                        p.num_bad_words,
                        history,
                    );
                }
                penalize(logits, &p, history, output);
            }
        }
    }
}

fn mask(logits: &mut [f32], bits: &[i32]) {
    for (v, logit) in logits.iter_mut().enumerate() {
        if bits[v / 32] as u32 >> (v % 32) & 1 == 0 {
            rule_out(logit);
        }
    }
}

/// Makes a token impossible. What the sampler reports must reach it: NaN and +∞ stay.
fn rule_out(logit: &mut f32) {
    if *logit < f32::INFINITY {
        *logit = f32::NEG_INFINITY;
    }
}

/// −∞ for the last token of each of `count` sequences (length, then ids) whose earlier tokens end the history.
fn forbid(logits: &mut [f32], mut words: &[i32], count: u32, history: &[i32]) {
    for _ in 0..count {
        let [len, rest @ ..] = words else { return };
        let (word, after) = rest.split_at((*len as usize).min(rest.len()));
        words = after;
        if let [start @ .., last] = word
            && history.ends_with(start)
        {
            rule_out(&mut logits[*last as usize]);
        }
    }
}

fn penalize(logits: &mut [f32], p: &SamplingRow, history: &[i32], output: &[i32]) {
    if p.repetition_penalty != 1.0 {
        for &v in counts(history).keys() {
            let logit = &mut logits[v as usize];
            *logit = if *logit > 0.0 {
                *logit / p.repetition_penalty
            } else {
                *logit * p.repetition_penalty
            };
        }
    }
    if p.frequency_penalty != 0.0 || p.presence_penalty != 0.0 {
        for (&v, &count) in &counts(output) {
            logits[v as usize] -= p.frequency_penalty * count as f32;
            logits[v as usize] -= p.presence_penalty;
        }
    }
}

/// How often each token occurs. In no order: a token's penalty depends on nothing but its own count.
fn counts(tokens: &[i32]) -> HashMap<i32, u32> {
    let mut counts = HashMap::new();
    tokens.iter().for_each(|&v| *counts.entry(v).or_insert(0) += 1);
    counts
}

pub(crate) struct Sample {
    vocab: usize,
}

impl Sample {
    pub(crate) fn new(op: &ops::Sample) -> Sample {
        Sample {
            vocab: op.vocab as usize,
        }
    }
}

impl Kernel for Sample {
    /// The second phase needs memory for a row of probabilities and their order on every thread: kept on the heap,
    /// since rows are sampled far less often than layers run.
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [logits, rows, sampling, num_tokens, out] = operands else {
            unreachable!("sample has five operands")
        };
        for s in worker.share(out.len()) {
            // SAFETY: rows are shared out.
            unsafe {
                let row = rows.vector()[s];
                let out = &mut out.i32s_mut(s, 0, 1)[0];
                if row < 0 {
                    *out = -1;
                    continue;
                }
                let p = parameters(sampling, row as usize);
                let logits = logits.f32s(s, 0, self.vocab);
                let index = num_tokens.vector()[row as usize] as u32 - p.prompt_len;
                *out = match worker.kernels.argmax(logits) {
                    Largest::At(best) if p.temperature > 0.0 => draw(worker, logits, logits[best], &p, index) as i32,
                    largest => token_of(largest),
                };
            }
        }
    }
}

/// A token from softmax(logits / temperature) after the filters; `max` is the largest logit.
fn draw(worker: &Worker<'_>, logits: &[f32], max: f32, p: &SamplingRow, index: u32) -> usize {
    let mut probabilities = logits.to_vec();
    let inverse = 1.0 / p.temperature;
    if !(max * inverse).is_finite() {
        // Quotients past the range of f32 would leave no largest one.
        probabilities.iter_mut().for_each(|v| *v -= max);
    }
    worker.kernels.scale(&mut probabilities, inverse);
    worker.kernels.softmax(&mut probabilities);
    filter(&mut probabilities, p);
    let total: f64 = probabilities.iter().map(|&v| f64::from(v)).sum();
    let word = philox([index, 0, 0, 0], [p.seed as u32, (p.seed >> 32) as u32])[0];
    let target = (f64::from(word) + 0.5) / 4_294_967_296.0 * total;
    let mut sum = 0.0;
    let mut last = 0;
    for (v, &probability) in probabilities.iter().enumerate() {
        if probability > 0.0 {
            sum += f64::from(probability);
            last = v;
            if sum >= target {
                return v;
            }
        }
    }
    last
}

/// Zeroes what min_p, top_k and top_p exclude.
fn filter(probabilities: &mut [f32], p: &SamplingRow) {
    let largest = probabilities.iter().fold(0f32, |m, &v| m.max(v));
    if p.min_p > 0.0 {
        let least = p.min_p * largest;
        probabilities.iter_mut().filter(|v| **v < least).for_each(|v| *v = 0.0);
    }
    let k = p.top_k as usize;
    if k > 0 && k < probabilities.len() {
        let mut order = probabilities.to_vec();
        let (_, kth, _) = order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        let kth = *kth;
        probabilities.iter_mut().filter(|v| **v < kth).for_each(|v| *v = 0.0);
    }
    if p.top_p < 1.0 {
        let mut order: Vec<u32> = (0..probabilities.len() as u32)
            .filter(|&v| probabilities[v as usize] > 0.0)
            .collect();
        order.sort_by(|&a, &b| {
            probabilities[b as usize]
                .total_cmp(&probabilities[a as usize])
                .then(a.cmp(&b))
        });
        let total: f64 = order.iter().map(|&v| f64::from(probabilities[v as usize])).sum();
        let mut sum = 0.0;
        let mut reached = false;
        for v in order {
            if reached {
                probabilities[v as usize] = 0.0;
            }
            sum += f64::from(probabilities[v as usize]);
            reached |= sum >= f64::from(p.top_p) * total;
        }
    }
}

pub(crate) struct TopLogprobs {
    vocab: usize,
    k: usize,
}

impl TopLogprobs {
    pub(crate) fn new(op: &ops::TopLogprobs) -> TopLogprobs {
        TopLogprobs {
            vocab: op.vocab as usize,
            k: op.k as usize,
        }
    }
}

impl Kernel for TopLogprobs {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [logits, chosen, chosen_logprobs, ranks, top_tokens, top_logprobs] = operands else {
            unreachable!("top_logprobs has six operands")
        };
        for s in worker.share(logits.len()) {
            // SAFETY: rows are shared out.
            unsafe {
                let logits = logits.f32s(s, 0, self.vocab);
                let norm = worker.kernels.logsumexp(logits);
                let token = chosen.vector()[s];
                if !norm.is_finite() {
                    chosen_logprobs.f32s_mut(s, 0, 1)[0] = f32::NAN;
                    ranks.i32s_mut(s, 0, 1)[0] = 0;
                    if self.k > 0 && !top_tokens.is_none() {
                        top_tokens.i32s_mut(s, 0, self.k).fill(0);
                        top_logprobs.f32s_mut(s, 0, self.k).fill(f32::NAN);
                    }
                    continue;
                }
                let (logprob, rank) = match usize::try_from(token) {
                    Ok(token) => {
                        let greater = logits.iter().filter(|&&v| v > logits[token]).count();
                        (logits[token] - norm, greater as i32 + 1)
                    }
                    Err(_) => (0.0, 0),
                };
                chosen_logprobs.f32s_mut(s, 0, 1)[0] = logprob;
                ranks.i32s_mut(s, 0, 1)[0] = rank;
                if self.k == 0 || top_tokens.is_none() {
                    continue;
                }
                let best = largest(logits, self.k);
                let tokens = top_tokens.i32s_mut(s, 0, self.k);
                let logprobs = top_logprobs.f32s_mut(s, 0, self.k);
                for (i, v) in best.into_iter().enumerate() {
                    (tokens[i], logprobs[i]) = (v as i32, logits[v as usize] - norm);
                }
            }
        }
    }
}

/// The k largest, descending, ties by index.
fn largest(logits: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, by);
        order.truncate(k);
    }
    order.sort_by(by);
    order
}
