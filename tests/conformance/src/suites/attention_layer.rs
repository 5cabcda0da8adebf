//! The attention part of a layer as a program: norms of q and k, rope, kv_write and attention over slices of one
//! product. Whatever of it the device claims must give what the parts give on the oracle, with q and k read afterwards
//! or not. What it leaves in the cache is its own business; so attention follows once more, with other queries and a
//! window so short that the step's own keys and values decide.

use halyard_platform_api::ops::{Attention, KvWrite, RmsNorm, Rope, RopeStyle};
use halyard_platform_api::{Capabilities, DType, Device};

use super::composites::check;
use super::note;
use crate::case::{ABSENT, Arg, Case, Check, Contents};
use crate::random::Random;
use crate::tolerance::{Class, Tolerance, tolerance, unit_roundoff};
use crate::{Options, Report};

const HEADS: u32 = 6;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u32 = 64;
const MAX_POSITIONS: u32 = 512;

/// A batch: (row, query length, keys) of each sequence; padding tokens after them.
pub(super) struct Batch {
    pub name: &'static str,
    pub seqs: &'static [(i32, u32, u32)],
    pub pad_tokens: u32,
    /// Sequences whose block tables begin with the same pages, as prompts that begin alike have them.
    pub alike: &'static [Alike],
}

/// Every `step`th sequence from `first` on, before `end`.
pub(super) struct Alike {
    first: usize,
    end: usize,
    step: usize,
    keys: u32,
}

const fn alike(first: usize, end: usize, step: usize, keys: u32) -> Alike {
    Alike { first, end, step, keys }
}

impl Alike {
    /// Whether sequence `s` has its first pages from another.
    fn follows(&self, s: usize) -> bool {
        (self.first + 1..self.end).contains(&s) && (s - self.first).is_multiple_of(self.step)
    }
}

impl Batch {
    pub const fn new(name: &'static str, seqs: &'static [(i32, u32, u32)], pad_tokens: u32) -> Batch {
        Batch {
            name,
            seqs,
            pad_tokens,
            alike: &[],
        }
    }
}

const BATCHES: [Batch; 5] = [
    Batch::new("decodes", &[(0, 1, 65), (1, 1, 200), (2, 1, 1), (4, 1, 64)], 0),
    // As many keys as a kernel of short sequences may hold, and one more.
    Batch::new(
        "decodes up to 384 keys",
        &[(1, 1, 384), (3, 1, 129), (-1, 0, 0), (0, 1, 16)],
        0,
    ),
    Batch::new("decodes up to 385 keys", &[(1, 1, 385), (3, 1, 17)], 0),
    // As many tokens as sequences, and yet not one each.
    Batch::new(
        "two tokens, none, one",
        &[(3, 2, 130), (-1, 0, 0), (0, 1, 40), (1, 3, 3), (-1, 0, 0), (-1, 0, 0)],
        0,
    ),
    Batch::new(
        "chunks and decodes",
        &[(3, 7, 7), (0, 1, 40), (-1, 0, 0), (2, 9, 73)],
        2,
    ),
];

/// Sequences of a row each, of `least` keys and up to `more` besides. They compute as many tokens as `tokens` has in
/// turn; those of none are padding.
const fn sequences<const COUNT: usize>(least: u32, more: u32, tokens: &[u32]) -> [(i32, u32, u32); COUNT] {
    let mut seqs = [(-1, 0, 0); COUNT];
    let mut i = 0;
    while i < COUNT {
        let query_len = tokens[i % tokens.len()];
        if query_len > 0 {
            seqs[i] = (i as i32, query_len, least + i as u32 * 53 % more + query_len);
        }
        i += 1;
    }
    seqs
}

/// Work for all warps of a device: sequences of about equal length, which need not be cut, of any length, and of as
/// many tokens as sequences, but not one each.
const MANY: [Batch; 5] = [
    Batch::new(
        "600 short decodes, 100 rows of padding",
        &sequences::<700>(0, 64, &[1, 1, 1, 0, 1, 1, 1]),
        100,
    ),
    Batch::new("100 decodes", &sequences::<100>(0, 300, &[1]), 0),
    Batch::new(
        "28 sequences of one and two tokens, 14 rows of padding",
        &sequences::<42>(0, 200, &[2, 0, 1]),
        0,
    ),
    // Keys that may be read once for many sequences: of several lengths, in turn, beside sequences that go alone, and
    // beside some of several tokens.
    Batch {
        alike: &[
            alike(0, 30, 1, 256),
            alike(31, 64, 2, 320),
            alike(32, 64, 2, 384),
            alike(64, 66, 1, 448),
            alike(70, 95, 3, 384),
            alike(96, 110, 1, 64),
        ],
        ..Batch::new(
            "110 decodes, many of which begin alike",
            &sequences::<110>(448, 60, &[1]),
            0,
        )
    },
    Batch {
        alike: &[alike(0, 40, 1, 256)],
        ..Batch::new(
            "32 decodes that begin alike, 8 rows of two tokens",
            &sequences::<40>(256, 90, &[1, 1, 1, 1, 2]),
            0,
        )
    },
];

#[derive(Clone, Copy, Debug)]
struct Form {
    dtype: DType,
    kv: DType,
    norms: bool,
    style: RopeStyle,
    /// Half of each head turns, scores are capped, and there are sinks.
    extras: bool,
    /// q and k are compared afterwards.
    read_later: bool,
    block_size: u32,
}

pub(super) fn run(device: &dyn Device, oracle: &dyn Device, options: &Options, report: &mut Report) {
    if !device.info().capabilities.has(Capabilities::COMPOSITES) {
        return;
    }
    let block_size = block_size(device);
    for (dtype, kv) in [
        (DType::F32, DType::F32),
        (DType::BF16, DType::BF16),
        (DType::F16, DType::F16),
        (DType::BF16, DType::F8E4M3),
        (DType::BF16, DType::I8),
        (DType::BF16, DType::U4),
    ] {
        if !device.info().kv_dtypes.contains(kv) {
            continue;
        }
        for (norms, style, extras) in [
            (false, RopeStyle::Neox, false),
            (false, RopeStyle::Interleaved, false),
            (false, RopeStyle::Neox, true),
            (true, RopeStyle::Neox, false),
            (true, RopeStyle::Interleaved, false),
        ] {
            for read_later in [false, true] {
                let form = Form {
                    dtype,
                    kv,
                    norms,
                    style,
                    extras,
                    read_later,
                    block_size,
                };
                let plain = !norms && !extras && style == RopeStyle::Neox;
                let many = match (plain, read_later) {
                    (true, _) => &MANY[..],
                    (false, false) => &MANY[MANY.len() - 1..],
                    (false, true) => &[],
                };
                for batch in BATCHES.iter().chain(many) {
                    let what = format!(
                        "attention of a {dtype:?} layer, kv {kv:?}, norms {norms}, {style:?}, extras {extras}, q and \
                         k read later {read_later}"
                    );
                    if !options.wants_row("composites", &what) {
                        continue;
                    }
                    let outcome = check(device, oracle, &layer(options.seed, &form, batch), false)
                        .map_err(|why| format!("{}: {why}", batch.name));
                    note(report, "composites", &what, outcome);
                }
            }
        }
    }
}

/// Keys of a block of the cache: 64 where the device has such blocks.
pub(super) fn block_size(device: &dyn Device) -> u32 {
    let backends = device.attention().backends();
    let takes = backends
        .first()
        .is_some_and(|backend| backend.block_sizes.is_empty() || backend.block_sizes.contains(&64));
    if takes { 64 } else { 16 }
}

/// Tables, slots and positions of a batch, of at least 5 rows.
pub(super) struct Paged {
    /// Block table, and its width.
    pub table: Vec<i32>,
    pub max_blocks: u32,
    pub pages: u32,
    /// Slots of earlier tokens, and of the step's.
    pub prefix: Vec<i32>,
    pub step: Vec<i32>,
    pub positions: Vec<i32>,
    pub starts: Vec<i32>,
}

pub(super) fn paged(random: &mut Random, batch: &Batch, block_size: u32) -> Paged {
    let blocks = |keys: u32| keys.div_ceil(block_size);
    let max_blocks = batch.seqs.iter().map(|s| blocks(s.2)).max().unwrap_or(0) + 1;
    let pages = batch.seqs.iter().map(|s| blocks(s.2)).sum::<u32>() + 2;
    let rows = batch.seqs.iter().map(|s| (s.0 + 1) as u32).fold(5, u32::max);
    let mut free = random.permutation(pages as usize).into_iter();
    let mut paged = Paged {
        table: vec![-1; (rows * max_blocks) as usize],
        max_blocks,
        pages,
        prefix: vec![-1],
        step: Vec::new(),
        positions: Vec::new(),
        starts: vec![0],
    };
    for (s, &(row, query_len, keys)) in batch.seqs.iter().enumerate() {
        let alike = batch.alike.iter().find(|alike| alike.follows(s));
        for key in 0..keys {
            let at = (row as u32 * max_blocks + key / block_size) as usize;
            if let Some(alike) = alike.filter(|alike| key / block_size < alike.keys / block_size) {
                let row = batch.seqs[alike.first].0 as u32;
                paged.table[at] = paged.table[(row * max_blocks + key / block_size) as usize];
                continue;
            }
            if paged.table[at] < 0 {
                paged.table[at] = free.next().unwrap_or(-1);
            }
            let slot = paged.table[at] * block_size as i32 + (key % block_size) as i32;
            if key < keys - query_len {
                paged.prefix.push(slot);
            } else {
                paged.step.push(slot);
                paged.positions.push(key as i32);
            }
        }
        paged.starts.push(paged.step.len() as i32);
    }
    paged.step.extend(std::iter::repeat_n(-1, batch.pad_tokens as usize));
    paged
        .positions
        .extend(std::iter::repeat_n(0, batch.pad_tokens as usize));
    paged
}

impl Paged {
    /// Cache, block table, and rows, starts and lengths of the sequences.
    pub fn args(&self, batch: &Batch, attention: &Attention) -> [Arg; 5] {
        let seqs = batch.seqs.len() as u32;
        let cache = Arg {
            contents: Contents::Cache {
                pages: self.pages,
                spec: attention.clone().into(),
            },
            check: Check::Ignored,
            ..Arg::bytes(DType::U8, &[0], Vec::new())
        };
        let rows = self.table.len() as u32 / self.max_blocks;
        [
            cache,
            Arg::ints(&[rows, self.max_blocks], &self.table),
            Arg::ints(&[seqs], &batch.seqs.iter().map(|s| s.0).collect::<Vec<_>>()),
            Arg::ints(&[seqs + 1], &self.starts),
            Arg::ints(&[seqs], &batch.seqs.iter().map(|s| s.2 as i32).collect::<Vec<_>>()),
        ]
    }

    /// A layer's attention, and the write of its keys and values: for heads of queries and of keys and their size;
    /// types of activations and of the cache; a window or 0.
    pub fn specs(
        &self,
        (num_heads, num_kv_heads, head_dim): (u32, u32, u32),
        (act, kv): (DType, DType),
        block_size: u32,
        window: u32,
        max_kv_len: u32,
    ) -> (Attention, KvWrite) {
        let tokens = self.step.len() as u32;
        let attention = Attention {
            num_heads,
            num_kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window,
            softcap: 0.0,
            has_sinks: false,
            act,
            kv,
            block_size,
            backend: 0,
            max_seqs: self.starts.len() as u32 - 1,
            max_tokens: tokens,
            max_query_len: tokens,
            max_kv_len,
        };
        let write = KvWrite {
            num_kv_heads,
            head_dim,
            act,
            kv,
            block_size,
            backend: 0,
            max_tokens: tokens.max(self.prefix.len() as u32),
        };
        (attention, write)
    }
}

/// Cosines and then sines of a head's angles at positions 0, 1, ….
pub(super) fn angles(positions: u32, head_dim: u32) -> Vec<f32> {
    let half = head_dim / 2;
    let angle = |position: u32, i: u32| position as f32 * 100f32.powf(-(i as f32) / half as f32);
    let row = |position| {
        let cosines = (0..half).map(move |i| angle(position, i).cos());
        cosines.chain((0..half).map(move |i| angle(position, i).sin()))
    };
    (0..positions).flat_map(row).collect()
}

/// Values up to 1 (uniform: of root mean square 0.58) leave norms of weights up to 2 as values up to 3.5. A half type
/// rounds them there, which a fused form does not, and rotation mixes the errors of a pair: no part of the result
/// bounds them, as a pair may cancel.
fn turned(form: &Form) -> Tolerance {
    let rounded = match (form.norms, form.dtype) {
        (_, DType::F32) => 3.5 * 2f32.powi(-22),
        (true, dtype) => 3.5 * 2f32.sqrt() * unit_roundoff(dtype),
        (false, _) => 0.0,
    };
    let once = tolerance(Class::Transcendental, form.dtype);
    Tolerance {
        abs: once.abs + rounded,
        reason: "norms' results are rounded to the type before rotation, or are not",
        ..once
    }
}

/// The result of attention. Behind norms, queries and keys have a root mean square of 1.15: rounded or not, their
/// products over 64 dimensions differ by 0.75 u at one deviation, four of which are 0.012 in bf16; so does a weight,
/// and by half of that a result, beside the usual.
fn attended(form: &Form, tokens: u32) -> Arg {
    let class = match form.kv {
        kv @ (DType::F8E4M3 | DType::I8 | DType::U4) => Class::AttentionOfRoundedKeys { kv },
        kv => Class::AttentionOver { kv },
    };
    let mut out = Arg::output(form.dtype, &[tokens, HEADS, HEAD_DIM], class);
    if let (true, Check::Near(tolerance, _)) = (form.norms && form.dtype != DType::F32, &mut out.check) {
        tolerance.abs += 1.5 * unit_roundoff(form.dtype);
    }
    out
}

fn layer(seed: u64, form: &Form, batch: &Batch) -> Case {
    let random = &mut Random::of(seed, &format!("attention layer {form:?} {}", batch.name));
    let paged = paged(random, batch, form.block_size);
    let (tokens, prefix) = (paged.step.len() as u32, paged.prefix.len() as u32);
    let real = paged.starts.last().map_or(0, |&end| end as u32);
    let width = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
    let (mut attention, write) = paged.specs(
        (HEADS, KV_HEADS, HEAD_DIM),
        (form.dtype, form.kv),
        form.block_size,
        0,
        MAX_POSITIONS,
    );
    let rotary_dim = if form.extras { HEAD_DIM / 2 } else { HEAD_DIM };
    if form.extras {
        attention.softcap = 1.5;
        attention.has_sinks = true;
    }
    let mut floats =
        |dtype, shape: &[u32]| Arg::floats(dtype, shape, &random.units(shape.iter().product::<u32>() as usize));
    let heads = |heads, first_head: u32| Arg::slice(form.dtype, &[tokens, heads, HEAD_DIM], 0, first_head * HEAD_DIM);
    let product = floats(form.dtype, &[tokens, width]);
    let product = Arg {
        check: Check::Ignored,
        ..product
    };
    let [cache, table, rows, starts, seq_lens] = paged.args(batch, &attention);
    let args = vec![
        if form.read_later {
            Arg {
                check: Check::Near(turned(form), None),
                ..product
            }
        } else {
            product
        },
        heads(HEADS, 0),
        heads(KV_HEADS, HEADS),
        heads(KV_HEADS, HEADS + KV_HEADS),
        heads(HEADS + KV_HEADS, 0),
        floats(DType::F32, &[HEAD_DIM]),
        floats(DType::F32, &[HEAD_DIM]),
        Arg::ints(&[tokens], &paged.positions),
        Arg::floats(
            DType::F32,
            &[MAX_POSITIONS, rotary_dim],
            &angles(MAX_POSITIONS, rotary_dim),
        ),
        Arg::ints(&[tokens], &paged.step),
        cache,
        table,
        rows,
        starts,
        seq_lens,
        attended(form, tokens).only_rows((0..real).collect()),
        floats(form.dtype, &[prefix, KV_HEADS, HEAD_DIM]),
        floats(form.dtype, &[prefix, KV_HEADS, HEAD_DIM]),
        Arg::ints(&[prefix], &paged.prefix),
        floats(DType::F32, &[HEADS]),
        // 20: the queries that follow, and what they get.
        floats(form.dtype, &[tokens, HEADS, HEAD_DIM]),
        attended(form, tokens).only_rows((0..real).collect()),
    ];
    let norm = RmsNorm {
        width: HEAD_DIM,
        eps: 1e-5,
        weight_offset: 1.0,
        dtype: form.dtype,
    };
    let rope = Rope {
        head_dim: HEAD_DIM,
        rotary_dim,
        style: form.style,
        dtype: form.dtype,
    };
    let mut nodes = vec![(write.clone().into(), vec![16, 17, 18, 10])];
    if form.norms {
        nodes.push((norm.clone().into(), vec![1, 5, 1]));
        nodes.push((norm.into(), vec![2, 6, 2]));
    }
    nodes.push((rope.into(), vec![7, 8, 4]));
    nodes.push((write.into(), vec![2, 3, 9, 10]));
    let sinks = if form.extras { 19 } else { ABSENT };
    nodes.push((attention.clone().into(), vec![1, 10, 11, 12, 13, 14, sinks, 15]));
    attention.window = 2;
    nodes.push((attention.into(), vec![20, 10, 11, 12, 13, 14, sinks, 21]));
    Case {
        op: "composites",
        variant: String::new(),
        name: batch.name.to_string(),
        args,
        nodes,
    }
}
