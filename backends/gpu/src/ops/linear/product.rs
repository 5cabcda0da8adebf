//! Many tokens: the vendor's library product. Bias and residual go into the output first and the product is added; an
//! activation needs the whole product in f32 scratch. Weights of another type or format are unpacked in scratch, some
//! rows at a time. Where the library takes multiples of some tokens alone, the last ones are multiplied in scratch,
//! with what stands behind them there.

use std::sync::Arc;

use halyard_platform_api::ops::{self, Epilogue};
use halyard_platform_api::{DType, Result};

use super::call::{Call, Path, rows_aligned};
use super::layout::{WeightLayout, scales_at};
use super::plain::{Finish, convert_function, encode_convert};
use super::quantized::Unpack;
use super::round_groups::{self, RoundGroups, UnpackCodes};
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
    rounding: Option<Rounding>,
    /// What the library's tokens are a multiple of.
    token_step: u32,
    rest: Rest,
    finish: Finish,
    n: u32,
    k: u32,
    act_bytes: u64,
    out_bytes: u64,
    /// Whether products wait in scratch for their activation.
    waits: bool,
    /// Most tokens whose products, or rounded values, lie in scratch together.
    pass_tokens: u32,
    /// Scales of unpacked codes.
    weight_scales_at: u64,
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
    /// Of the tokens that are no whole step, into scratch; absent where a step is one token.
    rest: Option<Arc<dyn Product>>,
}

/// How rows become what the library takes.
enum Unpacking {
    None,
    Widen(Function, u64),
    Planes(Unpack),
    Scaled(UnpackScaled),
    /// Codes and scales apart.
    Codes(UnpackCodes),
}

/// How tokens become 8-bit floats: with a scale each, or one for each of their groups.
enum Rounding {
    Tokens(RoundTokens),
    Groups(RoundGroups),
}

/// Where the tokens that are no whole step lie in scratch, as one: their codes, scales and products.
struct Rest {
    codes_at: u64,
    scales_at: u64,
    product_at: u64,
}

impl LibraryProduct {
    /// Prepares the driver's product; where `eight_bit` says so, of tokens that are rounded to 8 bits, and of the
    /// weights' own codes.
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
            WeightLayout::Planes(_) if eight_bit => {
                let rounding = Rounding::Groups(RoundGroups::prepare(cx, op)?);
                (Unpacking::Codes(UnpackCodes::prepare(cx, op)?), Some(rounding))
            }
            _ if eight_bit => {
                let rounding = Rounding::Tokens(RoundTokens::prepare(cx, op, layout, false)?);
                (Unpacking::None, Some(rounding))
            }
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
        rounding: Option<Rounding>,
    ) -> Result<LibraryProduct> {
        let act_bytes = op.act.bytes() as u64;
        let (n, k) = (op.out_features, op.in_features);
        let input = if rounding.is_some() { DType::F8E4M3 } else { op.act };
        let unpacked_row = match unpacking {
            Unpacking::None => 0,
            Unpacking::Codes(_) => u64::from(k),
            _ => u64::from(k) * act_bytes,
        };
        let piece_rows = match unpacking {
            Unpacking::None => n,
            _ => piece_rows(n, unpacked_row),
        };
        let waits = op.epilogue != Epilogue::None;
        let spec = |rows: u32, out: DType, accumulate: bool, max_tokens: u32| ProductSpec {
            in_features: k,
            out_features: rows,
            act: input,
            weight: input,
            out,
            accumulate,
            max_tokens,
            scale_depth: match rounding {
                Some(Rounding::Groups(_)) => round_groups::DEPTH,
                _ => 0,
            },
            weight_blocks: matches!(rounding, Some(Rounding::Groups(_))) && round_groups::has_blocks(op),
        };
        let token_step = spec(n, DType::F32, false, 1).token_step();
        let max_tokens = op.max_tokens.next_multiple_of(token_step);
        let product = |rows, accumulate| {
            let out = if waits { DType::F32 } else { op.out };
            cx.driver.product(&spec(rows, out, accumulate, max_tokens))
        };
        let rest = |rows| match token_step {
            1 => Ok(None),
            step => cx.driver.product(&spec(rows, DType::F32, false, step)).map(Some),
        };
        let mut pieces: Vec<Piece> = Vec::new();
        let mut first = 0;
        while first < n {
            let rows = piece_rows.min(n - first);
            let same = pieces.iter().find(|p| p.rows == rows);
            let (set, add, rest) = match same {
                Some(piece) => (piece.set.clone(), piece.add.clone(), piece.rest.clone()),
                None if waits => (product(rows, false)?, None, rest(rows)?),
                None => (product(rows, false)?, Some(product(rows, true)?), rest(rows)?),
            };
            pieces.push(Piece {
                first,
                rows,
                set,
                add,
                rest,
            });
            first += rows;
        }
        let (code_bytes, scale_bytes) = match &rounding {
            None => (0, 0),
            Some(Rounding::Tokens(_)) => (u64::from(k), 4),
            Some(Rounding::Groups(_)) => (u64::from(k), round_groups::scale_bytes(k)),
        };
        let token_bytes = (code_bytes + scale_bytes).max(if waits { 4 * u64::from(n) } else { 0 });
        let pass_tokens = match token_bytes {
            0 => op.max_tokens,
            bytes => pass_tokens(bytes, op.max_tokens),
        };
        let pass_tokens = pass_tokens.next_multiple_of(token_step);
        let weight_scales_at = (u64::from(piece_rows) * unpacked_row).next_multiple_of(ALIGN);
        let unpacked_scales = match unpacking {
            Unpacking::Codes(_) => u64::from(piece_rows) * round_groups::scale_bytes(k),
            _ => 0,
        };
        let product_at = (weight_scales_at + unpacked_scales).next_multiple_of(ALIGN);
        let product_bytes = if waits {
            u64::from(pass_tokens) * u64::from(n) * 4
        } else {
            0
        };
        let codes_at = (product_at + product_bytes).next_multiple_of(ALIGN);
        let scales_at = (codes_at + u64::from(pass_tokens) * code_bytes).next_multiple_of(ALIGN);
        let mut end = scales_at + u64::from(pass_tokens) * scale_bytes;
        let mut of_rest = |token_bytes: u64| {
            let at = end.next_multiple_of(ALIGN);
            if token_step > 1 {
                end = at + u64::from(token_step) * token_bytes;
            }
            at
        };
        let rest = Rest {
            codes_at: of_rest(code_bytes),
            scales_at: of_rest(scale_bytes),
            product_at: of_rest(4 * u64::from(n)),
        };
        let all = |p: &Piece| [Some(p.set.clone()), p.add.clone(), p.rest.clone()];
        let products = pieces.iter().flat_map(all).flatten();
        Ok(LibraryProduct {
            finish: Finish::prepare(cx, op)?,
            n,
            k,
            act_bytes,
            out_bytes: op.out.bytes() as u64,
            waits,
            token_step,
            rest,
            pass_tokens,
            weight_scales_at,
            product_at,
            codes_at,
            scales_at,
            workspace_at: end.next_multiple_of(ALIGN),
            workspace_bytes: products.map(|p| p.workspace_bytes()).max().unwrap_or(0),
            pieces,
            unpacking,
            rounding,
        })
    }

    /// Rounds tokens to these offsets in scratch, where the product takes them so. Where x lies then, and its stride.
    fn round(&self, encoding: &mut Encoding, x: &View, codes_at: u64, scales_at: u64) -> (u64, u32) {
        let Some(rounding) = &self.rounding else {
            return (x.ptr, x.row_stride());
        };
        let columns = x.len().next_multiple_of(self.token_step);
        match rounding {
            _ if x.is_empty() => {}
            Rounding::Tokens(rounding) => rounding.encode(encoding, x, None, codes_at, scales_at),
            Rounding::Groups(rounding) => rounding.encode(encoding, x, codes_at, scales_at, columns),
        }
        (codes_at, self.k)
    }

    /// The products of one pass: into the output, or into scratch where they wait; those of the last tokens, where they
    /// are no whole step, into scratch.
    fn products(&self, encoding: &mut Encoding, call: &Call, rest: Option<&Call>, add: bool) {
        let (n, k) = (u64::from(self.n), u64::from(self.k));
        let weight = call.weight.ptr;
        let (x, x_stride) = self.round(encoding, &call.x, self.codes_at, self.scales_at);
        let rest = rest.map(|rest| self.round(encoding, &rest.x, self.rest.codes_at, self.rest.scales_at));
        for piece in &self.pieces {
            let (out, out_stride) = match self.waits {
                false => (
                    call.out.ptr + u64::from(piece.first) * self.out_bytes,
                    call.out.row_stride(),
                ),
                true => (self.product_at + u64::from(piece.first) * 4, self.n),
            };
            let product = match &piece.add {
                Some(product) if add => product,
                _ => &piece.set,
            };
            let unpacked = self.unpack(encoding, weight, piece);
            let of_pass = ProductCall {
                tokens: call.tokens,
                x,
                x_stride,
                weight: match (unpacked, &self.rounding) {
                    (true, _) => 0,
                    (false, None) => weight + u64::from(piece.first) * k * self.act_bytes,
                    (false, Some(_)) => weight,
                },
                out,
                out_stride,
                x_scales: self.scales_at,
                weight_scales: match self.unpacking {
                    Unpacking::Codes(_) => self.weight_scales_at,
                    _ => weight + scales_at(n, k),
                },
            };
            let in_scratch = InScratch {
                x: self.rounding.is_some(),
                weight: unpacked,
                weight_scales: matches!(self.unpacking, Unpacking::Codes(_)),
                out: self.waits,
            };
            encoding.product(product, of_pass, in_scratch, self.workspace_at);
            if let (Some((x, x_stride)), Some(product)) = (rest, &piece.rest) {
                let of_rest = ProductCall {
                    tokens: self.token_step,
                    x,
                    x_stride,
                    x_scales: self.rest.scales_at,
                    out: self.rest.product_at + u64::from(piece.first) * 4,
                    out_stride: self.n,
                    ..of_pass
                };
                let in_scratch = InScratch {
                    out: true,
                    ..in_scratch
                };
                encoding.product(product, of_rest, in_scratch, self.workspace_at);
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
            Unpacking::Codes(unpack) => {
                let scales = Arg::Scratch(self.weight_scales_at);
                unpack.encode(encoding, weight, to, scales, piece.first, piece.rows);
            }
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
        let whole = call.tokens / self.token_step * self.token_step;
        if !self.waits && add && whole > 0 && (!call.bias.is_none() || !call.in_place()) {
            let (none, first) = (Arg::Ptr(0), call.rows(0, whole));
            self.finish
                .encode(encoding, none, call.bias.ptr, &first.residual, &first.out);
        }
        let mut first = 0;
        loop {
            let count = self.pass_tokens.min(whole - first);
            let part = call.rows(first, count);
            first += count;
            let rest = (first == whole && whole < call.tokens).then(|| call.rows(whole, call.tokens - whole));
            self.products(encoding, &part, rest.as_ref(), add);
            let waiting = [
                (self.waits && count > 0).then_some((&part, self.product_at)),
                rest.as_ref().map(|rest| (rest, self.rest.product_at)),
            ];
            for (part, at) in waiting.into_iter().flatten() {
                let bias = call.bias.ptr;
                self.finish
                    .encode(encoding, Arg::Scratch(at), bias, &part.residual, &part.out);
            }
            if first == whole {
                return;
            }
        }
    }
}

/// Rows unpacked at a time: as few equal pieces as scratch allows, at multiples of 128.
fn piece_rows(n: u32, row_bytes: u64) -> u32 {
    let most = (SCRATCH_BYTES / row_bytes.max(1) / 128 * 128).max(128);
    let pieces = u64::from(n).div_ceil(most);
    u64::from(n).div_ceil(pieces).next_multiple_of(128).min(most) as u32
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
            assert!(rows >= n.min(128) && rows.is_multiple_of(128));
        }
        assert_eq!(piece_rows(4096, 28_672), 2048);
    }

    #[test]
    fn a_row_too_wide_for_scratch_still_makes_progress() {
        assert_eq!(pass_tokens(4 * u64::from(u32::MAX), 512), 1);
        assert_eq!(pass_tokens(4 * 1024, 512), 512);
        assert_eq!(piece_rows(100, 1 << 30), 128);
    }
}
