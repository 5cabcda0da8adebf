//! The views of a `latent_attention` call, and how kernels take them.

use halyard_platform_api::{Error, Result};

use crate::encoding::Arg;
use crate::ops::attention::call::{cache_args, contiguous_heads, heads_args};
use crate::view::View;

/// The views of a `latent_attention` call, by name.
pub(super) struct Call {
    /// \[T, num_heads, latent_dim\].
    pub q_latent: View,
    /// \[T, num_heads, rope_dim\].
    pub q_rope: View,
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
    /// \[T, num_heads, latent_dim\].
    pub out: View,
}

impl Call {
    /// From the operands in their documented order.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of operands; `Unsupported` for heads that are not contiguous.
    pub(super) fn of(operands: &[View]) -> Result<Call> {
        let &[
            q_latent,
            q_rope,
            cache,
            block_table,
            step_rows,
            query_start_loc,
            seq_lens,
            out,
        ] = operands
        else {
            return Err(Error::invalid(format!(
                "latent_attention has 8 operands, not {}",
                operands.len()
            )));
        };
        for (name, view) in [
            ("q_latent", &q_latent),
            ("q_rope", &q_rope),
            ("cache", &cache),
            ("block_table", &block_table),
            ("out", &out),
        ] {
            contiguous_heads("latent_attention", name, view)?;
        }
        Ok(Call {
            q_latent,
            q_rope,
            cache,
            block_table,
            step_rows,
            query_start_loc,
            seq_lens,
            out,
        })
    }

    /// The views as every kernel takes them first.
    pub(super) fn args(&self) -> Vec<Arg> {
        let mut args = Vec::with_capacity(32);
        args.extend(heads_args(&self.q_latent));
        args.extend(heads_args(&self.q_rope));
        args.extend(cache_args(&self.cache));
        args.extend([
            Arg::Ptr(self.block_table.ptr),
            Arg::U32(self.block_table.row_stride()),
            Arg::Ptr(self.step_rows.ptr),
            Arg::Ptr(self.query_start_loc.ptr),
            Arg::Ptr(self.seq_lens.ptr),
        ]);
        args.extend(self.out_args());
        args
    }

    /// out as every kernel takes it.
    pub(super) fn out_args(&self) -> [Arg; 3] {
        heads_args(&self.out)
    }
}
