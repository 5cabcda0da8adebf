//! Moving and converting: `gather_rows`, `scatter_rows`, `quantize_act`, `pool`, `cast`, `copy`, `copy_blocks`, `fill`,
//! `fill_random`.

use crate::abi::wire_enum;
use crate::dtype::DType;

wire_enum! {
    /// How activations are quantised.
    pub enum QuantizeScheme {
        /// Signed 8-bit, one scale a row: scale = max|x|/127, q = round-half-to-even(x/scale).
        Int8Row = 0,
        /// Signed 8-bit, one scale per 32 values.
        Int8Block32 = 1,
        /// E4M3, one scale a row: scale = max|x|/448, q = nearest(x/scale).
        Fp8Row = 2,
    }
}

wire_enum! {
    /// How a sequence becomes one vector.
    pub enum PoolMode {
        /// Its last token.
        Last = 0,
        /// The mean of its tokens.
        Mean = 1,
        /// Its first token.
        First = 2,
    }
}

op! {
    /// out\[i\] = x\[index\[i\]\]; rows with index −1 stay as they were.
    ///
    /// Operands: x \[T, width\] `dtype`; index \[N\] i32; out \[N, width\] `dtype`, updated; not the same tensor as x.
    pub struct GatherRows = 16 "gather_rows", wire GatherRowsDesc = "halyard_gather_rows_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    }
    operands { x: Read, index: Read, out: Update }
}

op! {
    /// out\[index\[i\]\] = x\[i\]; index −1 writes nothing; an index appears at most once.
    ///
    /// Operands: x \[N, width\] `dtype`; index \[N\] i32; out \[T, width\] `dtype`, updated; not the same tensor as x.
    pub struct ScatterRows = 17 "scatter_rows", wire ScatterRowsDesc = "halyard_scatter_rows_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    }
    operands { x: Read, index: Read, out: Update }
}

op! {
    /// Quantises rows. Operands: x \[T, width\] `dtype`; q \[T, width\] i8 or f8; scales \[T, 1\] or \[T, width/32\]
    /// f32. A group of zeros has scale 0 and zeros.
    pub struct QuantizeAct = 21 "quantize_act", wire QuantizeActDesc = "halyard_quantize_act_desc" {
        /// Values of a row.
        width: u32,
        /// Type of x.
        dtype: DType,
        /// Scheme.
        scheme: QuantizeScheme,
    }
    operands { x: Read, q: Write, scales: Write }
}

op! {
    /// out\[s\] = pooled x over the tokens query_start_loc\[s\] .. query_start_loc\[s+1\], divided by its Euclidean
    /// norm if `normalize`. An empty sequence gives zeros.
    ///
    /// Operands: x \[T, width\] `dtype`; query_start_loc \[S+1\] i32; out \[S, width\] f32.
    pub struct Pool = 29 "pool", wire PoolDesc = "halyard_pool_desc" {
        /// Values of a row.
        width: u32,
        /// Type of x.
        dtype: DType,
        /// How.
        mode: PoolMode,
        /// Scale to length 1 (norms below 1e-12 count as 1e-12).
        normalize: bool,
    }
    operands { x: Read, query_start_loc: Read, out: Write }
}

op! {
    /// out = x in another float type, rounded to nearest even. Operands: x \[T, width\] `from`; out \[T, width\] `to`.
    ///
    /// Reserved: no backend of this repository has it ([`crate::OpSpec::RESERVED`]).
    pub struct Cast = 30 "cast", wire CastDesc = "halyard_cast_desc" {
        /// Values of a row.
        width: u32,
        /// Type of x.
        from: DType,
        /// Type of out.
        to: DType,
    }
    operands { x: Read, out: Write }
}

op! {
    /// out = x, any equal shape and type of 1 to 3 axes, strided. Operands: x; out.
    pub struct Copy = 31 "copy", wire CopyDesc = "halyard_copy_desc" {
        /// Type of both.
        dtype: DType,
    }
    operands { x: Read, out: Write }
}

op! {
    /// cache\[pairs\[i, 1\]\] = cache\[pairs\[i, 0\]\], in any order; no page is both a source and a destination; −1
    /// copies nothing.
    ///
    /// Operands: pairs \[N, 2\] i32; cache \[num_pages, block_bytes\] u8, updated.
    ///
    /// Reserved: no backend of this repository has it ([`crate::OpSpec::RESERVED`]).
    pub struct CopyBlocks = 32 "copy_blocks", wire CopyBlocksDesc = "halyard_copy_blocks_desc" {
        /// Bytes of a block.
        block_bytes: u32,
    }
    operands { pairs: Read, cache: Update }
}

op! {
    /// Every element of out = value (rounded to the type). Operands: out, any shape of 1 to 3 axes, strided.
    ///
    /// Reserved: no backend of this repository has it ([`crate::OpSpec::RESERVED`]).
    pub struct Fill = 33 "fill", wire FillDesc = "halyard_fill_desc" {
        /// Type.
        dtype: DType,
        /// Value.
        value: f32,
    }
    operands { out: Write }
}

op! {
    /// out\[i\] = uniform in \[−scale, scale): (u/2²³ − 1)·scale with u the upper 24 bits of word i mod 4 of
    /// Philox4x32-10 (Salmon et al. 2011) with counter (i / 4, 0, 0, 0) and key (seed_low, seed_high). The value of an
    /// element depends on nothing else. i counts elements in row-major order, from `first`.
    ///
    /// Operands: out, contiguous, float type.
    pub struct FillRandom = 34 "fill_random", wire FillRandomDesc = "halyard_fill_random_desc" {
        /// Type.
        dtype: DType,
        /// Low half of the key.
        seed_low: u32,
        /// High half of the key.
        seed_high: u32,
        /// Half width of the interval.
        scale: f32,
        /// Index of the first element; a multiple of 4.
        first: u32,
    }
    operands { out: Write }
}
