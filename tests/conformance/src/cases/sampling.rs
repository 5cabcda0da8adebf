//! `logits_process`, `argmax`, `sample`, `top_logprobs`.

use halyard_platform_api::DType;
use halyard_platform_api::ops::{Argmax, LogitsProcess, Sample, SamplingRow, TopLogprobs};

use crate::case::{Arg, Case};
use crate::random::Random;
use crate::tolerance::Class;

const ROWS: u32 = 4;
const HISTORY: u32 = 16;

/// The ops that have their cases here.
pub(super) const OPS: &[&str] = &[Argmax::NAME, LogitsProcess::NAME, Sample::NAME, TopLogprobs::NAME];

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for vocab in [33, 70, 1000] {
        logits_process(seed, vocab, &mut cases);
        argmax(seed, vocab, &mut cases);
        sample(seed, vocab, &mut cases);
        for k in [0, 1, 5] {
            top_logprobs(seed, vocab, k, &mut cases);
        }
    }
    cases
}

pub(super) fn neutral() -> SamplingRow {
    SamplingRow {
        prompt_len: 4,
        ..SamplingRow::PLAIN
    }
}

/// The wire form of rows: 128 bytes each, little endian.
pub(super) fn sampling_rows(rows: &[SamplingRow]) -> Arg {
    let bytes = rows.iter().flat_map(SamplingRow::to_bytes).collect();
    Arg::bytes(DType::U8, &[rows.len() as u32, 128], bytes)
}

pub(super) fn logits(random: &mut Random, rows: u32, vocab: u32) -> Vec<f32> {
    random.units((rows * vocab) as usize).iter().map(|x| 5.0 * x).collect()
}

fn mask(random: &mut Random, rows: u32, vocab: u32) -> Arg {
    let words = vocab.div_ceil(32);
    let values: Vec<i32> = (0..rows * words)
        .map(|_| (random.word() | random.word()) as i32)
        .collect();
    Arg::ints(&[rows, words], &values)
}

fn logits_process(seed: u64, vocab: u32, cases: &mut Vec<Case>) {
    let rows = [
        SamplingRow {
            repetition_penalty: 1.3,
            use_mask: 1,
            ..neutral()
        },
        SamplingRow {
            presence_penalty: 0.7,
            frequency_penalty: -0.4,
            num_bias: 2,
            min_tokens: 9,
            num_stop: 2,
            ..neutral()
        },
        SamplingRow {
            repetition_penalty: 0.8,
            presence_penalty: -1.0,
            num_bad_words: 3,
            ..neutral()
        },
        SamplingRow {
            min_tokens: 2,
            num_stop: 1,
            ..neutral()
        },
    ];
    // Row 2: [9] always; [20, 21, 22] as 20, 21 end its history; [1, 25] not.
    let bad_words = [&[1, 9, 3, 20, 21, 22, 2, 1, 25][..], &[-1; 7]].concat();
    let bad_rows: Vec<i32> = (0..ROWS)
        .flat_map(|r| if r == 2 { bad_words.clone() } else { vec![-1; 16] })
        .collect();
    for (name, lists, grammar) in [
        ("all lists", true, true),
        ("all lists, no grammar", true, false),
        ("penalties only", false, false),
    ] {
        let name = format!("vocabulary {vocab}, {name}");
        let random = &mut Random::of(seed, &format!("logits_process {name}"));
        let mut history: Vec<i32> = (0..ROWS * HISTORY)
            .map(|_| random.below(vocab.min(30)) as i32)
            .collect();
        history[(2 * HISTORY + 6) as usize] = 20;
        history[(2 * HISTORY + 7) as usize] = 21;
        let params: Vec<SamplingRow> = match lists {
            true => rows.to_vec(),
            false => rows
                .iter()
                .map(|row| SamplingRow {
                    num_bias: 0,
                    num_stop: 0,
                    num_bad_words: 0,
                    use_mask: 0,
                    ..*row
                })
                .collect(),
        };
        let step_rows = [2, 0, -1, 3, 1];
        let seqs = step_rows.len() as u32;
        let ints = |width: u32, values: Vec<i32>| lists.then(|| Arg::ints(&[ROWS, width], &values));
        let operands = vec![
            Some(Arg::floats(DType::F32, &[seqs, vocab], &logits(random, seqs, vocab)).checked(Class::Elementwise)),
            Some(Arg::ints(&[seqs], &step_rows)),
            Some(sampling_rows(&params)),
            Some(Arg::ints(&[ROWS, HISTORY], &history)),
            Some(Arg::ints(&[ROWS], &[12, 16, 8, 5])),
            lists.then(|| mask(random, ROWS, vocab)),
            ints(3, vec![7, 0, 32, 7, 0, -1, -1, -1, -1, -1, -1, -1]),
            lists.then(|| Arg::floats(DType::F32, &[ROWS, 3], &random.units(12))),
            ints(2, vec![2, 31, 2, 31, 0, 0, 4, 4]),
            ints(16, bad_rows.clone()),
            grammar.then(|| mask(random, seqs, vocab)),
        ];
        let spec = LogitsProcess { vocab, max_seqs: seqs };
        cases.push(Case::single(spec, "f32", &name, operands));
    }
}

fn argmax(seed: u64, vocab: u32, cases: &mut Vec<Case>) {
    let random = &mut Random::of(seed, &format!("argmax {vocab}"));
    let seqs = 6;
    let mut x = logits(random, seqs, vocab);
    let v = vocab as usize;
    x[v + 4] = 7.0;
    x[v + 30] = 7.0;
    x[2 * v..3 * v].fill(f32::NEG_INFINITY);
    x[2 * v + 20] = f32::MIN;
    x[3 * v..4 * v].fill(f32::NEG_INFINITY);
    x[5 * v - 1] = f32::MAX;
    let operands = vec![
        Some(Arg::floats(DType::F32, &[seqs, vocab], &x).strided(3)),
        Some(Arg::output(DType::I32, &[seqs], Class::Exact)),
    ];
    let spec = Argmax { vocab, max_seqs: seqs };
    cases.push(Case::single(
        spec,
        "f32",
        &format!("vocabulary {vocab}: ties, extremes"),
        operands,
    ));
}

fn sample(seed: u64, vocab: u32, cases: &mut Vec<Case>) {
    let filters: [(&str, SamplingRow); 7] = [
        ("plain", neutral()),
        ("top_k", SamplingRow { top_k: 5, ..neutral() }),
        (
            "top_p",
            SamplingRow {
                top_p: 0.6,
                ..neutral()
            },
        ),
        (
            "min_p",
            SamplingRow {
                min_p: 0.1,
                ..neutral()
            },
        ),
        (
            "all",
            SamplingRow {
                temperature: 1.8,
                top_k: 20,
                top_p: 0.9,
                min_p: 0.02,
                ..neutral()
            },
        ),
        (
            "cold",
            SamplingRow {
                temperature: 0.3,
                top_p: 1e-6,
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
        let name = format!("vocabulary {vocab}, {name}");
        let random = &mut Random::of(seed, &format!("sample {name}"));
        let rows: Vec<SamplingRow> = (0..ROWS)
            .map(|_| SamplingRow {
                seed: u64::from(random.word()) << 32 | u64::from(random.word()),
                ..params
            })
            .collect();
        let step_rows = [3, -1, 0, 2, 1, 0];
        let seqs = step_rows.len() as u32;
        let operands = vec![
            Some(Arg::floats(DType::F32, &[seqs, vocab], &logits(random, seqs, vocab))),
            Some(Arg::ints(&[seqs], &step_rows)),
            Some(sampling_rows(&rows)),
            Some(Arg::ints(&[ROWS], &[4, 5, 60, 1000])),
            Some(Arg::output(DType::I32, &[seqs], Class::Exact)),
        ];
        let spec = Sample { vocab, max_seqs: seqs };
        cases.push(Case::single(spec, "f32", &name, operands));
    }
}

fn top_logprobs(seed: u64, vocab: u32, k: u32, cases: &mut Vec<Case>) {
    let name = format!("vocabulary {vocab}, {k} alternatives");
    let random = &mut Random::of(seed, &format!("top_logprobs {name}"));
    let rows = 4;
    let mut x = logits(random, rows, vocab);
    let v = vocab as usize;
    // Equal best ones are listed by index and all have rank 1.
    for token in [3, 8, 20] {
        x[v + token] = 9.0;
    }
    let chosen = [random.below(vocab) as i32, 20, -1, random.below(vocab) as i32];
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
