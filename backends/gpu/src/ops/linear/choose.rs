//! Which paths compute a linear, by the number of tokens: a pure function of the op, the layout of its weight, the
//! device, and what there is. The constants were measured; each one's comment says where.

use std::fmt;
use std::ops::RangeInclusive;

use halyard_platform_api::{DType, ops};

use super::dense_tiles::DenseTiles;
use super::dots;
use super::groups_tiles;
use super::layout::WeightLayout;
use super::round_groups;
use super::round_tokens;
use super::scaled_tiles;
use super::small_batch::SmallBatch;
use crate::driver::Facts;
use crate::policy::Policy;

/// Tokens of a block of the plain kernels: beyond it each weight is read once more for every eight tokens.
const PLAIN_TOKENS: u32 = 8;
/// Up to this many 16-bit tokens, GGUF formats are multiplied as they are: beyond it unpacking pays.
const QUANTIZED_TOKENS: u32 = 32;

/// The ways to compute a linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathName {
    /// Small batches on matrix units, over plain or 8-bit weights.
    SmallBatch,
    /// Up to some hundred tokens on Hopper's matrix units, over plain weights, or rounded ones over 8-bit weights.
    DenseTiles,
    /// Batches over 8-bit weights on matrix units.
    ScaledTiles,
    /// Batches over records on matrix units.
    GroupsTiles,
    /// The driver's product of 8-bit tokens and weights.
    EightBitProduct,
    /// The driver's product, of unpacked weights where they are not plain.
    Product,
    /// Own tiles on the matrix units that the driver's kernel knows.
    MatrixTiles,
    /// Own tiles in f32.
    Tiles,
    /// GGUF's planes over tokens rounded to 8 bits.
    IntegerDots,
    /// The kernels of the weight's layout.
    Layout,
}

impl PathName {
    /// Whether a device or a driver may lack it: others run then. Of all others a failure is an error.
    pub(super) fn may_be_missing(self) -> bool {
        use PathName::{EightBitProduct, MatrixTiles, Product, Tiles};
        matches!(self, EightBitProduct | Product | MatrixTiles | Tiles)
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathName::SmallBatch => "small batches on matrix units",
            PathName::DenseTiles => "dense tiles",
            PathName::ScaledTiles => "tiles of 8-bit weights",
            PathName::GroupsTiles => "tiles of groups",
            PathName::EightBitProduct => "product of 8-bit tokens",
            PathName::Product => "product",
            PathName::MatrixTiles => "tiles on matrix units",
            PathName::Tiles => "tiles in f32",
            PathName::IntegerDots => "tokens rounded to 8 bits",
            PathName::Layout => "plain kernel",
        })
    }
}

/// A path, and the tokens of the calls that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) tokens: RangeInclusive<u32>,
    pub(super) path: PathName,
}

/// The facts that the choice depends on.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) op: &'a ops::Linear,
    pub(super) layout: WeightLayout,
    /// A composite takes over small batches: they still run, but not fast.
    pub(super) small_batches_are_fused: bool,
}

/// The paths of a linear, the better first: a call takes the first whose range holds its tokens and that takes its
/// operands. The last one takes every call.
pub(super) fn choose(of: Request<'_>, facts: &Facts, policy: &Policy, missing: &[PathName]) -> Vec<Choice> {
    let Request { op, layout, .. } = of;
    let there = |path: &PathName| !missing.contains(path);
    let matrix_units = facts.matrix_units && layout.takes_small_batches(op);
    let dots = dots::takes(layout) && op.allow_quantized_act && policy.integer_dots;
    let most_in_tiles = DenseTiles::most_tokens(op, layout, false, facts, policy);
    let dense_tiles = facts.matrix_units && most_in_tiles > 0;

    let own_tokens = own_tokens(of, matrix_units, facts, policy);
    let row_bytes = u64::from(op.in_features) * op.act.bytes() as u64;
    let rounds = round_tokens::takes(op, layout) || round_groups::takes(op, layout, facts);
    let products = [rounds.then_some(PathName::EightBitProduct), Some(PathName::Product)];
    let product = (products.into_iter().flatten())
        .find(there)
        .filter(|_| op.max_tokens > own_tokens && row_bytes.is_multiple_of(16));
    let own_tokens = match (layout, product) {
        (WeightLayout::Plain(_), None) if !matrix_units => PLAIN_TOKENS,
        (WeightLayout::Planes(_), Some(_)) if !dots => own_tokens.min(policy.unpack_from.saturating_sub(1)),
        _ => own_tokens,
    };

    let more_tokens = op.max_tokens > own_tokens;
    // Over plain weights the library's product is as fast where a composite does not take over.
    let is_plain = matches!(layout, WeightLayout::Plain(_));
    let small_batch = matrix_units && (!is_plain || product.is_none() || !of.small_batches_are_fused);
    let scaled_tiles = matrix_units
        && layout == WeightLayout::Scaled
        && product != Some(PathName::EightBitProduct)
        && more_tokens
        && scaled_tiles::takes(op, facts);
    let groups_tiles = match layout {
        WeightLayout::Planes(format) => matrix_units && more_tokens && groups_tiles::takes(format, facts),
        _ => false,
    };
    let dense_tiles = dense_tiles && more_tokens;
    let tiles = match !small_batch && product.is_none() && more_tokens {
        true => tiles(of, dots, policy).find(there),
        false => None,
    };

    let own_tokens = match small_batch && product.is_none() && !scaled_tiles && !groups_tiles {
        true => u32::MAX,
        false => own_tokens,
    };
    let own = 1..=own_tokens;
    let beyond = own_tokens.checked_add(1).map(|first| first..=u32::MAX);
    let tiled = |most: u32| own_tokens.saturating_add(1)..=most;
    let most_in_groups = match (layout, product) {
        (WeightLayout::Planes(format), Some(_)) => groups_tiles::max_tokens(format, facts),
        _ => u32::MAX,
    };
    let last = match dots {
        true => PathName::IntegerDots,
        false => PathName::Layout,
    };
    let choices = [
        dense_tiles.then_some((tiled(most_in_tiles), PathName::DenseTiles)),
        scaled_tiles.then_some((tiled(scaled_tiles::MAX_TOKENS), PathName::ScaledTiles)),
        groups_tiles.then_some((tiled(most_in_groups), PathName::GroupsTiles)),
        small_batch.then_some((own, PathName::SmallBatch)),
        beyond.clone().zip(product),
        beyond.clone().zip(small_batch.then_some(PathName::SmallBatch)),
        beyond.zip(tiles),
        Some((1..=u32::MAX, last)),
    ];
    let choices = choices.into_iter().flatten().filter(|(tokens, _)| !tokens.is_empty());
    choices.map(|(tokens, path)| Choice { tokens, path }).collect()
}

/// Most tokens for which own kernels beat a product.
fn own_tokens(of: Request<'_>, matrix_units: bool, facts: &Facts, policy: &Policy) -> u32 {
    let Request { op, layout, .. } = of;
    match layout {
        WeightLayout::Plain(_) if matrix_units && of.small_batches_are_fused => 0,
        WeightLayout::Planes(format) if matrix_units => {
            SmallBatch::most_tokens(op, layout, false, facts, policy).min(groups_tiles::tokens_below(op, format, facts))
        }
        _ if matrix_units => SmallBatch::most_tokens(op, layout, false, facts, policy),
        // From the first token on.
        WeightLayout::Planes(_) if DenseTiles::takes(op, layout, false, facts, policy) => 0,
        WeightLayout::Planes(_) if op.act != DType::F32 => QUANTIZED_TOKENS,
        WeightLayout::Plain(_) => {
            let from = policy.product_from(op.in_features, op.out_features);
            PLAIN_TOKENS.min(from.saturating_sub(1))
        }
        _ => PLAIN_TOKENS,
    }
}

/// Own tiles that take the operands, the better first.
fn tiles(of: Request<'_>, dots: bool, policy: &Policy) -> impl Iterator<Item = PathName> + use<> {
    let weight = match of.layout {
        WeightLayout::Plain(weight) => Some(weight),
        WeightLayout::Planes(_) => Some(of.op.act),
        // 8-bit floats have a plain kernel of their own.
        WeightLayout::Scaled => None,
    };
    let on_matrix_units = weight.and_then(|weight| policy.matrix_tiling(of.op.act, weight));
    // Rounded tokens need no tiles in f32: four products an instruction make up for weights that are read again for
    // every eight of them.
    let in_f32 = weight.is_some() && !dots;
    let paths = [
        on_matrix_units.map(|_| PathName::MatrixTiles),
        in_f32.then_some(PathName::Tiles),
    ];
    paths.into_iter().flatten()
}

/// Choices as text: `1-16 small batches on matrix units, from 17 product, others plain kernel`.
pub(super) fn describe(choices: &[Choice]) -> String {
    let one = |Choice { tokens, path }: &Choice| match (*tokens.start(), *tokens.end()) {
        (1, u32::MAX) if choices.len() == 1 => path.to_string(),
        (1, u32::MAX) => format!("others {path}"),
        (first, u32::MAX) => format!("from {first} {path}"),
        (first, last) => format!("{first}-{last} {path}"),
    };
    let all: Vec<String> = choices.iter().map(one).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::WeightFormat;
    use halyard_platform_api::ops::Epilogue;

    use super::*;
    use crate::ops::linear::reads;
    use crate::policy::Tiling;

    fn op(weight: WeightFormat, act: DType, rounded: bool) -> ops::Linear {
        ops::Linear {
            in_features: 4096,
            out_features: 4096,
            weight,
            act,
            out: act,
            epilogue: Epilogue::None,
            max_tokens: 600,
            allow_quantized_act: rounded,
        }
    }

    fn facts(matrix_units: bool) -> Facts {
        Facts {
            matrix_units,
            ..crate::ops::tests::facts("", 132, 232_448)
        }
    }

    fn chosen(op: &ops::Linear, matrix_units: bool, policy: &Policy, missing: &[PathName]) -> Vec<Choice> {
        let request = Request {
            op,
            layout: WeightLayout::of(op),
            small_batches_are_fused: false,
        };
        choose(request, &facts(matrix_units), policy, missing)
    }

    #[test]
    fn whatever_is_missing_the_last_path_takes_every_call() {
        let policy = Policy {
            integer_dots: true,
            matrix_tiling: Some(Tiling::plain("on matrix units")),
            ..Policy::default()
        };
        let optional = [
            PathName::EightBitProduct,
            PathName::Product,
            PathName::MatrixTiles,
            PathName::Tiles,
        ];
        for weight in WeightFormat::ALL.into_iter().filter(|&f| reads(f)) {
            for act in [DType::F32, DType::F16, DType::BF16] {
                for flags in 0..64u32 {
                    let missing = optional.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
                    let missing: Vec<PathName> = missing.map(|(_, path)| *path).collect();
                    let op = op(weight, act, flags >> 4 & 1 == 1);
                    let choices = chosen(&op, flags >> 5 & 1 == 1, &policy, &missing);
                    let last = choices.last().expect("a path");
                    assert_eq!(last.tokens, 1..=u32::MAX, "{op:?}");
                    assert!(matches!(last.path, PathName::Layout | PathName::IntegerDots), "{op:?}");
                    assert!(choices.iter().all(|choice| !missing.contains(&choice.path)), "{op:?}");
                }
            }
        }
    }

    #[test]
    fn batches_over_records_are_not_unpacked() {
        let described = |weight, missing: &[PathName]| {
            let op = op(weight, DType::BF16, false);
            describe(&chosen(&op, true, &Policy::default(), missing))
        };
        let own = "tiles of groups, 1-16 small batches on matrix units";
        let beyond = "from 17 small batches on matrix units, others plain kernel";
        let with_product = format!("17-96 {own}, from 17 product, {beyond}");
        for weight in [
            WeightFormat::U4G128,
            WeightFormat::I8G32,
            WeightFormat::E2M1G16,
            WeightFormat::Q4_0,
            WeightFormat::Q6K,
        ] {
            assert_eq!(described(weight, &[]), with_product, "{weight:?}");
        }
        let alone = format!("from 17 {own}, {beyond}");
        assert_eq!(described(WeightFormat::U4G128, &[PathName::Product]), alone);
        // Tables of 24 bits.
        for weight in [WeightFormat::Nf4G64, WeightFormat::Fp4G64] {
            assert_eq!(
                described(weight, &[]),
                "from 33 product, others plain kernel",
                "{weight:?}"
            );
        }
    }

    #[test]
    fn tiles_in_f32_stand_in_for_matrix_units_that_are_wrong() {
        let policy = Policy {
            matrix_tiling: Some(Tiling::plain("on matrix units")),
            ..Policy::default()
        };
        let plain = op(WeightFormat::BF16, DType::BF16, false);
        let described =
            |op: &ops::Linear, policy: &Policy, missing: &[PathName]| describe(&chosen(op, false, policy, missing));
        let (no_product, wrong) = ([PathName::Product], [PathName::Product, PathName::MatrixTiles]);
        assert_eq!(
            described(&plain, &policy, &no_product),
            "from 9 tiles on matrix units, others plain kernel"
        );
        assert_eq!(
            described(&plain, &policy, &wrong),
            "from 9 tiles in f32, others plain kernel"
        );
        assert_eq!(described(&plain, &policy, &[]), "from 9 product, others plain kernel");
        // The kernels over rounded tokens know GGUF's formats only.
        let canonical = op(WeightFormat::U4G128, DType::BF16, true);
        let with_dots = Policy {
            integer_dots: true,
            ..policy.clone()
        };
        let without = "from 33 tiles on matrix units, others plain kernel";
        assert_eq!(described(&canonical, &with_dots, &no_product), without);
        // Rounded tokens do better than tiles in f32.
        let rounded = op(WeightFormat::Q4_0, DType::BF16, true);
        let dots = Policy {
            integer_dots: true,
            ..policy
        };
        let on_matrix_units = "from 33 tiles on matrix units, others tokens rounded to 8 bits";
        assert_eq!(described(&rounded, &dots, &no_product), on_matrix_units);
        assert_eq!(described(&rounded, &dots, &wrong), "tokens rounded to 8 bits");
    }
}
