//! The views of an attention call, and how kernels take them; bytes of a KV block (`kv.cuh`).

use halyard_platform_api::{DType, Error, Result};

use crate::encoding::Arg;
use crate::ops::names::kv_code_bits;
use crate::view::View;

/// Bytes of a KV block of one layer.
pub(super) fn block_bytes(kv: DType, num_kv_heads: u32, head_dim: u32, block_size: u32) -> u64 {
    u64::from(num_kv_heads) * head_bytes(kv, head_dim, block_size)
}

/// Bytes of one head's keys and values in a block (`KvLayout` of `kv.cuh` and `kv_codes.cuh`).
pub(super) fn head_bytes(kv: DType, head_dim: u32, block_size: u32) -> u64 {
    if let Some(bits) = kv_code_bits(kv) {
        // Codes, and a word for each token.
        let tokens = block_size.next_multiple_of(8);
        return 2 * u64::from(tokens) * u64::from(head_dim.div_ceil(128 / bits) * 16 + 4);
    }
    let row = 16 / kv.bytes() as u32;
    let key_units = head_dim.div_ceil(row) * block_size.div_ceil(8);
    let value_units = block_size.div_ceil(row) * head_dim.div_ceil(8);
    u64::from(key_units + value_units) * 128
}

/// The views of an attention call, by name.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Call {
    /// \[T, num_heads, head_dim\].
    pub q: View,
    /// \[num_pages, block_bytes\].
    pub cache: View,
    /// \[R, max_blocks\].
    pub block_table: View,
    /// \[S\].
    pub step_rows: View,
    /// \[S + 1\].
    pub query_start_loc: View,
    /// \[S\].
    pub seq_lens: View,
    /// \[num_heads\], optional.
    pub sinks: View,
    /// \[T, num_heads, head_dim\].
    pub out: View,
}

impl Call {
    /// From the operands in their documented order.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of operands; `Unsupported` for heads that are not contiguous.
    pub(in crate::ops) fn of(operands: &[View]) -> Result<Call> {
        let &[q, cache, block_table, step_rows, query_start_loc, seq_lens, sinks, out] = operands else {
            return Err(Error::invalid(format!(
                "attention has 8 operands, not {}",
                operands.len()
            )));
        };
        for (name, view) in [
            ("q", &q),
            ("out", &out),
            ("cache", &cache),
            ("block_table", &block_table),
        ] {
            contiguous_heads("attention", name, view)?;
        }
        Ok(Call {
            q,
            cache,
            block_table,
            step_rows,
            query_start_loc,
            seq_lens,
            sinks,
            out,
        })
    }

    /// The views as the decode and the plain kernel take them first.
    pub(super) fn view_args(&self) -> Vec<Arg> {
        let mut args = Vec::with_capacity(40);
        args.extend(heads_args(&self.q));
        args.extend(cache_args(&self.cache));
        args.extend([
            Arg::Ptr(self.block_table.ptr),
            Arg::U32(self.block_table.row_stride()),
            Arg::Ptr(self.step_rows.ptr),
            Arg::Ptr(self.query_start_loc.ptr),
            Arg::Ptr(self.seq_lens.ptr),
            Arg::Ptr(self.sinks.ptr),
        ]);
        args.extend(heads_args(&self.out));
        args
    }

    pub(super) fn num_tokens(&self) -> u32 {
        self.q.len()
    }

    pub(super) fn num_seqs(&self) -> u32 {
        self.step_rows.len()
    }
}

/// Refuses a view whose innermost axis has gaps.
pub(super) fn contiguous_heads(op: &str, name: &str, view: &View) -> Result<()> {
    if view.is_none() {
        return Err(Error::invalid(format!("{op}: {name} is absent, and it must be there")));
    }
    if view.is_inner_contiguous() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "{op}: the innermost axis of {name} has stride {}, this platform takes 1 (copy it together first)",
        view.strides[view.rank as usize - 1]
    )))
}

/// Whether token rows and heads of a view start at multiples of `bytes`.
pub(in crate::ops) fn is_aligned(view: &View, bytes: u64) -> bool {
    let size = view.dtype.bytes() as u64;
    let strides = [u64::from(view.strides[0]) * size, u64::from(view.strides[1]) * size];
    let used = [view.shape[0] > 1, view.shape[1] > 1];
    view.ptr.is_multiple_of(bytes) && (0..2).all(|axis| !used[axis] || strides[axis].is_multiple_of(bytes))
}

/// Pointer, row stride and head stride: how kernels take q, k, v and out.
pub(in crate::ops) fn heads_args(view: &View) -> [Arg; 3] {
    [Arg::Ptr(view.ptr), Arg::U32(view.strides[0]), Arg::U32(view.strides[1])]
}

/// A KV cache: pointer and distance of pages in bytes.
pub(in crate::ops) fn cache_args(view: &View) -> [Arg; 2] {
    [Arg::Ptr(view.ptr), Arg::U64(u64::from(view.strides[0]))]
}
