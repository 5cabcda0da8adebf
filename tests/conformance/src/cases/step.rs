//! Device rows: `prepare_inputs`, `slot_mapping`, `update_rows`, with padding, adapters and speculation.

use halyard_platform_api::DType;
use halyard_platform_api::ops::{PrepareInputs, SlotMapping, UpdateRows};

use crate::case::{Arg, Case};
use crate::random::Random;
use crate::tolerance::Class;

/// Device rows and the tokens that one of them remembers.
const ROWS: u32 = 5;
const HISTORY: u32 = 40;

/// The ops that have their cases here.
pub(super) const OPS: &[&str] = &[PrepareInputs::NAME, SlotMapping::NAME, UpdateRows::NAME];

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    /// Name, rows, query lengths, padding tokens, with LoRA rows.
    type Step = (&'static str, &'static [i32], &'static [i32], u32, bool);
    let steps: [Step; 5] = [
        ("decode", &[3], &[1], 0, false),
        ("prefill chunk and decodes", &[4, 0, 2], &[9, 1, 1], 0, false),
        ("padding rows and tokens", &[1, -1, 3, -1], &[2, 0, 1, 0], 4, false),
        ("adapters", &[0, 2, -1, 4], &[3, 1, 0, 2], 2, true),
        ("nothing but padding", &[-1, -1], &[0, 0], 3, false),
    ];
    for (name, rows, lens, pad, lora) in steps {
        prepare_inputs(seed, name, rows, lens, pad, lora, &mut cases);
        slot_mapping(seed, name, rows, lens, pad, &mut cases);
    }
    update_rows(seed, &mut cases);
    cases
}

fn prepare_inputs(seed: u64, name: &str, rows: &[i32], lens: &[i32], pad: u32, lora: bool, cases: &mut Vec<Case>) {
    let random = &mut Random::of(seed, &format!("prepare_inputs {name}"));
    let seqs = rows.len() as u32;
    let tokens = lens.iter().sum::<i32>() as u32 + pad;
    let history: Vec<i32> = (0..ROWS * HISTORY).map(|_| random.below(1000) as i32).collect();
    let computed: Vec<i32> = (0..ROWS).map(|_| random.below(20) as i32).collect();
    let slots = [0, -1, 1, 0, 2];
    let out = |count: u32| Some(Arg::output(DType::I32, &[count], Class::Exact));
    let operands = vec![
        Some(Arg::ints(&[seqs], rows)),
        Some(Arg::ints(&[seqs], lens)),
        Some(Arg::ints(&[ROWS, HISTORY], &history).strided(3)),
        Some(Arg::ints(&[ROWS], &computed)),
        lora.then(|| Arg::ints(&[ROWS], &slots)),
        out(tokens),
        out(tokens),
        out(tokens),
        lora.then(|| Arg::output(DType::I32, &[tokens], Class::Exact)),
        out(seqs + 1),
        out(seqs),
        out(seqs),
    ];
    let spec = PrepareInputs {
        max_seqs: seqs,
        max_tokens: tokens,
    };
    cases.push(Case::single(spec, "i32", name, operands));
}

fn slot_mapping(seed: u64, name: &str, rows: &[i32], lens: &[i32], pad: u32, cases: &mut Vec<Case>) {
    for block_size in [1, 8, 16] {
        let random = &mut Random::of(seed, &format!("slot_mapping {name} {block_size}"));
        let max_blocks = HISTORY.div_ceil(block_size);
        let table = random.permutation((ROWS * max_blocks) as usize);
        let (mut positions, mut seqs) = (Vec::new(), Vec::new());
        for (s, &len) in lens.iter().enumerate() {
            let first = random.below(HISTORY - 10) as i32;
            positions.extend(first..first + len);
            seqs.extend(std::iter::repeat_n(s as i32, len as usize));
        }
        positions.extend(std::iter::repeat_n(0, pad as usize));
        seqs.extend(std::iter::repeat_n(-1, pad as usize));
        let tokens = positions.len() as u32;
        let operands = vec![
            Some(Arg::ints(&[tokens], &positions)),
            Some(Arg::ints(&[tokens], &seqs)),
            Some(Arg::ints(&[rows.len() as u32], rows)),
            Some(Arg::ints(&[ROWS, max_blocks], &table).strided(2)),
            Some(Arg::output(DType::I32, &[tokens], Class::Exact)),
        ];
        let name = format!("{name}, block {block_size}");
        cases.push(Case::single(SlotMapping { block_size }, "i32", &name, operands));
    }
}

/// A step's outcome: rows, query lengths, emits, drafts, sampled counts, sampled tokens of a sequence.
struct Outcome {
    name: &'static str,
    rows: &'static [i32],
    lens: &'static [i32],
    emits: &'static [i32],
    speculation: Option<(&'static [i32], &'static [i32])>,
    max_sampled: u32,
    entry: i32,
}

fn update_rows(seed: u64, cases: &mut Vec<Case>) {
    let outcomes = [
        Outcome {
            name: "decodes, an unfinished chunk, padding",
            rows: &[4, 1, -1, 0],
            lens: &[1, 7, 0, 1],
            emits: &[1, 0, 0, 1],
            speculation: None,
            max_sampled: 1,
            entry: 2,
        },
        Outcome {
            name: "speculation: none, some and all accepted",
            rows: &[2, 0, -1, 3],
            lens: &[4, 4, 0, 4],
            emits: &[1, 1, 0, 1],
            speculation: Some((&[3, 3, 0, 3], &[1, 3, 0, 4])),
            max_sampled: 4,
            entry: 0,
        },
        Outcome {
            name: "a history that is full",
            rows: &[1, 2],
            lens: &[2, 2],
            emits: &[1, 1],
            speculation: Some((&[1, 1], &[2, 0])),
            max_sampled: 2,
            entry: 1,
        },
    ];
    for outcome in outcomes {
        cases.push(update_case(seed, &outcome));
    }
}

fn update_case(seed: u64, outcome: &Outcome) -> Case {
    let random = &mut Random::of(seed, outcome.name);
    let seqs = outcome.rows.len() as u32;
    let sampled: Vec<i32> = (0..seqs * outcome.max_sampled)
        .map(|_| random.below(1000) as i32)
        .collect();
    let history: Vec<i32> = (0..ROWS * HISTORY).map(|_| random.below(1000) as i32).collect();
    let known: Vec<i32> = match outcome.name {
        "a history that is full" => vec![HISTORY as i32 - 1; ROWS as usize],
        _ => (0..ROWS).map(|_| 10 + random.below(20) as i32).collect(),
    };
    let computed: Vec<i32> = known.iter().map(|n| n - 4).collect();
    let entry_words = 2 + seqs * (1 + outcome.max_sampled);
    let results = vec![-7; 3 * entry_words as usize];
    let sequence = |values: &[i32]| Some(Arg::ints(&[seqs], values));
    let row_state = |values: &[i32]| Some(Arg::ints(&[ROWS], values).checked(Class::Exact));
    let operands = vec![
        Some(Arg::ints(&[4], &[outcome.entry, 0x1234_5678, 9, seqs as i32])),
        sequence(outcome.rows),
        sequence(outcome.lens),
        sequence(outcome.emits),
        outcome.speculation.and_then(|(drafts, _)| sequence(drafts)),
        Some(Arg::ints(&[seqs, outcome.max_sampled], &sampled)),
        outcome.speculation.and_then(|(_, counts)| sequence(counts)),
        Some(Arg::ints(&[ROWS, HISTORY], &history).checked(Class::Exact).strided(1)),
        row_state(&known),
        row_state(&computed),
        Some(Arg::ints(&[3, entry_words], &results).checked(Class::Exact)),
    ];
    let spec = UpdateRows {
        max_seqs: seqs,
        max_sampled: outcome.max_sampled,
    };
    Case::single(spec, "i32", outcome.name, operands)
}
