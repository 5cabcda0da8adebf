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
    /// out\[i\] = x\[index\[i\]\]; rows with index −1 stay as they were. out is not the same tensor as x.
    pub struct GatherRows = 16 "gather_rows", wire GatherRowsDesc = "halyard_gather_rows_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    }
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[N\] i32.
        index: Read,
        /// \[N, width\] `dtype`.
        out: Update,
    }
}

op! {
    /// out\[index\[i\]\] = x\[i\]; index −1 writes nothing; an index appears at most once. out is not the same tensor
    /// as x.
    pub struct ScatterRows = 17 "scatter_rows", wire ScatterRowsDesc = "halyard_scatter_rows_desc" {
        /// Values of a row.
        width: u32,
        /// Type.
        dtype: DType,
    }
    operands {
        /// \[N, width\] `dtype`.
        x: Read,
        /// \[N\] i32.
        index: Read,
        /// \[T, width\] `dtype`.
        out: Update,
    }
}

op! {
    /// Quantises rows, as the scheme says. A group of zeros has scale 0 and zeros.
    pub struct QuantizeAct = 21 "quantize_act", wire QuantizeActDesc = "halyard_quantize_act_desc" {
        /// Values of a row.
        width: u32,
        /// Type of x.
        dtype: DType,
        /// Type of q, and how many values share a scale.
        scheme: QuantizeScheme,
    }
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[T, width\] i8 or f8e4m3, as the scheme says.
        q: Write,
        /// \[T, 1\] f32; with int8_block32 \[T, width/32\].
        scales: Write,
    }
}

op! {
    /// out\[s\] = pooled x over the tokens query_start_loc\[s\] .. query_start_loc\[s+1\], divided by its Euclidean
    /// norm if `normalize`. An empty sequence gives zeros.
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
    operands {
        /// \[T, width\] `dtype`.
        x: Read,
        /// \[S+1\] i32.
        query_start_loc: Read,
        /// \[S, width\] f32.
        out: Write,
    }
}

op! {
    /// out = x in another float type, rounded to nearest even.
    ///
    /// Reserved: no model asks for it yet.
    pub struct Cast = 30 "cast", wire CastDesc = "halyard_cast_desc" {
        /// Values of a row.
        width: u32,
        /// Type of x.
        from: DType,
        /// Type of out.
        to: DType,
    }
    operands {
        /// \[T, width\] `from`.
        x: Read,
        /// \[T, width\] `to`.
        out: Write,
    }
}

op! {
    /// out = x.
    pub struct Copy = 31 "copy", wire CopyDesc = "halyard_copy_desc" {
        /// Type of both.
        dtype: DType,
    }
    operands {
        /// Any shape of 1 to 3 axes, `dtype`, with any strides, of the innermost axis, too.
        x: Read,
        /// The same shape, `dtype`, with any strides.
        out: Write,
    }
}

op! {
    /// cache\[pairs\[i, 1\]\] = cache\[pairs\[i, 0\]\], in any order; no page is both a source and a destination; −1
    /// copies nothing.
    ///
    /// Reserved: no model asks for it yet.
    pub struct CopyBlocks = 32 "copy_blocks", wire CopyBlocksDesc = "halyard_copy_blocks_desc" {
        /// Bytes of a block.
        block_bytes: u32,
    }
    operands {
        /// \[N, 2\] i32.
        pairs: Read,
        /// As that of kv_write.
        cache: Update,
    }
}

op! {
    /// Every element of out = value, rounded to the type.
    ///
    /// Reserved: no model asks for it yet.
    pub struct Fill = 33 "fill", wire FillDesc = "halyard_fill_desc" {
        /// Type.
        dtype: DType,
        /// Value.
        value: f32,
    }
    operands {
        /// Any shape of 1 to 3 axes, `dtype`, strided.
        out: Write,
    }
}

op! {
    /// out\[i\] = uniform in \[−scale, scale): (u/2²³ − 1)·scale with u the upper 24 bits of word i mod 4 of
    /// Philox4x32-10 (Salmon et al. 2011) with counter (i / 4, 0, 0, 0) and key (seed_low, seed_high). The value of an
    /// element depends on nothing else. i counts elements in row-major order, from `first`.
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
    operands {
        /// Any shape, `dtype` (a float type), contiguous.
        out: Write,
    }
}
