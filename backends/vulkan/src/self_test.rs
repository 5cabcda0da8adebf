//! Self-test of products on matrix units, against numbers computed here. Drivers and their compilers are young there,
//! and a wrong product would show only as bad model output. Small whole numbers, so that no sum depends on its order.

use halyard_gpu::self_test::{SelfTestMemory, sum_at, value_of, weight_at, whole_numbers, x_at};
use halyard_gpu::{Driver, Product, ProductCall, ProductSpec};
use halyard_platform_api::{DType, Error, Result};

use crate::product::Matrices;

/// Sizes of the product: whole tiles of every shape and parts of one on each side, three steps of the kernel for small
/// batches (some of its subgroups have none).
pub(crate) const IN_FEATURES: u32 = 192;
pub(crate) const OUT_FEATURES: u32 = 304;
/// Tokens of the calls, for the kernel of small batches and for tiles.
const SMALL_BATCH: u32 = 5;
const TILED_BATCH: u32 = 150;
/// Depths of a second call on tiles: no whole number of any kernel's steps.
const ODD_DEPTHS: u32 = 168;
/// Values between rows of x and of the output.
const PADDING: u32 = 8;

/// The value of the output before the product.
fn before_at(token: u32, row: u32) -> i32 {
    ((token + row) % 9) as i32 - 4
}

/// Part of a sum that rounding to the output's type may change, and a little.
fn tolerance(dtype: DType, value: f32) -> f32 {
    let digits = match dtype {
        DType::BF16 => 256.0,
        DType::F16 => 2048.0,
        _ => 1_048_576.0,
    };
    value.abs() / digits + 1e-6
}

/// Runs `product`, which is of [`IN_FEATURES`] and [`OUT_FEATURES`], on each of its kernels.
///
/// # Errors
/// `Unsupported` with the first number that is wrong; what the device reports.
pub(crate) fn check(driver: &dyn Driver, product: &Matrices, spec: &ProductSpec) -> Result<()> {
    check_one(driver, product, spec, SMALL_BATCH)?;
    for tile in &product.tiles {
        let only = Matrices {
            tiles: vec![tile.clone()],
            small_batch: None,
            ..product.clone()
        };
        check_one(driver, &only, spec, TILED_BATCH)?;
        let odd = Matrices {
            in_features: ODD_DEPTHS,
            ..only
        };
        check_one(driver, &odd, spec, TILED_BATCH)?;
    }
    Ok(())
}

/// Runs it on one of them.
fn check_one(driver: &dyn Driver, product: &Matrices, spec: &ProductSpec, tokens: u32) -> Result<()> {
    let depths = product.in_features;
    let x = whole_numbers(spec.act, tokens, depths, PADDING, x_at);
    let weight = whole_numbers(spec.act, OUT_FEATURES, depths, 0, weight_at);
    let out = whole_numbers(spec.out, tokens, OUT_FEATURES, PADDING, before_at);
    let (x, weight, out) = (
        SelfTestMemory::with(driver, &x)?,
        SelfTestMemory::with(driver, &weight)?,
        SelfTestMemory::with(driver, &out)?,
    );
    let call = ProductCall {
        tokens,
        x: x.device(),
        x_stride: depths + PADDING,
        weight: weight.device(),
        out: out.device(),
        out_stride: OUT_FEATURES + PADDING,
        x_scales: 0,
        weight_scales: 0,
    };
    let stream = driver.create_stream()?;
    // SAFETY: live memory of the spec's sizes.
    let ran = unsafe { product.run(&call, 0, stream) };
    let ran = ran.and_then(|()| driver.synchronize(stream));
    // SAFETY: nothing uses it any more.
    unsafe { driver.destroy_stream(stream) };
    ran?;
    // SAFETY: the stream has been waited for.
    compare(spec, tokens, depths, unsafe { out.bytes() })
}

/// Whether `found` holds the product, and its padding what it held.
fn compare(spec: &ProductSpec, tokens: u32, depths: u32, found: &[u8]) -> Result<()> {
    let size = spec.out.bytes();
    let pitch = OUT_FEATURES + PADDING;
    for (place, bytes) in found.chunks_exact(size).enumerate() {
        let (token, row) = (place as u32 / pitch, place as u32 % pitch);
        let mut expected = 0;
        if row < OUT_FEATURES {
            expected = sum_at(token, row, depths);
            expected += if spec.accumulate { before_at(token, row) } else { 0 };
        }
        let (expected, value) = (expected as f32, value_of(spec.out, bytes));
        let near = (value - expected).abs() <= tolerance(spec.out, expected);
        if !near {
            return Err(Error::unsupported(format!(
                "products of {:?} matrices are wrong on this device: of {tokens} tokens, token {token} has {value} in \
                 place {row}, and {expected} is right",
                spec.act
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use halyard_gpu::self_test::whole_number;

    use super::*;

    #[test]
    fn one_wrong_number_is_found_and_a_rounded_one_is_not() {
        let spec = |out, accumulate| ProductSpec {
            in_features: IN_FEATURES,
            out_features: OUT_FEATURES,
            act: DType::BF16,
            weight: DType::BF16,
            out,
            accumulate,
            max_tokens: 16,
            scale_depth: 0,
            weight_blocks: false,
        };
        let exact: Vec<u8> = (0..5)
            .flat_map(|token| (0..OUT_FEATURES + PADDING).map(move |row| (token, row)))
            .flat_map(|(token, row)| {
                whole_number(
                    DType::F32,
                    if row < OUT_FEATURES {
                        sum_at(token, row, IN_FEATURES)
                    } else {
                        0
                    },
                )
            })
            .collect();
        compare(&spec(DType::F32, false), 5, IN_FEATURES, &exact).expect("the product");
        let error = compare(&spec(DType::F32, true), 5, IN_FEATURES, &exact).expect_err("nothing was added");
        assert!(error.message.contains("token 0"), "{}", error.message);
        let mut wrong = exact.clone();
        let at = 4 * (2 * (OUT_FEATURES + PADDING) as usize + 7);
        wrong[at..at + 4].copy_from_slice(&1e6f32.to_le_bytes());
        let error = compare(&spec(DType::F32, false), 5, IN_FEATURES, &wrong).expect_err("a wrong number");
        assert!(
            error.message.contains("token 2 has 1000000 in place 7"),
            "{}",
            error.message
        );
        let mut nan = exact;
        nan[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        compare(&spec(DType::F32, false), 5, IN_FEATURES, &nan).expect_err("not a number");
        assert!(tolerance(DType::BF16, 300.0) > 1.0 && tolerance(DType::F32, 300.0) < 1e-2);
    }
}
