//! Rows that have no token, beside good ones: NaN, +∞, −∞ alone. What `logits_process`, `argmax`, `sample`,
//! `top_logprobs` and `update_rows` make of them.

use halyard_platform_api::DType;
use halyard_platform_api::ops::{
    Argmax, LogitsProcess, NO_TOKEN, NOT_FINITE, Sample, SamplingRow, TopLogprobs, UpdateRows,
};

use super::sampling::{logits, neutral, sampling_rows};
use crate::case::{ABSENT, Arg, Case, Check};
use crate::random::Random;
use crate::tolerance::Class;

const HISTORY: u32 = 16;

/// The ops that have cases here.
pub(super) const OPS: &[&str] = &[
    Argmax::NAME,
    LogitsProcess::NAME,
    Sample::NAME,
    TopLogprobs::NAME,
    UpdateRows::NAME,
];

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for vocab in [33, 70, 1000] {
        argmax_bad_rows(seed, vocab, &mut cases);
        sample_bad_rows(seed, vocab, &mut cases);
        process_bad_rows(seed, vocab, &mut cases);
        for k in [0, 1, 5] {
            no_logprobs(seed, vocab, k, &mut cases);
        }
    }
    // Rows that several blocks share, with what is wrong in the first, a middle and the last one's part.
    for vocab in [50_000, 151_936] {
        argmax_bad_rows(seed, vocab, &mut cases);
    }
    sample_bad_rows(seed, 50_000, &mut cases);
    no_logprobs(seed, 50_000, 20, &mut cases);
    cases.push(markers_stay_out_of_histories());
    cases
}

/// A row that has no token, and how it comes to that.
#[derive(Clone, Copy)]
enum Bad {
    Nan(usize),
    NegativeNan(usize),
    Infinity(usize),
    NanAmongMasked(usize),
    InfinityAmongMasked(usize),
    AllNan,
    AllMasked,
}

impl Bad {
    /// Every way, with the place of the logit that is wrong.
    fn all(vocab: usize) -> Vec<Bad> {
        let places = [0, vocab / 3, vocab - 1];
        let each = |at| {
            [
                Bad::Nan(at),
                Bad::NegativeNan(at),
                Bad::Infinity(at),
                Bad::NanAmongMasked(at),
                Bad::InfinityAmongMasked(at),
            ]
        };
        let mut all: Vec<Bad> = places.into_iter().flat_map(each).collect();
        all.extend([Bad::AllNan, Bad::AllMasked]);
        all
    }

    fn plant(self, row: &mut [f32]) {
        let negative = f32::from_bits(f32::NAN.to_bits() | 1 << 31);
        match self {
            Bad::AllNan => row.fill(f32::NAN),
            Bad::AllMasked | Bad::NanAmongMasked(_) | Bad::InfinityAmongMasked(_) => row.fill(f32::NEG_INFINITY),
            _ => {}
        }
        match self {
            Bad::Nan(at) | Bad::NanAmongMasked(at) => row[at] = f32::NAN,
            Bad::NegativeNan(at) => row[at] = negative,
            Bad::Infinity(at) | Bad::InfinityAmongMasked(at) => row[at] = f32::INFINITY,
            Bad::AllNan | Bad::AllMasked => {}
        }
    }
}

/// Rows without a token, each beside a good one.
fn bad_rows(random: &mut Random, vocab: u32) -> (Vec<f32>, u32) {
    let mut x = Vec::new();
    for bad in Bad::all(vocab as usize) {
        let mut row = logits(random, 1, vocab);
        x.extend_from_slice(&row);
        bad.plant(&mut row);
        x.extend_from_slice(&row);
    }
    let rows = x.len() as u32 / vocab;
    (x, rows)
}

fn argmax_bad_rows(seed: u64, vocab: u32, cases: &mut Vec<Case>) {
    let random = &mut Random::of(seed, &format!("argmax bad rows {vocab}"));
    let (x, seqs) = bad_rows(random, vocab);
    let operands = vec![
        Some(Arg::floats(DType::F32, &[seqs, vocab], &x).strided(3)),
        Some(Arg::output(DType::I32, &[seqs], Class::Exact)),
    ];
    let name = format!("vocabulary {vocab}: rows without a token beside good ones");
    cases.push(Case::single(Argmax { vocab, max_seqs: seqs }, "f32", &name, operands));
}

fn sample_bad_rows(seed: u64, vocab: u32, cases: &mut Vec<Case>) {
    let filters = [
        ("plain", neutral()),
        (
            "all filters",
            SamplingRow {
                temperature: 0.7,
                top_k: 20,
                top_p: 0.9,
                min_p: 0.02,
                ..neutral()
            },
        ),
        (
            "top_p",
            SamplingRow {
                top_p: 0.5,
                ..neutral()
            },
        ),
        (
            "greedy",
            SamplingRow {
                temperature: 0.0,
                ..neutral()
            },
        ),
    ];
    for (name, params) in filters {
        // Among so many tokens a draw from all of them may stand on a border, where sums decide.
        if vocab > 1000 && params.top_k == 0 && params.temperature > 0.0 {
            continue;
        }
        let name = format!("vocabulary {vocab}, {name}: rows without a token beside good ones");
        let random = &mut Random::of(seed, &format!("sample {name}"));
        let (x, seqs) = bad_rows(random, vocab);
        let row = SamplingRow {
            seed: u64::from(random.word()),
            ..params
        };
        let operands = vec![
            Some(Arg::floats(DType::F32, &[seqs, vocab], &x)),
            Some(Arg::ints(&[seqs], &vec![0; seqs as usize])),
            Some(sampling_rows(&[row])),
            Some(Arg::ints(&[1], &[9])),
            Some(Arg::output(DType::I32, &[seqs], Class::Exact)),
        ];
        cases.push(Case::single(Sample { vocab, max_seqs: seqs }, "f32", &name, operands));
    }
}

/// NaN and +∞ reach the sampler through masks, stop tokens, bias, bad words and penalties: seen through `argmax` over
/// what is left.
fn process_bad_rows(seed: u64, vocab: u32, cases: &mut Vec<Case>) {
    let random = &mut Random::of(seed, &format!("logits_process bad rows {vocab}"));
    // Row 0: only token 7 is allowed; row 1: token 9 is a bad word, 5 a stop token that may not come yet, both with a
    // bias.
    let rows = [
        SamplingRow {
            use_mask: 1,
            ..neutral()
        },
        SamplingRow {
            num_bad_words: 1,
            num_stop: 1,
            min_tokens: 100,
            num_bias: 2,
            repetition_penalty: 0.5,
            presence_penalty: 1.0,
            frequency_penalty: 1.0,
            ..neutral()
        },
        SamplingRow {
            use_mask: 1,
            num_bad_words: 1,
            ..neutral()
        },
    ];
    let v = vocab as usize;
    let step_rows = [0, 0, 0, 1, 1, 1, 1, 0, 2];
    let seqs = step_rows.len() as u32;
    let mut x = logits(random, seqs, vocab);
    x[v + 20] = f32::NAN;
    x[2 * v + 20] = f32::INFINITY;
    x[4 * v + 9] = f32::NAN;
    x[5 * v + 5] = f32::INFINITY;
    x[6 * v + 5] = f32::NAN;
    x[7 * v + 7] = f32::NAN;
    let words = vocab.div_ceil(32);
    let mut allowed = vec![0; (3 * words) as usize];
    allowed[0] = 1 << 7;
    allowed[(2 * words) as usize] = 1 << 9;
    let operands = [
        Arg::floats(DType::F32, &[seqs, vocab], &x),
        Arg::ints(&[seqs], &step_rows),
        sampling_rows(&rows),
        Arg::ints(&[3, HISTORY], &[5, 9, 9, 5, 9, 5, 3, 2].repeat(6)),
        Arg::ints(&[3], &[8, 8, 8]),
        Arg::ints(&[3, words], &allowed),
        Arg::ints(&[3, 2], &[5, 9, 5, 9, 5, 9]),
        Arg::floats(DType::F32, &[3, 2], &[-100.0, -100.0, -100.0, -100.0, -100.0, -100.0]),
        Arg::ints(&[3, 1], &[5, 5, 5]),
        Arg::ints(&[3, 2], &[1, 9, 1, 9, 1, 9]),
    ];
    let mut args: Vec<Arg> = operands.into_iter().collect();
    args[0].check = Check::Ignored;
    args.push(Arg::output(DType::I32, &[seqs], Class::Exact));
    cases.push(Case {
        op: LogitsProcess::NAME,
        variant: "f32".to_string(),
        name: format!("vocabulary {vocab}: what no row may hold reaches the sampler"),
        args,
        nodes: vec![
            (
                LogitsProcess { vocab, max_seqs: seqs }.into(),
                vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ABSENT],
            ),
            (Argmax { vocab, max_seqs: seqs }.into(), vec![0, 10]),
        ],
    });
}

fn no_logprobs(seed: u64, vocab: u32, k: u32, cases: &mut Vec<Case>) {
    let name = format!("vocabulary {vocab}, {k} alternatives: rows without a distribution beside good ones");
    let random = &mut Random::of(seed, &format!("top_logprobs {name}"));
    let (x, rows) = bad_rows(random, vocab);
    let chosen: Vec<i32> = (0..rows)
        .map(|row| match row % 8 {
            7 => NOT_FINITE,
            5 => NO_TOKEN,
            _ => random.below(vocab) as i32,
        })
        .collect();
    let operands = vec![
        Some(Arg::floats(DType::F32, &[rows, vocab], &x)),
        Some(Arg::ints(&[rows], &chosen)),
        Some(Arg::output(DType::F32, &[rows], Class::Logprob)),
        Some(Arg::output(DType::I32, &[rows], Class::Exact)),
        (k > 0).then(|| Arg::output(DType::I32, &[rows, k], Class::Exact)),
        (k > 0).then(|| Arg::output(DType::F32, &[rows, k], Class::Logprob)),
    ];
    let spec = TopLogprobs {
        vocab,
        k,
        max_rows: rows,
    };
    cases.push(Case::single(spec, "f32", &name, operands));
}

/// What stands in place of a token reaches the host and no history, where a later step would look it up.
fn markers_stay_out_of_histories() -> Case {
    let seqs = 5;
    let operands = vec![
        Some(Arg::ints(&[4], &[1, 77, 5, seqs])),
        Some(Arg::ints(&[5], &[4, 0, -1, 2, 3])),
        Some(Arg::ints(&[5], &[1, 3, 0, 2, 1])),
        Some(Arg::ints(&[5], &[1, 1, 0, 1, 1])),
        None,
        Some(Arg::ints(&[5, 1], &[NOT_FINITE, 7, NOT_FINITE, NO_TOKEN, 0])),
        None,
        Some(Arg::ints(&[5, 6], &[9; 30]).checked(Class::Exact)),
        Some(Arg::ints(&[5], &[3, 3, 2, 1, 5]).checked(Class::Exact)),
        Some(Arg::ints(&[5], &[2, 0, 0, 0, 4]).checked(Class::Exact)),
        Some(Arg::ints(&[3, 12], &[-9; 36]).checked(Class::Exact)),
    ];
    let spec = UpdateRows {
        max_seqs: seqs as u32,
        max_sampled: 1,
    };
    Case::single(spec, "i32", "rows without a token", operands)
}
