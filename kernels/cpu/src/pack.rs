//! Packs canonical weight rows into panels of 16 rows, the layout that `panel` reads. Owns the writing side; it runs
//! once at model load and is plain Rust, so that one packed buffer serves every instruction set.
//!
//! A panel holds 16 rows (the last one padded with zero rows) over all of K, padded with zeros to a multiple of 32.
//! Formats, per 32 elements of K ("block"), rows interleaved; `[r]` runs over the 16 rows:
//! - `F32` f32\[32\]\[r\]; `F16` u16\[32\]\[r\]; `Bf16` u16\[16\]\[r\]\[2\] (pairs along K).
//! - quants are unsigned bytes in groups of 4 along K, u8\[8 groups\]\[r\]\[4\] when whole (`Q8_0`); as nibbles
//!   u8\[4\]\[r\]\[4\] with group 2v in the low and 2v + 1 in the high nibbles of vector v.
//! - `Q4_0` d f16\[r\], nibbles; `Q4_1` d f16\[r\], m f16\[r\], nibbles; `Q8_0` d f16\[r\], bytes (+128).
//! - `Q5_0` d f16\[r\], nibbles, fifth bits u8\[r\]\[4\]: bit g of byte j is that of group g.
//! - `Q4K` per 256: d f16\[r\], dmin f16\[r\]; then per block: scale u8\[r\], min u8\[r\], nibbles.
//! - `Q6K` per 256: d f16\[r\]; then per block: scales i8\[2\]\[r\] (one per 16), nibbles, high pairs
//!   u8\[2\]\[r\]\[4\]: bits 2g of vector h are those of group 4h + g.
//! - `F8E4M3` per 256 (the last may be shorter): the rows' scale f32\[r\], repeated; then per block: codes
//!   u8\[32\]\[r\]. A row that holds a NaN gets the scale NaN: readers need not tell that code from numbers.
//! - Coded rows: `pack_coded`.
//! - Groups of G (`U4`, `I8`, `F8`) per 256 (the last may be shorter): for each group s f32\[r\], and m f32\[r\] where
//!   there are minima; then per block nibbles, bytes (+128), or codes as of `F8E4M3`. NaNs of `F8` as there, by group.

use crate::format::{WeightFormat, f32_at, group_codes, q4k_scale_min, quants32, quants256, split_e4m3};
use crate::pack_coded::{Layout, ROWS, pack_coded, put_bits};
use crate::simd::LANES;

/// Elements of K that are packed together.
pub(crate) const BLOCK: usize = 32;

const _: () = assert!(ROWS == LANES);

/// K as packed: the next multiple of 32.
pub(crate) const fn padded_k(k: usize) -> usize {
    k.next_multiple_of(BLOCK)
}

/// Bytes before a panel's first block: the numbers that codes stand for, where a table has them.
pub(crate) const fn lead(format: WeightFormat) -> usize {
    if format.has_table() { 64 } else { 0 }
}

/// (bytes of one 32-element block of a panel, bytes that precede each 8 blocks).
pub(crate) const fn block_layout(format: WeightFormat) -> (usize, usize) {
    match format {
        WeightFormat::F32 => (2048, 0),
        WeightFormat::F16 | WeightFormat::Bf16 => (1024, 0),
        WeightFormat::Q4_0 => (32 + 256, 0),
        WeightFormat::Q4_1 => (64 + 256, 0),
        WeightFormat::Q5_0 => (32 + 256 + 64, 0),
        WeightFormat::Q8_0 => (32 + 512, 0),
        WeightFormat::Q4K => (32 + 256, 64),
        WeightFormat::Q6K => (32 + 256 + 128, 32),
        WeightFormat::F8E4M3 => (512, 64),
        WeightFormat::Int5 => (64 + 256 + 64, 0),
        WeightFormat::Int5Scaled => (256 + 64, 64 + 8 * 32),
        WeightFormat::Int2Scaled => (128, 64 + 8 * 32),
        WeightFormat::Int2 => (128, 32),
        WeightFormat::Int3Scaled => (128 + 64, 32 + 8 * 32),
        WeightFormat::Table3Scaled | WeightFormat::Table3Small => (128 + 64, 64 + 8 * 32),
        WeightFormat::Table4Scaled => (256, 64 + 8 * 16),
        WeightFormat::Table4 => (32 + 256, 0),
        WeightFormat::U4G16 | WeightFormat::U4G32 | WeightFormat::U4G128 => (256, 256 / format.group() * 128),
        WeightFormat::I8G16 | WeightFormat::I8G32 | WeightFormat::I8G128 => (512, 256 / format.group() * 128),
        WeightFormat::F8G32 | WeightFormat::F8G128 => (512, 256 / format.group() * 64),
    }
}

/// Bytes of one packed panel of 16 rows of `k` elements.
pub const fn panel_bytes(format: WeightFormat, k: usize) -> usize {
    let (block, head) = block_layout(format);
    let blocks = padded_k(k) / BLOCK;
    lead(format) + blocks * block + blocks.div_ceil(8) * head
}

/// Panels of a weight of `n` rows.
pub const fn num_panels(n: usize) -> usize {
    n.div_ceil(LANES)
}

/// Bytes of a packed weight \[n, k\].
pub const fn packed_bytes(format: WeightFormat, n: usize, k: usize) -> usize {
    num_panels(n) * panel_bytes(format, k)
}

/// Packs the rows of panels `first_panel..` into `dst`, one panel after the other, until `rows` are used up; the last
/// panel's missing rows become zeros. Weights can thus be packed piecewise and on several threads.
///
/// - `rows`: canonical bytes of whole rows, `format.row_bytes(k)` each, beginning with row 16·`first_panel`.
/// - `dst`: the whole packed weight, `packed_bytes(format, n, k)`.
///
/// # Panics
/// If `k` is no multiple of the format's block, `rows` no whole number of rows, or `dst` too short.
pub fn pack(format: WeightFormat, k: usize, rows: &[u8], dst: &mut [u8], first_panel: usize) {
    let Some(row_bytes) = format.row_bytes(k) else {
        panic!(
            "{format:?} rows need a multiple of {} elements, not {k}",
            format.block_len()
        );
    };
    if row_bytes == 0 {
        return;
    }
    assert!(
        rows.len().is_multiple_of(row_bytes),
        "{} bytes are no whole rows of {row_bytes}",
        rows.len()
    );
    let bytes = panel_bytes(format, k);
    let panels = dst[first_panel * bytes..].chunks_exact_mut(bytes);
    let sources = rows.chunks(row_bytes * LANES);
    assert!(
        panels.len() >= sources.len(),
        "{} panels do not fit into {}",
        sources.len(),
        panels.len()
    );
    for (panel, source) in panels.zip(sources) {
        // Missing rows stay zero: their scales are zero, and 0 · q is 0.
        panel.fill(0);
        for (r, row) in source.chunks_exact(row_bytes).enumerate() {
            pack_row(format, row, panel, r);
        }
    }
}

fn pack_row(format: WeightFormat, row: &[u8], panel: &mut [u8], r: usize) {
    let (len, bytes) = (format.block_len(), format.block_bytes());
    let (block_bytes, head) = block_layout(format);
    match format {
        WeightFormat::F32 => put_elements::<4>(row, panel, r),
        WeightFormat::F16 => put_elements::<2>(row, panel, r),
        WeightFormat::Bf16 => {
            put_elements::<4>(row, panel, r);
            // An element without a neighbour.
            if let &[.., low, high] = row
                && row.len() % 4 == 2
            {
                let at = row.len() / 4 * 4 * LANES + 4 * r;
                (panel[at], panel[at + 1]) = (low, high);
            }
        }
        WeightFormat::F8E4M3 => {
            let (codes, mut scale) = split_e4m3(row);
            if codes.iter().any(|code| code & 0x7f == 0x7f) {
                scale = f32::NAN;
            }
            let outs = panel.chunks_mut(head + 8 * block_bytes);
            for (codes, out) in codes.chunks(8 * BLOCK).zip(outs) {
                out[4 * r..4 * r + 4].copy_from_slice(&scale.to_le_bytes());
                for (k, &code) in codes.iter().enumerate() {
                    out[head + k * LANES + r] = code;
                }
            }
        }
        WeightFormat::U4G16
        | WeightFormat::U4G32
        | WeightFormat::U4G128
        | WeightFormat::I8G16
        | WeightFormat::I8G32
        | WeightFormat::I8G128
        | WeightFormat::F8G32
        | WeightFormat::F8G128 => {
            for (group, block) in row.chunks_exact(bytes).enumerate() {
                pack_group(format, group, block, panel, r);
            }
        }
        WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => {
            for (block, out) in row.chunks_exact(bytes).zip(panel.chunks_exact_mut(block_bytes)) {
                pack_block32(format, block, out, r);
            }
        }
        WeightFormat::Q4K | WeightFormat::Q6K => {
            let outs = panel.chunks_exact_mut(head + len / BLOCK * block_bytes);
            for (block, out) in row.chunks_exact(bytes).zip(outs) {
                pack_block256(format, block, out, r);
            }
        }
        _ => {
            let layout = Layout {
                lead: lead(format),
                block_bytes,
                head,
            };
            pack_coded(format, layout, row, panel, r);
        }
    }
}

/// Elements of so many bytes, or pairs of them, one of each row beside the other.
fn put_elements<const BYTES: usize>(row: &[u8], panel: &mut [u8], r: usize) {
    let elements = row.as_chunks::<BYTES>().0;
    for (element, of_rows) in elements.iter().zip(panel.chunks_exact_mut(BYTES * LANES)) {
        of_rows[BYTES * r..BYTES * (r + 1)].copy_from_slice(element);
    }
}

/// Group `group` of a row.
fn pack_group(format: WeightFormat, group: usize, block: &[u8], panel: &mut [u8], r: usize) {
    let (block_bytes, head) = block_layout(format);
    let (len, codes) = (format.group(), group_codes(format, block));
    let codes = &codes[..len];
    let per_head = 256 / len;
    let out = &mut panel[group / per_head * (head + 8 * block_bytes)..];
    let mut scale = f32_at(block, 0);
    let at = group % per_head * if format.has_group_min() { 128 } else { 64 } + 4 * r;
    if format.has_group_min() {
        out[at + 64..at + 68].copy_from_slice(&block[4..8]);
    } else if codes.iter().any(|code| code & 0x7f == 0x7f) {
        scale = f32::NAN;
    }
    out[at..at + 4].copy_from_slice(&scale.to_le_bytes());
    // A group is a part of a block, or several blocks.
    for (i, codes) in codes.chunks(BLOCK).enumerate() {
        let first = group % per_head * len + BLOCK * i;
        let (out, k) = (&mut out[head + first / BLOCK * block_bytes..], first % BLOCK);
        match format {
            WeightFormat::U4G16 | WeightFormat::U4G32 | WeightFormat::U4G128 => {
                put_bits::<0, 4>(codes, &mut out[64 * (k / 8)..], r);
            }
            WeightFormat::F8G32 | WeightFormat::F8G128 => {
                for (out, code) in out[k * LANES..].chunks_mut(LANES).zip(codes) {
                    out[r] = *code;
                }
            }
            _ => put_bits::<0, 8>(codes, &mut out[64 * (k / 4)..], r),
        }
    }
}

fn pack_block32(format: WeightFormat, block: &[u8], out: &mut [u8], r: usize) {
    let q = quants32(format, block);
    out[2 * r..2 * r + 2].copy_from_slice(&block[..2]);
    match format {
        WeightFormat::Q4_1 => {
            out[32 + 2 * r..34 + 2 * r].copy_from_slice(&block[2..4]);
            put_bits::<0, 4>(&q, &mut out[64..], r);
        }
        WeightFormat::Q5_0 => {
            put_bits::<0, 4>(&q, &mut out[32..], r);
            put_bits::<4, 1>(&q, &mut out[288..], r);
        }
        WeightFormat::Q8_0 => put_bits::<0, 8>(&q, &mut out[32..], r),
        _ => put_bits::<0, 4>(&q, &mut out[32..], r),
    }
}

fn pack_block256(format: WeightFormat, block: &[u8], out: &mut [u8], r: usize) {
    let (block_bytes, head) = block_layout(format);
    let q = quants256(format, block);
    if format == WeightFormat::Q4K {
        out[2 * r..2 * r + 2].copy_from_slice(&block[..2]);
        out[32 + 2 * r..34 + 2 * r].copy_from_slice(&block[2..4]);
    } else {
        out[2 * r..2 * r + 2].copy_from_slice(&block[208..210]);
    }
    for (j, out) in out[head..].chunks_exact_mut(block_bytes).enumerate() {
        let q = &q[BLOCK * j..BLOCK * (j + 1)];
        if format == WeightFormat::Q4K {
            (out[r], out[16 + r]) = q4k_scale_min(&block[4..16], j);
        } else {
            (out[r], out[16 + r]) = (block[192 + 2 * j], block[193 + 2 * j]);
            put_bits::<4, 2>(q, &mut out[288..], r);
        }
        put_bits::<0, 4>(q, &mut out[32..], r);
    }
}
