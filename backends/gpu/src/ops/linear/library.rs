//! Many tokens: the vendor's library product. Bias and residual go into the output first and the product is added; an activation needs the whole
//! product in f32 scratch. Weights of another type or format are unpacked in scratch, some rows at a time.

use std::sync::Arc;

use halyard_platform_api::ops::{self, Epilogue};
use halyard_platform_api::{DType, Result};

use super::plain::{Finish, convert_function, encode_convert};
use super::quantized::Unpack;
use super::scaled::UnpackScaled;
use super::{Call, Held};
use crate::driver::{DevicePtr, Function, Product, ProductCall, ProductSpec};
use crate::encoding::{Arg, Encoding};
use crate::kernel::Preparation;
use crate::view::View;

/// Most scratch for unpacked weights, and for products that wait for their activation.
const SCRATCH_BYTES: u64 = 64 << 20;
const ALIGN: u64 = 256;

/// Prepared products of one matrix.
pub(super) struct Library {
    pieces: Vec<Piece>,
    unpacking: Unpacking,
    finish: Finish,
    n: u32,
    k: u32,
    act_bytes: u64,
    out_bytes: u64,
    /// Tokens of one pass, where products wait in scratch for their activation.
    waiting_tokens: Option<u32>,
    product_at: u64,
    workspace_at: u64,
    workspace_bytes: u64,
}

/// Rows `first .. first + rows` of the matrix.
struct Piece {
    first: u32,
    rows: u32,
    set: Arc<dyn Product>,
    /// Absent where products wait in scratch.
    add: Option<Arc<dyn Product>>,
}

/// How rows become what the library takes.
enum Unpacking {
    None,
    Widen(Function, u64),
    Planes(Unpack),
    Scaled(UnpackScaled),
}

impl Library {
    /// `None` where own kernels do better for all sizes of call.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        held: Held,
        own_limit: u32,
    ) -> Result<Option<Library>> {
        let act_bytes = op.act.bytes() as u64;
        let (n, k) = (op.out_features, op.in_features);
        if op.max_tokens <= own_limit || !(u64::from(k) * act_bytes).is_multiple_of(16) {
            return Ok(None);
        }
        let unpacking = match held {
            Held::Plain(dtype) if dtype == op.act => Unpacking::None,
            Held::Plain(dtype) => Unpacking::Widen(convert_function(cx, dtype, op.act)?, dtype.bytes() as u64),
            Held::Planes(format) => Unpacking::Planes(Unpack::prepare(cx, op, format)?),
            Held::Scaled => Unpacking::Scaled(UnpackScaled::prepare(cx, op)?),
        };
        let piece_rows = match unpacking {
            Unpacking::None => n,
            _ => piece_rows(n, u64::from(k) * act_bytes),
        };
        let waits = op.epilogue != Epilogue::None;
        let product = |rows, accumulate| {
            cx.driver.product(&ProductSpec {
                in_features: k,
                out_features: rows,
                act: op.act,
                weight: op.act,
                out: if waits { DType::F32 } else { op.out },
                accumulate,
                max_tokens: op.max_tokens,
            })
        };
        let mut pieces: Vec<Piece> = Vec::new();
        let mut first = 0;
        while first < n {
            let rows = piece_rows.min(n - first);
            let same = pieces.iter().find(|p| p.rows == rows);
            let (set, add) = match same {
                Some(piece) => (piece.set.clone(), piece.add.clone()),
                None if waits => (product(rows, false)?, None),
                None => (product(rows, false)?, Some(product(rows, true)?)),
            };
            pieces.push(Piece { first, rows, set, add });
            first += rows;
        }
        let waiting_tokens = waits.then(|| waiting_tokens(n, op.max_tokens));
        let unpacked_bytes = match unpacking {
            Unpacking::None => 0,
            _ => u64::from(piece_rows) * u64::from(k) * act_bytes,
        };
        let product_at = unpacked_bytes.next_multiple_of(ALIGN);
        let product_bytes = waiting_tokens.map_or(0, |tokens| u64::from(tokens) * u64::from(n) * 4);
        let products = pieces.iter().flat_map(|p| [Some(&p.set), p.add.as_ref()]).flatten();
        Ok(Some(Library {
            finish: Finish::prepare(cx, op)?,
            n,
            k,
            act_bytes,
            out_bytes: op.out.bytes() as u64,
            waiting_tokens,
            product_at,
            workspace_at: (product_at + product_bytes).next_multiple_of(ALIGN),
            workspace_bytes: products.map(|p| p.workspace_bytes()).max().unwrap_or(0),
            pieces,
            unpacking,
        }))
    }

    pub(super) fn scratch_bytes(&self) -> u64 {
        self.workspace_at + self.workspace_bytes
    }

    pub(super) fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let Some(pass) = self.waiting_tokens else {
            let add = !call.bias.is_none() || !call.residual.is_none();
            if !call.bias.is_none() || (add && !call.in_place()) {
                let none = Arg::Ptr(0);
                self.finish
                    .encode(encoding, none, call.bias.ptr, &call.residual, &call.out);
            }
            self.products(encoding, call, 0, call.tokens, Some(add));
            return;
        };
        let mut first = 0;
        while first < call.tokens {
            let count = pass.min(call.tokens - first);
            self.products(encoding, call, first, count, None);
            let (residual, out) = (rows(&call.residual, first, count), rows(&call.out, first, count));
            let product = Arg::Scratch(self.product_at);
            self.finish.encode(encoding, product, call.bias.ptr, &residual, &out);
            first += count;
        }
    }

    /// The product of some tokens: into the output, or (`add` absent) into scratch.
    fn products(&self, encoding: &mut Encoding, call: &Call, first: u32, tokens: u32, add: Option<bool>) {
        let x = rows(&call.x, first, tokens);
        for piece in &self.pieces {
            let (out, out_stride) = match add {
                Some(_) => {
                    let column = u64::from(piece.first) * self.out_bytes;
                    (rows(&call.out, first, tokens).ptr + column, call.out.row_stride())
                }
                None => (self.product_at + u64::from(piece.first) * 4, self.n),
            };
            let product = match (&piece.add, add) {
                (Some(product), Some(true)) => product,
                _ => &piece.set,
            };
            let mut one = ProductCall {
                tokens,
                x: x.ptr,
                x_stride: x.row_stride(),
                weight: call.weight.ptr + u64::from(piece.first) * u64::from(self.k) * self.act_bytes,
                out,
                out_stride,
                scale: 0,
            };
            let in_scratch = add.is_none();
            if self.unpack(encoding, call.weight.ptr, piece) {
                one.weight = 0;
                encoding.product_unpacked(product, one, in_scratch, self.workspace_at);
            } else {
                encoding.product_in_scratch(product, one, false, in_scratch, self.workspace_at);
            }
        }
    }

    /// Unpacks a piece to the start of scratch, unless the library reads the weight as it is.
    fn unpack(&self, encoding: &mut Encoding, weight: DevicePtr, piece: &Piece) -> bool {
        let to = Arg::Scratch(0);
        match &self.unpacking {
            Unpacking::None => return false,
            Unpacking::Widen(function, bytes) => {
                let k = u64::from(self.k);
                let from = weight + u64::from(piece.first) * k * bytes;
                encode_convert(encoding, *function, from, to, u64::from(piece.rows) * k);
            }
            Unpacking::Planes(unpack) => unpack.encode(encoding, weight, to, piece.first, piece.rows),
            Unpacking::Scaled(unpack) => unpack.encode(encoding, weight, to, piece.first, piece.rows),
        }
        true
    }
}

/// Rows unpacked at a time: as few equal pieces as scratch allows, at multiples of 64.
fn piece_rows(n: u32, row_bytes: u64) -> u32 {
    let most = (SCRATCH_BYTES / row_bytes.max(1) / 64 * 64).max(64);
    let pieces = u64::from(n).div_ceil(most);
    u64::from(n).div_ceil(pieces).next_multiple_of(64).min(most) as u32
}

/// Tokens whose products wait in scratch at a time.
fn waiting_tokens(n: u32, max_tokens: u32) -> u32 {
    (SCRATCH_BYTES / (u64::from(n) * 4)).clamp(1, u64::from(max_tokens.max(1))) as u32
}

/// Rows `first .. first + count` of an operand; the absent one stays absent.
fn rows(view: &View, first: u32, count: u32) -> View {
    if view.is_none() {
        return *view;
    }
    let mut part = *view;
    part.shape[0] = count;
    part.ptr += u64::from(first) * u64::from(view.row_stride()) * view.dtype.bytes() as u64;
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_scratch_and_cover_the_matrix() {
        for (n, row_bytes) in [(128_256, 8192u64), (33, 640), (4096, 28_672), (28_672, 8192)] {
            let rows = piece_rows(n, row_bytes);
            assert!(u64::from(rows) * row_bytes <= SCRATCH_BYTES, "{n} rows of {row_bytes}");
            assert!(rows >= n.min(64) && rows.is_multiple_of(64));
        }
        assert_eq!(piece_rows(4096, 28_672), 2048);
    }

    #[test]
    fn a_row_too_wide_for_scratch_still_makes_progress() {
        assert_eq!(waiting_tokens(u32::MAX, 512), 1);
        assert_eq!(waiting_tokens(1024, 512), 512);
        assert_eq!(piece_rows(100, 1 << 30), 64);
    }
}
