//! Many tokens: the vendor's library product. Bias and residual go into the output first and the product is added; an
//! activation needs the whole product in f32 scratch. Weights of another type or format are unpacked in scratch, some
//! rows at a time.

use std::sync::Arc;

use halyard_platform_api::ops::{self, Epilogue};
use halyard_platform_api::{DType, Result};

use super::call::{Call, Path, rows, rows_aligned};
use super::layout::{WeightLayout, scales_at};
use super::plain::{Finish, convert_function, encode_convert};
use super::quantized::Unpack;
use super::round_tokens::RoundTokens;
use super::scaled::UnpackScaled;
use crate::driver::{DevicePtr, Function, Product, ProductCall, ProductSpec};
use crate::encoding::{Arg, Encoding, InScratch};
use crate::kernel::Preparation;
use crate::view::View;

/// Most scratch for unpacked weights, and for products that wait for their activation.
const SCRATCH_BYTES: u64 = 64 << 20;
const ALIGN: u64 = 256;

/// Prepared products of one matrix.
pub(super) struct LibraryProduct {
    pieces: Vec<Piece>,
    unpacking: Unpacking,
    /// Of 8-bit products.
    rounding: Option<RoundTokens>,
    finish: Finish,
    n: u32,
    k: u32,
    act_bytes: u64,
    out_bytes: u64,
    /// Whether products wait in scratch for their activation.
    waits: bool,
    /// Most tokens whose products, or rounded values, lie in scratch together.
    pass_tokens: u32,
    product_at: u64,
    codes_at: u64,
    scales_at: u64,
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

impl LibraryProduct {
    /// Prepares the driver's product, of tokens rounded to 8 bits where `eight_bit` says so: then weights are
    /// multiplied as they lie.
    ///
    /// # Errors
    /// `Unsupported` where the driver multiplies no such matrices; `Unavailable` where its library is missing: that is
    /// an error, not a silent fallback at a tenth of the speed.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        layout: WeightLayout,
        eight_bit: bool,
    ) -> Result<LibraryProduct> {
        let (unpacking, rounding) = match layout {
            _ if eight_bit => (Unpacking::None, Some(RoundTokens::prepare(cx, op, layout, false)?)),
            WeightLayout::Plain(dtype) if dtype == op.act => (Unpacking::None, None),
            WeightLayout::Plain(dtype) => {
                let widen = convert_function(cx, dtype, op.act)?;
                (Unpacking::Widen(widen, dtype.bytes() as u64), None)
            }
            WeightLayout::Planes(format) => (Unpacking::Planes(Unpack::prepare(cx, op, format)?), None),
            WeightLayout::Scaled => (Unpacking::Scaled(UnpackScaled::prepare(cx, op)?), None),
        };
        LibraryProduct::of(cx, op, unpacking, rounding)
    }

    fn of(
        cx: &Preparation<'_>,
        op: &ops::Linear,
        unpacking: Unpacking,
        rounding: Option<RoundTokens>,
    ) -> Result<LibraryProduct> {
        let act_bytes = op.act.bytes() as u64;
        let (n, k) = (op.out_features, op.in_features);
        let input = if rounding.is_some() { DType::F8E4M3 } else { op.act };
        let piece_rows = match unpacking {
            Unpacking::None => n,
            _ => piece_rows(n, u64::from(k) * act_bytes),
        };
        let waits = op.epilogue != Epilogue::None;
        let product = |rows, accumulate| {
            cx.driver.product(&ProductSpec {
                in_features: k,
                out_features: rows,
                act: input,
                weight: input,
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
        let round_bytes = rounding.as_ref().map_or(0, RoundTokens::token_bytes);
        let token_bytes = round_bytes.max(if waits { 4 * u64::from(n) } else { 0 });
        let pass_tokens = match token_bytes {
            0 => op.max_tokens,
            bytes => pass_tokens(bytes, op.max_tokens),
        };
        let unpacked_bytes = match unpacking {
            Unpacking::None => 0,
            _ => u64::from(piece_rows) * u64::from(k) * act_bytes,
        };
        let product_at = unpacked_bytes.next_multiple_of(ALIGN);
        let product_bytes = if waits {
            u64::from(pass_tokens) * u64::from(n) * 4
        } else {
            0
        };
        let codes_at = (product_at + product_bytes).next_multiple_of(ALIGN);
        let scales_at = (codes_at + u64::from(pass_tokens) * round_bytes.saturating_sub(4)).next_multiple_of(ALIGN);
        let scales_end = scales_at
            + if rounding.is_some() {
                4 * u64::from(pass_tokens)
            } else {
                0
            };
        let products = pieces.iter().flat_map(|p| [Some(&p.set), p.add.as_ref()]).flatten();
        Ok(LibraryProduct {
            finish: Finish::prepare(cx, op)?,
            n,
            k,
            act_bytes,
            out_bytes: op.out.bytes() as u64,
            waits,
            pass_tokens,
            product_at,
            codes_at,
            scales_at,
            workspace_at: scales_end.next_multiple_of(ALIGN),
            workspace_bytes: products.map(|p| p.workspace_bytes()).max().unwrap_or(0),
            pieces,
            unpacking,
            rounding,
        })
    }

    /// The product of one pass: into the output, or into scratch where it waits.
    fn products(&self, encoding: &mut Encoding, weight: DevicePtr, x: &View, out: &View, add: bool) {
        let (n, k) = (u64::from(self.n), u64::from(self.k));
        let (x_at, x_stride) = match &self.rounding {
            None => (x.ptr, x.row_stride()),
            Some(rounding) => {
                rounding.encode(encoding, x, None, self.codes_at, self.scales_at);
                (self.codes_at, self.k)
            }
        };
        for piece in &self.pieces {
            let (to, out_stride) = match self.waits {
                false => (out.ptr + u64::from(piece.first) * self.out_bytes, out.row_stride()),
                true => (self.product_at + u64::from(piece.first) * 4, self.n),
            };
            let product = match &piece.add {
                Some(product) if add => product,
                _ => &piece.set,
            };
            let unpacked = self.unpack(encoding, weight, piece);
            let call = ProductCall {
                tokens: x.len(),
                x: x_at,
                x_stride,
                weight: match (unpacked, &self.rounding) {
                    (true, _) => 0,
                    (false, None) => weight + u64::from(piece.first) * k * self.act_bytes,
                    (false, Some(_)) => weight,
                },
                out: to,
                out_stride,
                x_scales: self.scales_at,
                weight_scales: weight + scales_at(n, k),
            };
            let in_scratch = InScratch {
                x: self.rounding.is_some(),
                weight: unpacked,
                out: self.waits,
            };
            encoding.product(product, call, in_scratch, self.workspace_at);
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

impl Path for LibraryProduct {
    fn takes(&self, call: &Call) -> bool {
        rows_aligned(&call.x, 16) && rows_aligned(&call.out, 16)
    }

    fn scratch_bytes(&self) -> u64 {
        self.workspace_at + self.workspace_bytes
    }

    fn encode(&self, encoding: &mut Encoding, call: &Call) {
        let add = !call.bias.is_none() || !call.residual.is_none();
        if !self.waits && add && (!call.bias.is_none() || !call.in_place()) {
            let none = Arg::Ptr(0);
            self.finish
                .encode(encoding, none, call.bias.ptr, &call.residual, &call.out);
        }
        let mut first = 0;
        while first < call.tokens {
            let count = self.pass_tokens.min(call.tokens - first);
            let x = rows(&call.x, first, count);
            let (residual, out) = (rows(&call.residual, first, count), rows(&call.out, first, count));
            self.products(encoding, call.weight.ptr, &x, &out, add);
            if self.waits {
                let product = Arg::Scratch(self.product_at);
                self.finish.encode(encoding, product, call.bias.ptr, &residual, &out);
            }
            first += count;
        }
    }
}

/// Rows unpacked at a time: as few equal pieces as scratch allows, at multiples of 64.
fn piece_rows(n: u32, row_bytes: u64) -> u32 {
    let most = (SCRATCH_BYTES / row_bytes.max(1) / 64 * 64).max(64);
    let pieces = u64::from(n).div_ceil(most);
    u64::from(n).div_ceil(pieces).next_multiple_of(64).min(most) as u32
}

/// Tokens of so many bytes each that lie in scratch at a time.
fn pass_tokens(token_bytes: u64, max_tokens: u32) -> u32 {
    (SCRATCH_BYTES / token_bytes).clamp(1, u64::from(max_tokens.max(1))) as u32
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
        assert_eq!(pass_tokens(4 * u64::from(u32::MAX), 512), 1);
        assert_eq!(pass_tokens(4 * 1024, 512), 512);
        assert_eq!(piece_rows(100, 1 << 30), 64);
    }
}
