//! `linear`: few tokens run on own kernels that stream the weight once, many on the vendor's library product, or on tiles where there is none.
//! Plain weights stay row-major \[N, K\], so both read the same bytes; GGUF formats are held as planes (see quantized.cuh), 8-bit floats as rows
//! of codes with their scales (see scaled.cuh), and both are unpacked in scratch for the library.

mod dots;
mod eight_bit;
mod library;
mod plain;
mod quantized;
mod scaled;
mod scaled_tile;
mod small;
mod tiled;

use halyard_kernels_gpu::{LINEAR_SCALED, Source};
use halyard_platform_api::ops::{self, Epilogue, GeluKind};
use halyard_platform_api::{DType, Error, OpSpec, Result, Status, WeightFormat};

use super::{boxed, float_name};
use crate::driver::DevicePtr;
use crate::encoding::Encoding;
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::view::View;
use dots::Dots;
use library::{Library, rows};
use plain::Plain;
use quantized::Quantized;
use scaled::{Scaled, scaled_fits};
pub(crate) use scaled::{ScaledSmall, scaled_tokens, scales_at};
use scaled_tile::{ScaledTile, TILE_TOKENS};
use small::fits;
pub(crate) use small::{Fusion, Small, SmallCall};
use tiled::Tiled;

/// Up to this many tokens, f32 activations run on own kernels: beyond it each weight is read once more for every eight tokens.
const PLAIN_TOKENS: u32 = 8;
/// Up to this many tokens, GGUF formats are multiplied as they are: beyond it unpacking pays.
const QUANTIZED_TOKENS: u32 = 32;
/// Bytes of canonical weights that a packing kernel takes at a time.
const PACK_BYTES: u64 = 16 << 20;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    match spec {
        OpSpec::Linear(op) => Some(boxed(Linear::new(op))),
        _ => None,
    }
}

/// How a weight lies in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Row-major values of this type.
    Plain(DType),
    /// Planes of this format.
    Planes(WeightFormat),
    /// Codes of 8-bit floats, and a scale a row.
    Scaled,
}

impl Held {
    /// 16-bit activations meet weights of their own type; f32 ones meet the file's.
    pub(crate) fn of(op: &ops::Linear) -> Held {
        let canonical = match op.weight {
            WeightFormat::F32 => DType::F32,
            WeightFormat::F16 => DType::F16,
            WeightFormat::BF16 => DType::BF16,
            WeightFormat::F8E4M3 => return Held::Scaled,
            format => return Held::Planes(format),
        };
        Held::Plain(if op.act == DType::F32 { canonical } else { op.act })
    }

    /// Whether few tokens run on matrix units, where there are any.
    pub(crate) fn fits(self, op: &ops::Linear) -> bool {
        match self {
            Held::Plain(weight) => fits(op, weight),
            Held::Planes(_) => false,
            Held::Scaled => scaled_fits(op),
        }
    }
}

/// One call, its operands by name.
#[derive(Clone, Copy)]
struct Call {
    x: View,
    weight: View,
    bias: View,
    residual: View,
    out: View,
    tokens: u32,
}

impl Call {
    fn of(operands: &[View]) -> Result<Call> {
        let &[x, weight, bias, residual, out] = operands else {
            return Err(Error::invalid(format!(
                "linear has 5 operands, found {}",
                operands.len()
            )));
        };
        for (name, view) in [("x", x), ("bias", bias), ("residual", residual), ("out", out)] {
            if !view.is_none() && !view.is_inner_contiguous() {
                return Err(Error::unsupported(format!(
                    "linear: neighbours of {name} are {} values apart; make its innermost axis contiguous",
                    view.strides[view.rank as usize - 1]
                )));
            }
        }
        let tokens = out.len();
        Ok(Call {
            x,
            weight,
            bias,
            residual,
            out,
            tokens,
        })
    }

    /// Tokens `first .. first + count`.
    fn rows(&self, first: u32, count: u32) -> Call {
        Call {
            x: rows(&self.x, first, count),
            residual: rows(&self.residual, first, count),
            out: rows(&self.out, first, count),
            tokens: count,
            ..*self
        }
    }

    /// Whether the residual is the output itself.
    fn in_place(&self) -> bool {
        !self.residual.is_none()
            && self.residual.ptr == self.out.ptr
            && (self.tokens == 1 || self.residual.row_stride() == self.out.row_stride())
    }
}

/// Whether rows start at multiples of `bytes`.
pub(crate) fn rows_aligned(view: &View, bytes: u64) -> bool {
    let pitch = u64::from(view.row_stride()) * view.dtype.bytes() as u64;
    view.ptr.is_multiple_of(bytes) && (view.len() <= 1 || pitch.is_multiple_of(bytes))
}

/// The name of an element type in the kernels.
pub(crate) fn type_name(dtype: DType) -> &'static str {
    float_name(dtype).unwrap_or("f32")
}

/// The number of an activation in the kernels.
pub(crate) fn epilogue_code(epilogue: Epilogue) -> &'static str {
    match epilogue {
        Epilogue::None => "0",
        Epilogue::Silu => "1",
        Epilogue::GeluTanh => "2",
        Epilogue::GeluErf => "3",
    }
}

/// The number of a gate's gelu in the kernels.
pub(crate) fn gelu_code(kind: GeluKind) -> &'static str {
    match kind {
        GeluKind::Tanh => "2",
        GeluKind::Erf => "3",
    }
}

/// A linear.
pub(crate) struct Linear {
    op: ops::Linear,
    held: Held,
    /// Few tokens run elsewhere.
    many_only: bool,
    code: Option<Code>,
}

/// What preparing compiled.
struct Code {
    small: Option<Few>,
    plain: Option<Plain>,
    quantized: Option<Quantized>,
    /// In place of `quantized`, over rounded tokens.
    dots: Option<Dots>,
    scaled: Option<Scaled>,
    tile: Option<ScaledTile>,
    library: Option<Library>,
    tiled: Option<Tiled>,
    /// Most tokens for which own kernels beat the library.
    own_tokens: u32,
    name: String,
}

/// Few tokens on matrix units.
enum Few {
    Plain(Small),
    Scaled(ScaledSmall),
}

/// Who computes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Small,
    Library,
    Tiled,
    Dots,
    Quantized,
    Scaled,
    Tile,
    Plain,
}

impl Linear {
    pub(crate) fn new(op: &ops::Linear) -> Result<Linear> {
        for (name, dtype) in [("act", op.act), ("out", op.out)] {
            if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
                return Err(Error::unsupported(format!(
                    "linear: {name} {dtype:?}; F32, F16 and BF16 run here"
                )));
            }
        }
        if op.in_features == 0 || op.out_features == 0 {
            return Err(Error::invalid(format!(
                "linear of {} inputs and {} outputs: both must be at least 1",
                op.in_features, op.out_features
            )));
        }
        if op.weight.row_bytes(op.in_features as usize).is_none() {
            return Err(Error::unsupported(format!(
                "linear: {} inputs are no whole number of {:?} blocks of {} values",
                op.in_features,
                op.weight,
                op.weight.block_values()
            )));
        }
        Ok(Linear {
            op: op.clone(),
            held: Held::of(op),
            many_only: false,
            code: None,
        })
    }

    /// One whose calls of few tokens a composite takes over: they still run, but not fast.
    pub(crate) fn of_many_tokens(op: &ops::Linear) -> Result<Linear> {
        Ok(Linear {
            many_only: true,
            ..Linear::new(op)?
        })
    }

    fn code(&self) -> Result<&Code> {
        self.code
            .as_ref()
            .ok_or_else(|| Error::invalid("linear is used before it was prepared"))
    }

    /// Depends on shapes, strides and addresses only.
    fn route(&self, code: &Code, call: &Call) -> Route {
        let aligned = rows_aligned(&call.x, 16);
        let library = code.library.is_some() && aligned && rows_aligned(&call.out, 16);
        if code.tile.is_some() && aligned && (code.own_tokens + 1..=TILE_TOKENS).contains(&call.tokens) {
            return Route::Tile;
        }
        match &code.small {
            Some(_) if aligned && (call.tokens <= code.own_tokens || !library) => Route::Small,
            _ if library && (call.tokens > code.own_tokens || code.small.is_some()) => Route::Library,
            _ if code.tiled.is_some() && call.tokens > code.own_tokens => Route::Tiled,
            _ if code.dots.is_some() => Route::Dots,
            _ if code.quantized.is_some() => Route::Quantized,
            _ if code.scaled.is_some() => Route::Scaled,
            _ => Route::Plain,
        }
    }
}

impl Kernel for Linear {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let op = &self.op;
        let (mut plain, mut quantized, mut scaled) = (None, None, None);
        match self.held {
            Held::Plain(weight) => plain = Some(Plain::prepare(cx, op, weight)?),
            Held::Planes(format) => quantized = Some(Quantized::prepare(cx, op, format)?),
            Held::Scaled => scaled = Some(Scaled::prepare(cx, op)?),
        }
        let fits = cx.facts().matrix_units && self.held.fits(op);
        let mut own_tokens = match self.held {
            Held::Scaled if fits => scaled_tokens(op),
            _ if fits && self.many_only => 0,
            _ if fits => small::own_tokens(op.out_features, op.in_features),
            Held::Planes(_) if op.act != DType::F32 => QUANTIZED_TOKENS,
            Held::Plain(_) => PLAIN_TOKENS.min(
                cx.driver
                    .product_from(op.in_features, op.out_features)
                    .saturating_sub(1),
            ),
            _ => PLAIN_TOKENS,
        };
        let dots = match dots::format(cx, op, self.held) {
            Some(format) => Some(Dots::prepare(cx, op, format)?),
            None => None,
        };
        let (library, why) = match Library::prepare(cx, op, self.held, own_tokens) {
            Ok(library) => (library, None),
            Err(why) if why.status == Status::Unsupported => (None, Some(why.message)),
            // A missing library or a lost device is told, not worked around at a tenth of the speed.
            Err(why) => return Err(why),
        };
        if library.is_none() && !fits && matches!(self.held, Held::Plain(_)) {
            own_tokens = PLAIN_TOKENS;
        }
        if library.is_some() && dots.is_none() && matches!(self.held, Held::Planes(_)) {
            own_tokens = own_tokens.min(cx.driver.unpack_from().saturating_sub(1));
        }
        let (mut small, mut tile) = (None, None);
        if fits && self.held == Held::Scaled {
            small = Some(Few::Scaled(ScaledSmall::prepare(cx, op, &Fusion::NONE)?));
            if !library.as_ref().is_some_and(Library::is_eight_bit) {
                tile = ScaledTile::prepare(cx, op, own_tokens)?;
            }
        } else if fits && !(self.many_only && library.is_some()) {
            small = Some(Few::Plain(Small::prepare(cx, op, &Fusion::NONE)?));
        }
        if small.is_some() && library.is_none() && tile.is_none() {
            own_tokens = u32::MAX;
        }
        let tiled = match (&small, &library) {
            (None, None) => Tiled::prepare(cx, op, self.held, own_tokens)?,
            _ => None,
        };
        // Rounded tokens need no tiles in f32: four products an instruction make up for weights that are read again for every eight of them.
        let tiled = tiled.filter(|tiled| dots.is_none() || tiled.is_on_matrix_units());
        let own = match (&small, &quantized) {
            (Some(Few::Plain(_)), _) => "small batches: matrix units over plain weights",
            (Some(Few::Scaled(_)), _) => "small batches: matrix units over 8-bit weights",
            (None, Some(_)) if dots.is_some() && library.is_none() && tiled.is_none() => {
                "packed planes, tokens rounded to 8 bits"
            }
            (None, Some(_)) if dots.is_some() => "small batches: packed planes, tokens rounded to 8 bits",
            (None, Some(_)) => "small batches: packed planes",
            (None, None) if self.many_only => "plain kernel where the library cannot",
            (None, None) => "plain kernel",
        };
        let tiles = tiled
            .as_ref()
            .map_or_else(String::new, |tiled| format!("; larger ones: tiles {}", tiled.means()));
        let large = match (&library, why) {
            (Some(library), _) if library.is_eight_bit() => {
                "; larger ones: library product of 8-bit tokens".to_string()
            }
            (Some(_), _) => "; larger ones: library product".to_string(),
            (None, Some(why)) => format!("{tiles}; no library product ({why})"),
            (None, None) => tiles,
        };
        self.code = Some(Code {
            small,
            plain,
            quantized,
            dots,
            scaled,
            tile,
            library,
            tiled,
            own_tokens,
            name: format!("{own}{large}"),
        });
        Ok(())
    }

    fn implementation(&self) -> String {
        self.code
            .as_ref()
            .map_or_else(|| "not prepared".to_string(), |code| code.name.clone())
    }

    fn needs(&self) -> Option<Source> {
        (self.held == Held::Scaled).then_some(LINEAR_SCALED)
    }

    fn scratch_bytes(&self) -> u64 {
        let Some(code) = &self.code else { return 0 };
        let of_library = code.library.as_ref().map_or(0, Library::scratch_bytes);
        let of_tiles = code.tiled.as_ref().map_or(0, Tiled::scratch_bytes);
        let of_dots = code.dots.as_ref().map_or(0, Dots::scratch_bytes);
        of_library
            .max(of_tiles)
            .max(of_dots)
            .max(code.tile.as_ref().map_or(0, ScaledTile::scratch_bytes))
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let (call, code) = (Call::of(operands)?, self.code()?);
        if call.tokens == 0 {
            return Ok(());
        }
        match (self.route(code, &call), code) {
            (Route::Small, Code { small: Some(small), .. }) => {
                let (n, k) = (self.op.out_features, self.op.in_features);
                let few = SmallCall {
                    x: call.x,
                    weight: call.weight.ptr,
                    scale: call.weight.ptr + scales_at(u64::from(n), u64::from(k)),
                    bias: call.bias.ptr,
                    residual: call.residual,
                    out: call.out,
                    ..SmallCall::new(k, n)
                };
                match small {
                    Few::Plain(small) => small.encode(encoding, &few),
                    Few::Scaled(small) => small.encode(encoding, &few),
                }
            }
            (Route::Tile, Code { tile: Some(tile), .. }) => tile.encode(encoding, &call),
            (
                Route::Library,
                Code {
                    library: Some(library), ..
                },
            ) => library.encode(encoding, &call),
            (Route::Tiled, Code { tiled: Some(tiled), .. }) => tiled.encode(encoding, &call),
            (Route::Dots, Code { dots: Some(dots), .. }) => dots.encode(encoding, &call),
            (
                _,
                Code {
                    quantized: Some(quantized),
                    ..
                },
            ) => quantized.encode(encoding, &call),
            (
                _,
                Code {
                    scaled: Some(scaled), ..
                },
            ) => scaled.encode(encoding, &call),
            (_, Code { plain: Some(plain), .. }) => plain.encode(encoding, &call),
            _ => return Err(Error::invalid("linear was prepared without a kernel")),
        }
        Ok(())
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        if node != 0 {
            return Err(Error::invalid(format!("node {node} of a single linear has no weight")));
        }
        let (n, k) = (u64::from(self.op.out_features), u64::from(self.op.in_features));
        Ok(match self.held {
            Held::Plain(dtype) => n * k * dtype.bytes() as u64,
            Held::Planes(format) => quantized::packed_bytes(format, n, k),
            Held::Scaled => scaled::packed_bytes(n, k),
        })
    }

    fn pack_weight(
        &self,
        packer: &dyn Packer,
        node: u32,
        first_row: u32,
        num_rows: u32,
        source: RowSource<'_>,
        dst: DevicePtr,
    ) -> Result<()> {
        self.packed_weight_bytes(node)?;
        let (op, code) = (&self.op, self.code()?);
        let end = u64::from(first_row) + u64::from(num_rows);
        if end > u64::from(op.out_features) {
            return Err(Error::invalid(format!(
                "rows {first_row} to {end} of a weight of {} rows",
                op.out_features
            )));
        }
        let row_bytes = op.weight.row_bytes(op.in_features as usize).unwrap_or(0) as u64;
        let bytes = row_bytes * u64::from(num_rows);
        source.check(num_rows, row_bytes)?;
        match self.held {
            Held::Plain(dtype) if same_bytes(op.weight, dtype) => {
                let to = dst + u64::from(first_row) * row_bytes;
                return packer.copy(to, bytes, source, 0, bytes, bytes, 1);
            }
            _ => {}
        }
        // In pieces of whole rows that fit the packer's staging memory.
        let piece = (PACK_BYTES / row_bytes.max(1)).clamp(1, u64::from(u32::MAX)) as u32;
        let mut done = 0;
        while done < num_rows {
            let count = piece.min(num_rows - done);
            let from = packer.on_device(source, u64::from(done) * row_bytes, u64::from(count) * row_bytes)?;
            let mut encoding = Encoding::default();
            match (&code.quantized, &code.scaled, &code.plain) {
                (Some(quantized), ..) => quantized.pack(&mut encoding, from, dst, first_row + done, count),
                (None, Some(scaled), _) => scaled.pack(&mut encoding, from, dst, first_row + done, count),
                (None, None, Some(plain)) => plain.pack(&mut encoding, from, dst, first_row + done, count),
                (None, None, None) => return Err(Error::invalid("linear was prepared without a kernel")),
            }
            packer.run(&encoding)?;
            done += count;
        }
        Ok(())
    }
}

/// Whether the file's values are already of the type that is held.
fn same_bytes(format: WeightFormat, dtype: DType) -> bool {
    matches!(
        (format, dtype),
        (WeightFormat::F32, DType::F32) | (WeightFormat::F16, DType::F16) | (WeightFormat::BF16, DType::BF16)
    )
}

#[cfg(test)]
#[path = "linear/tests.rs"]
mod tests;
