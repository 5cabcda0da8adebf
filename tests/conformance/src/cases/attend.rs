//! `kv_write` and `attention` over ragged batches: prefill chunks with a cached prefix, decodes, padding, windows,
//! caps, sinks. The cache's layout is the backend's own, so both ops are seen through attention's output.

use halyard_platform_api::DType;
use halyard_platform_api::ops::{Attention, KvWrite};

use super::FLOATS;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::random::Random;
use crate::tolerance::Class;

/// A batch: (row, query length, keys) of each sequence; padding tokens after them.
pub(super) struct Batch {
    pub name: &'static str,
    pub seqs: &'static [(i32, u32, u32)],
    pub pad_tokens: u32,
}

/// Heads, KV heads, head size, window, softcap, sinks.
#[derive(Clone, Copy)]
struct Shape {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    window: u32,
    softcap: f32,
    sinks: bool,
}

pub(super) const BATCHES: [Batch; 4] = [
    Batch {
        name: "one prefill",
        seqs: &[(0, 5, 5)],
        pad_tokens: 0,
    },
    Batch {
        name: "one decode",
        seqs: &[(1, 1, 17)],
        pad_tokens: 0,
    },
    Batch {
        name: "chunks with a prefix, decodes, padding",
        seqs: &[(3, 7, 7), (0, 1, 40), (-1, 0, 0), (2, 9, 33), (4, 1, 1)],
        pad_tokens: 3,
    },
    Batch {
        name: "long keys",
        seqs: &[(2, 2, 200), (0, 1, 129)],
        pad_tokens: 0,
    },
];

/// More queries than any tile holds, with and without a prefix, beside decodes.
pub(super) const LONG: Batch = Batch {
    name: "long chunks",
    seqs: &[(0, 140, 140), (4, 1, 130), (3, 70, 150), (1, 2, 64)],
    pad_tokens: 0,
};

/// Several queries of a few sequences, of which one ends in another tile than it begins in: kernels of tiles take no
/// fewer, and here every feature meets them.
const TILES: Batch = Batch {
    name: "chunks in tiles",
    seqs: &[(2, 45, 60), (0, 30, 30)],
    pad_tokens: 3,
};

const PLAIN: Shape = Shape {
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    window: 0,
    softcap: 0.0,
    sinks: false,
};

/// The ops that have their cases here.
pub(super) const OPS: &[&str] = &[Attention::NAME, KvWrite::NAME];

pub(crate) fn cases(seed: u64, block_size: u32) -> Vec<Case> {
    let shapes = [
        ("", PLAIN),
        (
            " mha 16",
            Shape {
                heads: 3,
                kv_heads: 3,
                head_dim: 16,
                ..PLAIN
            },
        ),
        (
            " gqa 3:1 128",
            Shape {
                heads: 3,
                kv_heads: 1,
                head_dim: 128,
                ..PLAIN
            },
        ),
        (
            " gqa 4:1 128",
            Shape {
                heads: 4,
                kv_heads: 1,
                head_dim: 128,
                ..PLAIN
            },
        ),
        (
            " head_dim 80",
            Shape {
                heads: 2,
                kv_heads: 1,
                head_dim: 80,
                ..PLAIN
            },
        ),
        (" window", Shape { window: 20, ..PLAIN }),
        (" window 1", Shape { window: 1, ..PLAIN }),
        (" softcap", Shape { softcap: 3.0, ..PLAIN }),
        (
            " sinks",
            Shape {
                sinks: true,
                window: 9,
                softcap: 5.0,
                ..PLAIN
            },
        ),
    ];
    let mut cases = Vec::new();
    for act in FLOATS {
        for kv in FLOATS.into_iter().chain([DType::F8E4M3, DType::I8, DType::U4]) {
            let narrow = !FLOATS.contains(&kv);
            // A platform may compute in f32 alone.
            let coded = narrow && kv != DType::F8E4M3;
            for (suffix, shape) in &shapes {
                // Every feature in matching types and over narrow ones, mixed types plainly.
                let featured = act == kv || narrow && act == DType::BF16 || coded && act == DType::F32;
                if !featured && !suffix.is_empty() {
                    continue;
                }
                // The oracle is slow: the shapes that have tiles of their own, in matching types, and over 8 bits in
                // half precision.
                let long = ((featured || narrow && act == DType::F16)
                    && ["", " gqa 4:1 128", " window"].contains(suffix))
                .then_some(&LONG);
                let tiles = (act == kv && act != DType::F32 && long.is_none()).then_some(&TILES);
                for batch in BATCHES.iter().chain(long).chain(tiles) {
                    let variant = format!("{act:?}, kv {kv:?}{suffix}");
                    let case = attention_case(seed, &variant, batch, shape, act, kv, block_size);
                    // What attention reads is what kv_write stored: the same case stands for both.
                    if suffix.is_empty() {
                        cases.push(Case {
                            op: "kv_write",
                            ..case.clone()
                        });
                    }
                    cases.push(case);
                }
            }
        }
    }
    cases
}

/// Pages of every row's blocks in random order, −1 where no query of the step looks; and the slot of every key.
pub(super) fn paged(
    random: &mut Random,
    batch: &Batch,
    window: u32,
    block_size: u32,
) -> (Vec<i32>, u32, Vec<Vec<i32>>, u32) {
    let blocks = |keys: u32| keys.div_ceil(block_size);
    let max_blocks = batch.seqs.iter().map(|s| blocks(s.2)).max().unwrap_or(0) + 1;
    let num_pages = batch.seqs.iter().map(|s| blocks(s.2)).sum::<u32>() + 3;
    let mut pages = random.permutation(num_pages as usize).into_iter();
    let mut table = vec![-1; (5 * max_blocks) as usize];
    let mut slots = Vec::new();
    for &(row, query_len, keys) in batch.seqs {
        let first_seen = match window {
            0 => 0,
            _ => (keys - query_len + 1).saturating_sub(window),
        };
        let mut sequence = Vec::new();
        for block in 0..blocks(keys) {
            if row >= 0 && (block + 1) * block_size > first_seen {
                table[row as usize * max_blocks as usize + block as usize] = pages.next().unwrap_or(-1);
            }
        }
        for key in 0..keys {
            let page = table[row as usize * max_blocks as usize + (key / block_size) as usize];
            sequence.push(if page < 0 {
                -1
            } else {
                page * block_size as i32 + (key % block_size) as i32
            });
        }
        slots.push(sequence);
    }
    (table, max_blocks, slots, num_pages)
}

fn attention_case(
    seed: u64,
    variant: &str,
    batch: &Batch,
    shape: &Shape,
    act: DType,
    kv: DType,
    block_size: u32,
) -> Case {
    let Shape {
        heads,
        kv_heads,
        head_dim,
        window,
        softcap,
        sinks,
    } = *shape;
    let random = &mut Random::of(seed, &format!("attention {variant} {} {block_size}", batch.name));
    let (table, max_blocks, slots, num_pages) = paged(random, batch, window, block_size);
    let seqs = batch.seqs.len() as u32;
    let real: u32 = batch.seqs.iter().map(|s| s.1).sum();
    let tokens = real + batch.pad_tokens;
    // The prefix of every sequence is written by one call, the step's own tokens (and padding) by another.
    let (mut prefix, mut step, mut starts) = (Vec::new(), Vec::new(), vec![0]);
    for (sequence, &(_, query_len, keys)) in slots.iter().zip(batch.seqs) {
        prefix.extend(&sequence[..(keys - query_len) as usize]);
        step.extend(&sequence[(keys - query_len) as usize..]);
        starts.push(starts.last().copied().unwrap_or(0) + query_len as i32);
    }
    step.extend(std::iter::repeat_n(-1, batch.pad_tokens as usize));
    prefix.push(-1);
    let attention = Attention {
        num_heads: heads,
        num_kv_heads: kv_heads,
        head_dim,
        scale: 1.5 / (head_dim as f32).sqrt(),
        window,
        softcap,
        has_sinks: sinks,
        act,
        kv,
        block_size,
        backend: 0,
        max_seqs: seqs,
        max_tokens: tokens,
        max_query_len: batch.seqs.iter().map(|s| s.1).max().unwrap_or(1),
        max_kv_len: batch.seqs.iter().map(|s| s.2).max().unwrap_or(1),
    };
    let write = KvWrite {
        num_kv_heads: kv_heads,
        head_dim,
        act,
        kv,
        block_size,
        backend: 0,
        max_tokens: tokens.max(prefix.len() as u32),
    };
    let heads_of = |random: &mut Random, count: u32, heads: u32, gap: u32| {
        let values = random.units((count * heads * head_dim) as usize);
        Arg::floats(act, &[count, heads, head_dim], &values).strided(gap)
    };
    let prefix_len = prefix.len() as u32;
    let rows: Vec<i32> = batch.seqs.iter().map(|s| s.0).collect();
    let lens: Vec<i32> = batch.seqs.iter().map(|s| s.2 as i32).collect();
    let mut args = vec![
        heads_of(random, prefix_len, kv_heads, 0),
        heads_of(random, prefix_len, kv_heads, 0),
        Arg::ints(&[prefix_len], &prefix),
        // q, k and v are slices of one product: the gap between their rows.
        heads_of(random, tokens, kv_heads, head_dim),
        heads_of(random, tokens, kv_heads, head_dim),
        Arg::ints(&[tokens], &step),
        heads_of(random, tokens, heads, 2 * head_dim),
        Arg {
            contents: Contents::Cache {
                pages: num_pages,
                spec: attention.clone().into(),
            },
            check: Check::Ignored,
            ..Arg::bytes(DType::U8, &[0], Vec::new())
        },
        Arg::ints(&[5, max_blocks], &table),
        Arg::ints(&[seqs], &rows),
        Arg::ints(&[seqs + 1], &starts),
        Arg::ints(&[seqs], &lens),
        Arg::output(act, &[tokens, heads, head_dim], Class::AttentionOver { kv }).only_rows((0..real).collect()),
    ];
    let sink = match sinks {
        true => {
            args.push(Arg::floats(DType::F32, &[heads], &random.units(heads as usize)));
            (args.len() - 1) as u16
        }
        false => ABSENT,
    };
    Case {
        op: "attention",
        variant: variant.to_string(),
        name: batch.name.to_string(),
        args,
        nodes: vec![
            (write.clone().into(), vec![0, 1, 2, 7]),
            (write.into(), vec![3, 4, 5, 7]),
            (attention.into(), vec![6, 7, 8, 9, 10, 11, sink, 12]),
        ],
    }
}
