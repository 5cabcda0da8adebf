//! Products of many tokens on cooperative matrices: an own kernel in the place where other platforms have the vendor's
//! library.

use std::sync::Arc;

use ash::vk;
use halyard_gpu::{DevicePtr, Param, Product, ProductCall, ProductSpec, Stream};
use halyard_kernels_gpu::{PRODUCT, PRODUCT_WIDE, Source};
use halyard_platform_api::{DType, Error, Result};

use crate::bfloat16;
use crate::physical::Physical;
use crate::pipelines::{FunctionCore, Pipelines};
use crate::stream::stream;
use crate::wide::Shape;

/// Threads of a workgroup for a small batch.
const SMALL_BATCH_THREADS: u32 = 256;

/// A shape in which workgroups compute a product of many tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) tokens: u32,
    pub(crate) rows: u32,
    /// Of a step.
    depths: u32,
    threads: u32,
    /// How subgroups share it, over tokens and over rows; `None`: matrices of the whole workgroup.
    subgroups: Option<[u32; 2]>,
    /// Steps that lie in shared memory at a time; 0: the driver's matter.
    stages: u32,
    /// How fast products are, in TFLOP/s on an H200, where every multiprocessor has two workgroups and where it has
    /// one: what counts is how the shapes compare.
    speeds: [u32; 2],
}

const fn tile(sides: [u32; 3], threads: u32, subgroups: [u32; 2], stages: u32, speeds: [u32; 2]) -> Tile {
    let [tokens, rows, depths] = sides;
    Tile {
        tokens,
        rows,
        depths,
        threads,
        subgroups: Some(subgroups),
        stages,
        speeds,
    }
}

const fn wide(sides: [u32; 3], threads: u32, speeds: [u32; 2]) -> Tile {
    Tile {
        subgroups: None,
        ..tile(sides, threads, [1, 1], 0, speeds)
    }
}

/// Shapes for matrices of a subgroup.
const SUBGROUP_TILES: [Tile; 3] = [
    tile([128, 128, 32], 128, [2, 2], 2, [255, 133]),
    // Twice the work after each wait, for workgroups that run alone on their multiprocessor.
    tile([128, 128, 64], 128, [2, 2], 1, [182, 224]),
    tile([64, 64, 64], 128, [2, 2], 2, [153, 100]),
];
/// Shapes for matrices of a workgroup.
const WORKGROUP_TILES: [Tile; 1] = [wide([128, 128, 64], 128, [273, 150])];

impl Tile {
    /// Whether its matrices are a workgroup's.
    pub(crate) fn is_wide(&self) -> bool {
        self.subgroups.is_none()
    }

    /// The kernel file, whose name is its entry point too.
    pub(crate) fn kernel(&self) -> Source {
        match self.subgroups {
            Some(_) => PRODUCT,
            None => PRODUCT_WIDE,
        }
    }

    /// The kernel's definitions of its shape.
    pub(crate) fn definitions(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("TOKENS", self.tokens.to_string()),
            ("ROWS", self.rows.to_string()),
            ("DEPTH", self.depths.to_string()),
        ];
        if let Some([down, across]) = self.subgroups {
            all.extend([("WARPS_DOWN", down.to_string()), ("WARPS_ACROSS", across.to_string())]);
            all.push(("STAGES", self.stages.to_string()));
        }
        all
    }

    /// Workgroups over tokens and over rows.
    fn grid(&self, tokens: u32, rows: u32) -> [u32; 2] {
        [tokens.div_ceil(self.tokens), rows.div_ceil(self.rows)]
    }

    /// How long a product takes, in no unit: multiprocessors take two workgroups at a time, and the last ones run alone
    /// where there are few.
    fn cost(&self, tokens: u32, rows: u32, num_sms: u32) -> u64 {
        let ([down, across], sms) = (self.grid(tokens, rows).map(u64::from), u64::from(num_sms.max(1)));
        let area = u64::from(self.tokens) * u64::from(self.rows) * 1000;
        let (pairs, rest) = (down * across / (2 * sms), down * across % (2 * sms));
        let [of_two, alone] = [2 * area / u64::from(self.speeds[0]), area / u64::from(self.speeds[1])];
        let last = match rest {
            0 => 0,
            rest if rest <= sms => alone,
            _ => of_two,
        };
        pairs * of_two + last
    }
}

/// The shapes for matrices of `act` on a device whose workgroups multiply `shapes`, which are looked at only where
/// `wide` says so.
pub(crate) fn tiles(shapes: &[Shape], act: DType, wide: bool) -> Vec<Tile> {
    let element = match act {
        DType::BF16 => bfloat16::COMPONENT,
        _ => vk::ComponentTypeKHR::FLOAT16,
    };
    let taken = |tile: &&Tile| {
        shapes.iter().any(|shape| {
            (shape.element, shape.threads) == (element, tile.threads)
                && shape.takes([tile.tokens, tile.rows, tile.depths])
        })
    };
    let of_workgroups = WORKGROUP_TILES.iter().filter(|_| wide).filter(taken);
    SUBGROUP_TILES.iter().chain(of_workgroups).copied().collect()
}

/// Tokens of a call for which weights are multiplied as they come, without tiles.
pub(crate) const SMALL_BATCH_TOKENS: u32 = 16;
/// Output rows of a workgroup then, and depths of a subgroup's step; matrices are whole multiples of both.
pub(crate) const SMALL_BATCH_ROWS: u32 = 16;
pub(crate) const SMALL_BATCH_DEPTHS: u32 = 64;

/// The name of a type in the kernel.
fn name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// Whether subgroups of 32 multiply matrices of a type.
pub(crate) fn multiplies(physical: &Physical, act: DType) -> bool {
    let there = match act {
        DType::F16 => physical.matrices.f16,
        DType::BF16 => physical.matrices.bf16,
        _ => false,
    };
    there && physical.counts_on_subgroups()
}

/// The kernels' definitions for `spec`, less a tile's.
///
/// # Errors
/// `Unsupported` with what is not offered.
pub(crate) fn definitions(physical: &Physical, spec: &ProductSpec) -> Result<[(&'static str, &'static str); 3]> {
    if !multiplies(physical, spec.act) {
        return Err(Error::unsupported(format!(
            "{} multiplies no {:?} matrices of 16 × 16 × 16 in subgroups of 32",
            physical.facts.name, spec.act
        )));
    }
    if spec.weight != spec.act {
        return Err(Error::unsupported(format!(
            "weights of {:?} with activations of {:?}: matrices of one type are multiplied",
            spec.weight, spec.act
        )));
    }
    let (Some(act), Some(out)) = (name(spec.act), name(spec.out)) else {
        return Err(Error::unsupported(format!(
            "products of {:?} to {:?}",
            spec.act, spec.out
        )));
    };
    let accumulate = if spec.accumulate { "1" } else { "0" };
    Ok([("ACT", act), ("OUT", out), ("ACCUMULATE", accumulate)])
}

/// Whether the kernel for small batches takes such a matrix.
pub(crate) fn takes_small_batches(in_features: u32, out_features: u32) -> bool {
    out_features.is_multiple_of(SMALL_BATCH_ROWS) && in_features.is_multiple_of(SMALL_BATCH_DEPTHS)
}

/// A product with a kernel for each tile.
#[derive(Clone)]
pub(crate) struct Matrices {
    pub(crate) pipelines: Arc<Pipelines>,
    /// At least one.
    pub(crate) tiles: Vec<(Tile, Arc<FunctionCore>)>,
    /// For small batches, where the matrix suits it.
    pub(crate) small_batch: Option<Arc<FunctionCore>>,
    pub(crate) in_features: u32,
    pub(crate) out_features: u32,
    pub(crate) num_sms: u32,
}

impl Product for Matrices {
    fn workspace_bytes(&self) -> u64 {
        0
    }

    unsafe fn run(&self, call: &ProductCall, _workspace: DevicePtr, on: Stream) -> Result<()> {
        let (function, threads, grid) = match &self.small_batch {
            Some(kernel) if call.tokens <= SMALL_BATCH_TOKENS => {
                (kernel, SMALL_BATCH_THREADS, [self.out_features / SMALL_BATCH_ROWS, 1])
            }
            _ => {
                let cost = |tile: &Tile| tile.cost(call.tokens, self.out_features, self.num_sms);
                let best = self.tiles.iter().min_by_key(|(tile, _)| cost(tile));
                let (tile, function) = best.ok_or_else(|| Error::invalid("a product without a kernel"))?;
                // Tokens first: workgroups that run together share their weights, which are read once.
                (function, tile.threads, tile.grid(call.tokens, self.out_features))
            }
        };
        let bound = self.pipelines.bound(function, threads, 0)?;
        let grid = [grid[0], grid[1], 1];
        let params = [
            Param::Ptr(call.x),
            Param::Ptr(call.weight),
            Param::Ptr(call.out),
            Param::Word(call.x_stride),
            Param::Word(call.out_stride),
            Param::Word(call.tokens),
            Param::Word(self.out_features),
            Param::Word(self.in_features),
        ];
        // SAFETY: a live stream.
        unsafe { stream(on) }.record(|recorder, memory| recorder.launch(memory, bound, grid, &params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_outputs_run_in_the_fastest_tiles_and_few_spread_over_the_device() {
        let all: Vec<Tile> = SUBGROUP_TILES.iter().chain(&WORKGROUP_TILES).copied().collect();
        let best = |tiles: &[Tile], tokens, rows| {
            let tile = tiles.iter().min_by_key(|tile| tile.cost(tokens, rows, 132));
            let tile = tile.expect("there are tiles");
            (tile.tokens, tile.depths, tile.kernel().name)
        };
        assert_eq!(best(&all, 4096, 28_672), (128, 64, "product_wide"));
        assert_eq!(best(&SUBGROUP_TILES, 4096, 28_672), (128, 32, "product"));
        // One workgroup for each of 132.
        assert_eq!(best(&all, 512, 4096), (128, 64, "product"));
        // 32 workgroups of the large ones would leave most of 132 idle.
        assert_eq!(best(&all, 64, 4096), (64, 64, "product"));
        // A device that does not report its multiprocessors still gets one.
        assert!(WORKGROUP_TILES[0].cost(1, 1, 0) > 0);
    }

    #[test]
    fn what_is_left_over_costs_as_much_as_one_workgroup_or_two_on_each_multiprocessor() {
        // The costs of `count` workgroups on ten multiprocessors, of which one alone and two together take a hundred
        // and two hundred.
        let square = tile([64, 64, 64], 128, [2, 2], 2, [40_960, 40_960]);
        let cost = |tile: &Tile, count: u32| tile.cost(64 * count, 64, 10);
        for (count, expected) in [
            (1, 100),
            (10, 100),
            (11, 200),
            (20, 200),
            (21, 300),
            (30, 300),
            (31, 400),
            (40, 400),
        ] {
            assert_eq!(cost(&square, count), expected, "{count} workgroups");
        }
        let slow_alone = Tile {
            speeds: [40_960, 20_480],
            ..square
        };
        assert_eq!(
            [10, 11, 20, 30].map(|count| cost(&slow_alone, count)),
            [200, 200, 200, 400]
        );
    }

    #[test]
    fn matrices_of_workgroups_are_taken_where_the_device_has_them_and_they_are_wanted() {
        let shape = |element, granularity, threads| Shape {
            element,
            granularity: [granularity; 3],
            threads,
        };
        let f16 = vk::ComponentTypeKHR::FLOAT16;
        let wide = |shapes: &[Shape], act, wanted| {
            let all = tiles(shapes, act, wanted);
            assert!(
                all.len() >= SUBGROUP_TILES.len() && !all[0].is_wide(),
                "others are always there"
            );
            all.iter().filter(|tile| tile.is_wide()).count()
        };
        let threads = WORKGROUP_TILES[0].threads;
        for (element, act, other) in [
            (f16, DType::F16, DType::BF16),
            (bfloat16::COMPONENT, DType::BF16, DType::F16),
        ] {
            // The second of them suits.
            let shapes = [shape(element, 16, 2 * threads), shape(element, 32, threads)];
            assert_eq!(wide(&shapes, act, true), WORKGROUP_TILES.len(), "{act:?}");
            assert_eq!(wide(&shapes, act, false), 0, "{act:?} unwanted");
            assert_eq!(wide(&shapes, other, true), 0, "{act:?} for {other:?}");
            assert_eq!(wide(&shapes[..1], act, true), 0, "{act:?}, workgroups of another size");
            assert_eq!(
                wide(&[shape(element, 256, threads)], act, true),
                0,
                "{act:?}, larger steps"
            );
        }
        assert_eq!(wide(&[], DType::F16, true), 0, "a device without them");
    }

    #[test]
    fn grids_cover_every_token_and_row() {
        let oblong = tile([64, 128, 32], 128, [2, 2], 2, [1, 1]);
        assert_eq!(oblong.grid(129, 129), [3, 2], "tokens first");
        for tile in WORKGROUP_TILES.iter().chain(&SUBGROUP_TILES) {
            assert_eq!(tile.grid(tile.tokens, tile.rows), [1, 1], "{tile:?}");
            assert_eq!(tile.grid(tile.tokens + 1, 2 * tile.rows), [2, 2], "{tile:?}");
            let names: Vec<&str> = tile.definitions().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names.contains(&"WARPS_DOWN"), tile.kernel() == PRODUCT, "{tile:?}");
        }
    }

    #[test]
    fn tiles_are_whole_multiples_of_what_workgroups_multiply() {
        let shape = Shape {
            element: vk::ComponentTypeKHR::FLOAT16,
            granularity: [32, 16, 16],
            threads: 256,
        };
        assert!(shape.takes([64, 48, 32]) && !shape.takes([48, 48, 32]) && !shape.takes([64, 48, 24]));
    }
}
