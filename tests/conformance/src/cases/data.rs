//! Moving and converting ops.

use halyard_platform_api::DType;
use halyard_platform_api::ops::{
    Copy, FillRandom, GatherRows, Pool, PoolMode, QuantizeAct, QuantizeScheme, ScatterRows,
};

use super::FLOATS;
use crate::case::{Arg, Case};
use crate::random::Random;
use crate::tolerance::Class;

/// The ops that have their cases here.
pub(super) const OPS: &[&str] = &[
    Copy::NAME,
    FillRandom::NAME,
    GatherRows::NAME,
    Pool::NAME,
    QuantizeAct::NAME,
    ScatterRows::NAME,
];

pub(crate) fn cases(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in FLOATS.into_iter().chain([DType::I32]) {
        gather_scatter(seed, dtype, &mut cases);
        copy(seed, dtype, &mut cases);
    }
    for dtype in FLOATS {
        quantize(seed, dtype, &mut cases);
        pool(seed, dtype, &mut cases);
        fill_random(dtype, &mut cases);
    }
    cases
}

/// Elements of any type; floats without NaN.
fn some(random: &mut Random, dtype: DType, shape: &[u32]) -> Arg {
    let count = shape.iter().product::<u32>() as usize;
    match dtype {
        DType::I32 => Arg::ints(shape, &(0..count).map(|_| random.word() as i32).collect::<Vec<_>>()),
        _ => Arg::floats(dtype, shape, &random.units(count)),
    }
}

fn gather_scatter(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    for (width, gap) in [(1, 0), (37, 0), (64, 3)] {
        let (variant, name) = (format!("{dtype:?}"), format!("width {width}, gap {gap}"));
        let random = &mut Random::of(seed, &format!("gather {variant} {name}"));
        let operands = vec![
            Some(some(random, dtype, &[7, width]).strided(gap)),
            Some(Arg::ints(&[5], &[6, -1, 0, 0, 3])),
            Some(some(random, dtype, &[5, width]).checked(Class::Exact).strided(gap)),
        ];
        cases.push(Case::single(GatherRows { width, dtype }, &variant, &name, operands));
        let operands = vec![
            Some(some(random, dtype, &[4, width]).strided(gap)),
            Some(Arg::ints(&[4], &[5, -1, 0, 2])),
            Some(some(random, dtype, &[6, width]).checked(Class::Exact).strided(gap)),
        ];
        cases.push(Case::single(ScatterRows { width, dtype }, &variant, &name, operands));
    }
}

fn copy(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    let variant = format!("{dtype:?}");
    let shapes: [(&[u32], u32, u32); 4] = [(&[1], 0, 0), (&[33], 0, 0), (&[3, 37], 5, 0), (&[2, 3, 5], 4, 9)];
    for (shape, from_gap, to_gap) in shapes {
        let name = format!("{shape:?}, gaps {from_gap} and {to_gap}");
        let random = &mut Random::of(seed, &format!("copy {variant} {name}"));
        let out = Arg::output(dtype, shape, Class::Exact).strided(to_gap);
        let x = some(random, dtype, shape).strided(from_gap);
        cases.push(Case::single(Copy { dtype }, &variant, &name, vec![Some(x), Some(out)]));
    }
}

fn quantize(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    let schemes = [
        (QuantizeScheme::Int8Row, 37, 1, DType::I8),
        (QuantizeScheme::Int8Block32, 96, 3, DType::I8),
        (QuantizeScheme::Fp8Row, 40, 1, DType::F8E4M3),
    ];
    for (scheme, width, groups, q_dtype) in schemes {
        let variant = format!("{dtype:?} {scheme:?}");
        let random = &mut Random::of(seed, &format!("quantize {variant}"));
        let rows = 4;
        let group = (width / groups) as usize;
        // Multiples of a power of two under a largest value of 127 (or 448) times it: every quotient is exact, so that
        // no backend may differ in a rounding. The third row is zero.
        let limit = if q_dtype == DType::I8 { 127.0 } else { 448.0 };
        let mut x: Vec<f32> = (0..rows * width)
            .map(|_| match q_dtype {
                DType::I8 => (random.below(253) as f32 - 126.0) / 64.0,
                _ => [0.5, -1.25, 3.0, 26.0, -208.0, 0.0][random.below(6) as usize] / 64.0,
            })
            .collect();
        x.chunks_exact_mut(group).for_each(|g| g[group / 2] = limit / 64.0);
        x[2 * width as usize..3 * width as usize].fill(0.0);
        let operands = vec![
            Some(Arg::floats(dtype, &[rows, width], &x).strided(3)),
            Some(Arg::output(q_dtype, &[rows, width], Class::Exact)),
            Some(Arg::output(DType::F32, &[rows, groups], Class::Elementwise)),
        ];
        let spec = QuantizeAct { width, dtype, scheme };
        cases.push(Case::single(spec, &variant, &format!("4 x {width}"), operands));
    }
}

fn pool(seed: u64, dtype: DType, cases: &mut Vec<Case>) {
    for mode in [PoolMode::Last, PoolMode::Mean, PoolMode::First] {
        for normalize in [false, true] {
            let variant = format!("{dtype:?} {mode:?}");
            let random = &mut Random::of(seed, &format!("pool {variant} {normalize}"));
            let width = 37;
            let operands = vec![
                Some(some(random, dtype, &[11, width]).strided(2)),
                Some(Arg::ints(&[5], &[0, 4, 4, 5, 11])),
                Some(Arg::output(DType::F32, &[4, width], Class::Norm)),
            ];
            let spec = Pool {
                width,
                dtype,
                mode,
                normalize,
            };
            cases.push(Case::single(
                spec,
                &variant,
                &format!("normalize {normalize}"),
                operands,
            ));
        }
    }
}

fn fill_random(dtype: DType, cases: &mut Vec<Case>) {
    for (shape, first) in [(&[3u32, 7][..], 0), (&[1030][..], 4096)] {
        let spec = FillRandom {
            dtype,
            seed_low: 0xDEAD_BEEF,
            seed_high: 7,
            scale: 0.02,
            first,
        };
        let operands = vec![Some(Arg::output(dtype, shape, Class::Elementwise))];
        cases.push(Case::single(
            spec,
            &format!("{dtype:?}"),
            &format!("{shape:?} from {first}"),
            operands,
        ));
    }
}
