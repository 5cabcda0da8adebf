//! `linear`: a list of paths, each for a range of tokens ([`choose`]). Small batches run on own kernels that stream the
//! weight once, larger ones on the driver's product, or on tiles where there is none. All paths read one weight in one
//! layout.

mod call;
mod choose;
mod dense_small_batch;
mod dense_tiles;
mod dots;
mod fusion;
mod groups_small_batch;
mod groups_tiles;
mod layout;
mod plain;
mod product;
mod quantized;
mod round_groups;
mod round_tokens;
mod scaled;
mod scaled_small_batch;
mod scaled_tiles;
mod small_batch;
mod tiles;

use std::ops::RangeInclusive;
use std::sync::Arc;

use halyard_kernels_gpu::{LINEAR_SCALED, Source};
use halyard_platform_api::{DType, Error, OpSpec, Result, Status, WeightFormat, log, ops};

use self::call::{Call, LayoutKernels, Path};
use self::choose::{PathName, Request, choose};
use self::dots::Dots;
use self::groups_tiles::GroupsTiles;
use self::plain::Plain;
use self::product::LibraryProduct;
use self::quantized::Quantized;
use self::scaled::Scaled;
use self::scaled_tiles::ScaledTiles;
use self::tiles::Tiles;
use crate::driver::{DevicePtr, Facts};
use crate::encoding::Encoding;
use crate::kernel::{Kernel, Packer, Preparation, RowSource, boxed};
use crate::ops::formats::{IN_BLOCKS, in_blocks};
use crate::policy::Policy;
use crate::view::View;

pub(super) use self::call::rows_aligned;
pub(super) use self::dense_tiles::DenseTiles;
pub(super) use self::fusion::{Fusion, SmallBatchCall};
pub(super) use self::groups_tiles::{HOPPER_ROWS, HOPPER_THREADS, hopper_ring_bytes, hopper_tokens};
pub(super) use self::layout::{
    GROUP, RECORD_ROWS, WeightLayout, has_bytes, has_minima, has_operands, plane_bytes, run_values, scales_at,
};
pub(super) use self::quantized::Pack;
pub(super) use self::small_batch::SmallBatch;

/// Bytes of canonical weights that a packing kernel takes at a time.
const PACK_BYTES: u64 = 16 << 20;
/// Inputs that the kernels of formats in blocks take at a time.
const CHUNK: u32 = 32;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    match spec {
        OpSpec::Linear(op) => Some(boxed(Linear::new(op))),
        _ => None,
    }
}

/// A linear.
pub(super) struct Linear {
    op: ops::Linear,
    layout: WeightLayout,
    small_batches_are_fused: bool,
    prepared: Option<Prepared>,
}

/// The compiled kernels.
struct Prepared {
    /// The better first; the last takes every call.
    paths: Vec<(RangeInclusive<u32>, Arc<dyn Path>)>,
    kernels: Arc<dyn LayoutKernels>,
}

impl Linear {
    pub(super) fn new(op: &ops::Linear) -> Result<Linear> {
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
        if !reads(op.weight) {
            return Err(Error::unsupported(format!(
                "linear: rows of {} are not read here; F32, F16, BF16, F8_E4M3, F8_B128, {IN_BLOCKS} are",
                op.weight.name()
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
        if op.weight.is_canonical() && !op.in_features.is_multiple_of(CHUNK) {
            return Err(Error::unsupported(format!(
                "linear: {} inputs of {} are no multiple of {CHUNK}; hold the weight in BF16, F16 or F32",
                op.in_features,
                op.weight.name()
            )));
        }
        Ok(Linear {
            op: op.clone(),
            layout: WeightLayout::of(op),
            small_batches_are_fused: false,
            prepared: None,
        })
    }

    /// One whose small batches a composite takes over: they still run, but not fast.
    pub(super) fn of_a_composite(op: &ops::Linear) -> Result<Linear> {
        Ok(Linear {
            small_batches_are_fused: true,
            ..Linear::new(op)?
        })
    }

    fn request(&self) -> Request<'_> {
        Request {
            op: &self.op,
            layout: self.layout,
            small_batches_are_fused: self.small_batches_are_fused,
        }
    }

    fn prepared(&self) -> Result<&Prepared> {
        self.prepared
            .as_ref()
            .ok_or_else(|| Error::invalid("linear is used before it was prepared"))
    }

    /// Compiles one path. That of the layout is there already.
    fn path(&self, cx: &Preparation<'_>, name: PathName) -> Result<Option<Arc<dyn Path>>> {
        let (op, layout) = (&self.op, self.layout);
        Ok(Some(match name {
            PathName::SmallBatch => Arc::new(SmallBatch::prepare(cx, op, layout, &Fusion::NONE)?),
            PathName::DenseTiles => match DenseTiles::prepare(cx, op, layout, &Fusion::NONE)? {
                Some(tiles) => Arc::new(tiles),
                None => return Err(Error::invalid("dense tiles of a matrix that they do not take")),
            },
            PathName::ScaledTiles => Arc::new(ScaledTiles::prepare(cx, op)?),
            PathName::GroupsTiles => match layout {
                WeightLayout::Planes(format) => Arc::new(GroupsTiles::prepare(cx, op, format)?),
                _ => return Err(Error::invalid("tiles of groups over a weight without groups")),
            },
            PathName::EightBitProduct => Arc::new(LibraryProduct::prepare(cx, op, layout, true)?),
            PathName::Product => Arc::new(LibraryProduct::prepare(cx, op, layout, false)?),
            PathName::MatrixTiles => Arc::new(Tiles::prepare(cx, op, layout, true)?),
            PathName::Tiles => Arc::new(Tiles::prepare(cx, op, layout, false)?),
            PathName::IntegerDots => Arc::new(Dots::prepare(cx, op)?),
            PathName::Layout => return Ok(None),
        }))
    }

    fn layout_kernels(&self, cx: &Preparation<'_>) -> Result<Arc<dyn LayoutKernels>> {
        Ok(match self.layout {
            WeightLayout::Plain(weight) => Arc::new(Plain::prepare(cx, &self.op, weight)?),
            WeightLayout::Planes(format) => Arc::new(Quantized::prepare(cx, &self.op, format)?),
            WeightLayout::Scaled => Arc::new(Scaled::prepare(cx, &self.op)?),
        })
    }
}

impl Kernel for Linear {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let kernels = self.layout_kernels(cx)?;
        let mut ready: Vec<(PathName, Arc<dyn Path>)> = vec![(PathName::Layout, kernels.clone())];
        let (mut missing, mut reasons) = (Vec::new(), String::new());
        // What turns out to be missing is chosen without.
        let choices = loop {
            let choices = choose(self.request(), cx.facts(), cx.policy(), &missing);
            let is_ready = |name: PathName| ready.iter().any(|(known, _)| *known == name);
            let Some(next) = choices.iter().map(|choice| choice.path).find(|&name| !is_ready(name)) else {
                break choices;
            };
            match self.path(cx, next) {
                Ok(path) => ready.extend(path.map(|path| (next, path))),
                Err(why) if next.may_be_missing() && why.status == Status::Unsupported => {
                    reasons += &format!("; no {next} ({})", why.message);
                    missing.push(next);
                }
                Err(why) => return Err(why),
            }
        };
        let described = choose::describe(&choices) + &reasons;
        let (op, device) = (&self.op, &cx.facts().name);
        let (n, k, weight, act) = (op.out_features, op.in_features, op.weight, op.act);
        log::debug(
            "gpu",
            &format!("{device}: linear {n} x {k}, {weight:?} by {act:?}: {described}"),
        );
        let path = |name| {
            ready
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, path)| path.clone())
        };
        let paths = choices
            .into_iter()
            .filter_map(|choice| Some((choice.tokens, path(choice.path)?)));
        self.prepared = Some(Prepared {
            paths: paths.collect(),
            kernels,
        });
        Ok(())
    }

    fn implementation(&self, facts: &Facts, policy: &Policy) -> String {
        choose::describe(&choose(self.request(), facts, policy, &[]))
    }

    fn needs(&self) -> Option<Source> {
        (self.layout == WeightLayout::Scaled).then_some(LINEAR_SCALED)
    }

    fn scratch_bytes(&self) -> u64 {
        let paths = self.prepared.iter().flat_map(|prepared| &prepared.paths);
        paths.map(|(_, path)| path.scratch_bytes()).max().unwrap_or(0)
    }

    /// Depends on shapes, strides and addresses only.
    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let (call, prepared) = (Call::of(operands)?, self.prepared()?);
        if call.tokens == 0 {
            return Ok(());
        }
        let mut paths = prepared.paths.iter();
        match paths.find(|(tokens, path)| tokens.contains(&call.tokens) && path.takes(&call)) {
            Some((_, path)) => path.encode(encoding, &call),
            None => return Err(Error::invalid("linear was prepared without a path for all calls")),
        }
        Ok(())
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        if node != 0 {
            return Err(Error::invalid(format!("node {node} of a single linear has no weight")));
        }
        let (n, k) = (u64::from(self.op.out_features), u64::from(self.op.in_features));
        Ok(self.layout.bytes(n, k))
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
        let (op, prepared) = (&self.op, self.prepared()?);
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
        if is_stored_so(op.weight, self.layout) {
            let to = dst + u64::from(first_row) * row_bytes;
            return packer.copy(to, bytes, source, 0, bytes, bytes, 1);
        }
        pack_in_pieces(packer, source, row_bytes, num_rows, |encoding, from, done, count| {
            prepared.kernels.pack(encoding, from, dst, first_row + done, count);
        })
    }
}

/// Packs rows in pieces of whole ones that fit the packer's staging memory. `pack` appends what packs rows that lie on
/// the device: where, after how many others, and how many.
///
/// # Errors
/// Errors of the packer.
pub(super) fn pack_in_pieces(
    packer: &dyn Packer,
    source: RowSource<'_>,
    row_bytes: u64,
    num_rows: u32,
    pack: impl Fn(&mut Encoding, DevicePtr, u32, u32),
) -> Result<()> {
    let piece = (PACK_BYTES / row_bytes.max(1)).clamp(1, u64::from(u32::MAX)) as u32;
    let mut done = 0;
    while done < num_rows {
        let count = piece.min(num_rows - done);
        let from = packer.on_device(source, u64::from(done) * row_bytes, u64::from(count) * row_bytes)?;
        let mut encoding = Encoding::default();
        pack(&mut encoding, from, done, count);
        packer.run(&encoding)?;
        done += count;
    }
    Ok(())
}

/// Whether the kernels read rows of a format.
fn reads(format: WeightFormat) -> bool {
    format.is_plain() || matches!(format, WeightFormat::F8E4M3 | WeightFormat::F8B128) || in_blocks(format)
}

/// Whether the file's bytes are the layout's.
fn is_stored_so(format: WeightFormat, layout: WeightLayout) -> bool {
    matches!(
        (format, layout),
        (WeightFormat::F32, WeightLayout::Plain(DType::F32))
            | (WeightFormat::F16, WeightLayout::Plain(DType::F16))
            | (WeightFormat::BF16, WeightLayout::Plain(DType::BF16))
    )
}

#[cfg(test)]
#[path = "linear/tests.rs"]
mod tests;
