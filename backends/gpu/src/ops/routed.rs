//! Ops whose tokens choose their weights: `lora_shrink` and `lora_expand` (`lora.rs`), `moe_route`, `moe_linear`,
//! `moe_combine`, `head_linear` (`heads.rs`).

mod expert_list;
mod fused_experts;
mod grouped;
mod heads;
mod lora;
mod many;
mod products;
mod shapes;
mod support;
mod unpacked;

use halyard_kernels_gpu::MOE;
use halyard_platform_api::ops::{self, Scoring};
use halyard_platform_api::{Error, OpSpec, Result, WeightFormat};

use self::expert_list::{Elsewhere, ExpertList};
pub(crate) use self::fused_experts::{build as build_experts, matches as matches_experts};
use self::grouped::Grouped;
use self::lora::{Expand, Shrink};
use self::products::{Call, Products};
use self::shapes::Rows;
use self::support::{
    Entry, MAX_EXPERTS, MAX_GRID_Y, THREADS, WARP_FEATURES, check_extents, check_inner, float, optional_vector,
    wrong_count,
};
use crate::driver::DevicePtr;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Packer, Preparation, RowSource, boxed};
use crate::ops::formats::{IN_BLOCKS, code, in_blocks};
use crate::ops::linear::{Pack, pack_in_pieces, plane_bytes};
use crate::view::View;

/// Warps of a block of [`THREADS`].
const WARPS: u32 = THREADS / 32;
/// Tokens of a block of `moe_route`, a warp each.
const ROUTED_TOKENS: u32 = 4;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    Some(match spec {
        OpSpec::LoraShrink(op) => boxed(Shrink::new(op)),
        OpSpec::LoraExpand(op) => boxed(Expand::new(op)),
        OpSpec::MoeRoute(op) => boxed(Route::new(op)),
        OpSpec::MoeLinear(op) => boxed(Linear::new(op)),
        OpSpec::MoeCombine(op) => boxed(Combine::new(op)),
        OpSpec::HeadLinear(op) => boxed(heads::Heads::new(op)),
        _ => return None,
    })
}

struct Route {
    op: ops::MoeRoute,
    entry: Entry,
}

impl Route {
    const NAME: &str = "moe_route";

    fn new(op: &ops::MoeRoute) -> Result<Route> {
        check_extents(Self::NAME, &[("num_experts", op.num_experts), ("top_k", op.top_k)])?;
        op.check()?;
        if op.num_experts + op.num_groups > MAX_EXPERTS {
            return Err(Error::unsupported(format!(
                "{} over {} experts in {} groups: at most {MAX_EXPERTS} of both here",
                Self::NAME,
                op.num_experts,
                op.num_groups
            )));
        }
        Ok(Route {
            op: op.clone(),
            entry: Entry::new(Self::NAME, MOE, "f32", "f32"),
        })
    }
}

impl Kernel for Route {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entry.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [logits, experts, weights, bias] = operands else {
            return Err(wrong_count(Self::NAME, 4, operands));
        };
        check_inner(
            Self::NAME,
            &[("logits", logits), ("experts", experts), ("weights", weights)],
        )?;
        let args = [
            Arg::Ptr(logits.ptr),
            Arg::U32(logits.row_stride()),
            Arg::Ptr(experts.ptr),
            Arg::U32(experts.row_stride()),
            Arg::Ptr(weights.ptr),
            Arg::U32(weights.row_stride()),
            Arg::Ptr(optional_vector(Self::NAME, "bias", bias)?),
            Arg::U32(experts.len()),
            Arg::U32(self.op.num_experts),
            Arg::U32(self.op.top_k),
            Arg::U32(u32::from(self.op.scoring == Scoring::Sigmoid)),
            Arg::U32(u32::from(self.op.normalize)),
            Arg::F32(self.op.factor),
            Arg::U32(self.op.num_groups),
            Arg::U32(self.op.top_groups),
            Arg::U32(self.op.group_best),
        ];
        let grid = [experts.len().div_ceil(ROUTED_TOKENS), 1, 1];
        let shared = ROUTED_TOKENS * (self.op.num_experts + self.op.num_groups) * 4;
        encoding.launch(self.entry.get()?, grid, ROUTED_TOKENS * 32, shared, &args);
        Ok(())
    }
}

struct Linear {
    op: ops::MoeLinear,
    row_bytes: u64,
    /// A warp a choice, over rows as they are stored.
    entry: Entry,
    /// Over matrices of the activations' type, and over records.
    products: Option<(ExpertList, Products)>,
    /// Over all others, and where products decline.
    grouped: Option<Grouped>,
    /// Where rows lie as records.
    pack: Option<Pack>,
}

impl Linear {
    const NAME: &str = "moe_linear";

    fn new(op: &ops::MoeLinear) -> Result<Linear> {
        op.check()?;
        let act = float(Self::NAME, "activations", op.dtype)?;
        let (define, weight) = match op.weight {
            WeightFormat::F32 => ("WEIGHT", "f32"),
            WeightFormat::F16 => ("WEIGHT", "f16"),
            WeightFormat::BF16 => ("WEIGHT", "bf16"),
            format if in_blocks(format) => ("FORMAT", code(format)),
            other => {
                return Err(Error::unsupported(format!(
                    "{}: {} is not read here; F32, F16, BF16, {IN_BLOCKS} are",
                    Self::NAME,
                    other.name()
                )));
            }
        };
        let Some(row_bytes) = op.weight.row_bytes(op.in_features as usize) else {
            return Err(Error::unsupported(format!(
                "{}: {} values are no whole blocks of {} of {:?}",
                Self::NAME,
                op.in_features,
                op.weight.block_values(),
                op.weight
            )));
        };
        check_extents(
            Self::NAME,
            &[
                ("in_features", op.in_features),
                ("out_features", op.out_features),
                ("num_experts", op.num_experts),
                ("top_k", op.top_k),
            ],
        )?;
        Ok(Linear {
            op: op.clone(),
            row_bytes: row_bytes as u64,
            entry: Entry {
                define,
                ..Entry::new(Self::NAME, MOE, act, weight)
            },
            products: None,
            grouped: None,
            pack: None,
        })
    }

    /// Compiles what packs the rows, where they lie as records, or else what reads them as they are stored.
    fn prepare_rows(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let op = &self.op;
        let Some(Rows::Records(format)) = Rows::of(op, cx.facts()) else {
            return self.entry.prepare(cx);
        };
        let num_rows = op.num_experts.checked_mul(op.out_features).ok_or_else(|| {
            let text = format!("{} matrices of {} rows", op.num_experts, op.out_features);
            Error::unsupported(text + ": at most 4294967295 rows of all together")
        })?;
        self.pack = Some(Pack::prepare(cx, self.entry.act, format, num_rows, op.in_features)?);
        Ok(())
    }

    fn num_rows(&self) -> u64 {
        u64::from(self.op.num_experts) * u64::from(self.op.out_features)
    }
}

impl Kernel for Linear {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.prepare_rows(cx)?;
        let (act, op) = (self.entry.act, &self.op);
        let mut defines = vec![("ACT", act), (self.entry.define, self.entry.weight)];
        if self.pack.is_some() {
            defines.push(("RECORDS", "1"));
        }
        self.grouped = Grouped::prepare(cx, op, &defines)?;
        self.products = match Products::prepare(cx, op, None, true)? {
            Some(products) => Some((ExpertList::prepare(cx, act)?, products)),
            None => None,
        };
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        match &self.products {
            Some((_, products)) => products.scratch_bytes(&self.op),
            None if self.grouped.is_some() => ExpertList::bytes(&self.op),
            None => 0,
        }
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [x, weight, experts, out, bias] = operands else {
            return Err(wrong_count(Self::NAME, 5, operands));
        };
        let bias = optional_vector(Self::NAME, "bias", bias)?;
        check_inner(Self::NAME, &[("x", x), ("experts", experts), ("out", out)])?;
        let call = Call {
            x: *x,
            weight: weight.ptr,
            weight_up: 0,
            experts: *experts,
            elsewhere: Elsewhere::Zeros,
            out: *out,
            bias,
            bias_up: 0,
        };
        let products = self.products.as_ref();
        if let Some((list, products)) = products.filter(|(_, products)| products.suits(&self.op, &call)) {
            if Products::reads_list(out.len()) {
                list.encode(encoding, &self.op, experts, call.elsewhere, None);
            }
            products.encode(encoding, &self.op, &call);
            return Ok(());
        }
        if let Some(grouped) = self.grouped.filter(|_| Grouped::suits(&self.op, x, weight, out)) {
            grouped.encode(encoding, &self.op, self.row_bytes, [x, weight, experts, out], bias);
            return Ok(());
        }
        if let (Some((list, products)), Some(_)) = (products, self.pack) {
            list.encode(encoding, &self.op, experts, call.elsewhere, None);
            return products.encode_any(encoding, &self.op, &call);
        }
        let choices = out.len() * self.op.top_k;
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(if x.shape[1] == 1 { 0 } else { x.strides[1] }),
            Arg::Ptr(weight.ptr),
            Arg::U64(self.row_bytes),
            Arg::Ptr(experts.ptr),
            Arg::U32(experts.row_stride()),
            Arg::Ptr(out.ptr),
            Arg::U32(out.strides[0]),
            Arg::U32(out.strides[1]),
            Arg::Ptr(bias),
            Arg::U32(choices),
            Arg::U32(self.op.top_k),
            Arg::U32(self.op.first_expert),
            Arg::U32(self.op.num_experts),
            Arg::U32(self.op.in_features),
            Arg::U32(self.op.out_features),
        ];
        let blocks = self.op.out_features.div_ceil(WARPS * WARP_FEATURES);
        let grid = [blocks, choices.min(MAX_GRID_Y), 1];
        encoding.launch(self.entry.get()?, grid, THREADS, 0, &args);
        Ok(())
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        match node {
            0 if self.pack.is_some() => {
                let (n, k) = (self.num_rows(), u64::from(self.op.in_features));
                Ok(plane_bytes(self.op.weight, n, k))
            }
            0 => Ok(self.num_rows() * self.row_bytes),
            _ => Err(Error::invalid(format!("{}: it has no node {node}", Self::NAME))),
        }
    }

    /// The packed form is the stored one, or records.
    fn pack_weight(
        &self,
        packer: &dyn Packer,
        node: u32,
        first_row: u32,
        num_rows: u32,
        source: RowSource<'_>,
        dst: DevicePtr,
    ) -> Result<()> {
        let end = u64::from(first_row) + u64::from(num_rows);
        if node != 0 || end > self.num_rows() {
            return Err(Error::invalid(format!(
                "{}: rows {first_row} .. {end} of node {node}; node 0 has {}",
                Self::NAME,
                self.num_rows()
            )));
        }
        if let Some(pack) = self.pack {
            source.check(num_rows, self.row_bytes)?;
            return pack_in_pieces(
                packer,
                source,
                self.row_bytes,
                num_rows,
                |encoding, from, done, count| {
                    pack.encode(encoding, from, dst, first_row + done, count);
                },
            );
        }
        let bytes = u64::from(num_rows) * self.row_bytes;
        let to = dst + u64::from(first_row) * self.row_bytes;
        packer.copy(to, bytes, source, 0, bytes, bytes, 1)
    }
}

struct Combine {
    op: ops::MoeCombine,
    entry: Entry,
}

impl Combine {
    const NAME: &str = "moe_combine";

    fn new(op: &ops::MoeCombine) -> Result<Combine> {
        let act = float(Self::NAME, "values", op.dtype)?;
        check_extents(Self::NAME, &[("width", op.width), ("top_k", op.top_k)])?;
        Ok(Combine {
            op: op.clone(),
            entry: Entry::new(Self::NAME, MOE, act, act),
        })
    }
}

impl Kernel for Combine {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entry.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [x, weights, out] = operands else {
            return Err(wrong_count(Self::NAME, 3, operands));
        };
        check_inner(Self::NAME, &[("x", x), ("weights", weights), ("out", out)])?;
        let args = [
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(x.strides[1]),
            Arg::Ptr(weights.ptr),
            Arg::U32(weights.row_stride()),
            Arg::Ptr(out.ptr),
            Arg::U32(out.row_stride()),
            Arg::U32(out.len()),
            Arg::U32(self.op.top_k),
            Arg::U32(self.op.width),
        ];
        let grid = [self.op.width.div_ceil(THREADS), out.len().min(MAX_GRID_Y), 1];
        encoding.launch(self.entry.get()?, grid, THREADS, 0, &args);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use halyard_platform_api::DType;

    use super::*;

    fn moe_linear(weight: WeightFormat, dtype: DType) -> OpSpec {
        ops::MoeLinear {
            in_features: 32,
            out_features: 5,
            num_experts: 3,
            top_k: 2,
            weight,
            dtype,
            max_tokens: 4,
            first_expert: 0,
            total_experts: 0,
            allow_quantized_act: false,
        }
        .into()
    }

    fn refused(spec: &OpSpec) -> String {
        match build(spec) {
            Some(Err(error)) => error.to_string(),
            Some(Ok(_)) => "accepted".to_string(),
            None => "not of this family".to_string(),
        }
    }

    #[test]
    fn types_that_do_not_run_are_refused_with_those_that_do() {
        assert_eq!(refused(&moe_linear(WeightFormat::BF16, DType::F16)), "accepted");
        assert_eq!(refused(&moe_linear(WeightFormat::Q4_0, DType::F16)), "accepted");
        assert_eq!(refused(&moe_linear(WeightFormat::E2M1G16, DType::F16)), "accepted");
        let text = refused(&moe_linear(WeightFormat::Q5_1, DType::F16));
        assert!(
            text.contains("Q5_1 is not read here") && text.contains("U4, I8,"),
            "{text}"
        );
        let text = refused(&moe_linear(WeightFormat::Q4K, DType::F16));
        assert!(text.contains("32 values are no whole blocks of 256 of Q4K"), "{text}");
        let text = refused(&moe_linear(WeightFormat::F32, DType::I8));
        assert!(text.contains("I8") && text.contains("BF16 work"), "{text}");
        let route = ops::MoeRoute {
            num_experts: 4,
            top_k: 5,
            scoring: Scoring::Softmax,
            normalize: false,
            factor: 1.0,
            num_groups: 0,
            top_groups: 0,
            group_best: 0,
        };
        let text = refused(&route.into());
        assert!(text.contains("top_k 5 is not in 1 ..= 4"), "{text}");
    }

    /// Notes what is copied.
    #[derive(Default)]
    struct Copies(RefCell<Vec<(DevicePtr, u64)>>);

    impl Packer for Copies {
        fn copy(
            &self,
            to: DevicePtr,
            _to_pitch: u64,
            _source: RowSource<'_>,
            _offset: u64,
            _pitch: u64,
            width: u64,
            height: u64,
        ) -> Result<()> {
            self.0.borrow_mut().push((to, width * height));
            Ok(())
        }

        fn on_device(&self, _source: RowSource<'_>, _offset: u64, _bytes: u64) -> Result<DevicePtr> {
            Err(Error::invalid("nothing is staged here"))
        }

        fn run(&self, _encoding: &Encoding) -> Result<()> {
            Err(Error::invalid("nothing runs here"))
        }
    }

    #[test]
    fn expert_rows_are_packed_as_they_are() {
        let kernel = build(&moe_linear(WeightFormat::F16, DType::F32)).unwrap().unwrap();
        assert_eq!(kernel.packed_weight_bytes(0).unwrap(), 3 * 5 * 64);
        assert!(kernel.packed_weight_bytes(1).is_err());
        let copies = Copies::default();
        let bytes = [0; 4 * 64];
        kernel
            .pack_weight(&copies, 0, 11, 4, RowSource::Host(&bytes), 1000)
            .unwrap();
        assert_eq!(*copies.0.borrow(), [(1000 + 11 * 64, 4 * 64)]);
        let error = kernel
            .pack_weight(&copies, 0, 12, 4, RowSource::Host(&bytes), 1000)
            .unwrap_err();
        assert!(
            error.message.contains("rows 12 .. 16 of node 0; node 0 has 15"),
            "{error}"
        );
    }
}
