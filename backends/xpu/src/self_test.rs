//! Self-test of products on matrix units, against numbers computed here. The lane layout is known from documents only,
//! and a wrong product would show only as bad model output. Small whole numbers, so that no sum depends on its order.

use halyard_gpu::self_test::{SelfTestMemory, sum_at, weight_at, whole_numbers, x_at};
use halyard_gpu::{Driver, Param, Tiling};
use halyard_kernels_gpu::LINEAR_TILED;
use halyard_platform_api::{DType, Error, Result};

/// Sizes of the product: no whole number of tiles; whole block reads, a rest of 16 depths and one of fewer.
const TOKENS: u32 = 70;
const IN_FEATURES: u32 = 152;
const OUT_FEATURES: u32 = 72;
/// Values between rows of x and of the output.
const PADDING: u32 = 2;
/// What the output holds before.
const BEFORE: f32 = 77.0;

/// Runs `linear_tiled` of 16-bit operands in each shape of `tiling`.
///
/// # Errors
/// `Unsupported` with the first number that is wrong, or the compiler's words; what the device reports.
pub(crate) fn check(driver: &dyn Driver, dtype: DType, tiling: &Tiling) -> Result<()> {
    let source = LINEAR_TILED;
    let name = if dtype == DType::BF16 { "bf16" } else { "f16" };
    let mut options = [("ACT", name), ("WEIGHT", name), ("OUT", "f32"), ("EPILOGUE", "0")]
        .map(|(name, value)| format!("-D{name}={value}"))
        .to_vec();
    options.extend(tiling.define.as_ref().map(|(name, value)| format!("-D{name}={value}")));
    let image = driver.compile(source.name, driver.kernel_text(source)?, &options)?;
    let function = driver.function(driver.load(&image)?, source.name, 0)?;
    let x = SelfTestMemory::with(driver, &whole_numbers(dtype, TOKENS, IN_FEATURES, PADDING, x_at))?;
    let weight = SelfTestMemory::with(driver, &whole_numbers(dtype, OUT_FEATURES, IN_FEATURES, 0, weight_at))?;
    let pitch = OUT_FEATURES + PADDING;
    for tile in tiling.tiles {
        let out = SelfTestMemory::with(driver, &BEFORE.to_le_bytes().repeat((TOKENS * pitch) as usize))?;
        let params = [
            Param::Ptr(x.device()),
            Param::Ptr(weight.device()),
            Param::Ptr(0),
            Param::Ptr(0),
            Param::Ptr(out.device()),
            Param::Word(IN_FEATURES + PADDING),
            Param::Word(0),
            Param::Word(pitch),
            Param::Word(TOKENS),
            Param::Word(OUT_FEATURES),
            Param::Word(IN_FEATURES),
        ];
        let grid = [OUT_FEATURES.div_ceil(64), TOKENS.div_ceil(tile.tokens), 1];
        let stream = driver.create_stream()?;
        // SAFETY: the parameters of `linear_tiled`; memory of their sizes that lives until the stream has been waited
        // for.
        let ran = unsafe { driver.launch(function, grid, [tile.threads, 1, 1], 0, &params, false, stream) };
        let ran = ran.and_then(|()| driver.synchronize(stream));
        // SAFETY: nothing uses it any more.
        unsafe { driver.destroy_stream(stream) };
        ran?;
        // SAFETY: the stream has been waited for.
        compare(dtype, unsafe { out.bytes() })?;
    }
    Ok(())
}

/// Whether `found` holds the product, and its padding what it held.
fn compare(dtype: DType, found: &[u8]) -> Result<()> {
    let pitch = OUT_FEATURES + PADDING;
    for (place, bytes) in found.chunks_exact(4).enumerate() {
        let (token, row) = (place as u32 / pitch, place as u32 % pitch);
        let expected = match row < OUT_FEATURES {
            true => sum_at(token, row, IN_FEATURES) as f32,
            false => BEFORE,
        };
        let value = bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        if value != expected {
            return Err(Error::unsupported(format!(
                "products of {dtype:?} matrices are wrong on this device: token {token} has {value} in place {row}, \
                 and {expected} is right"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_number_is_found_wherever_it_stands() {
        let pitch = OUT_FEATURES + PADDING;
        let places = (0..TOKENS).flat_map(|token| (0..pitch).map(move |row| (token, row)));
        let product = |(token, row): (u32, u32)| match row < OUT_FEATURES {
            true => sum_at(token, row, IN_FEATURES) as f32,
            false => BEFORE,
        };
        let right: Vec<u8> = places.flat_map(|place| product(place).to_le_bytes()).collect();
        compare(DType::F16, &right).expect("the product");
        for place in [0, 2 * pitch + 7, TOKENS * pitch - 1] {
            let mut wrong = right.clone();
            let at = 4 * place as usize;
            wrong[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            let error = compare(DType::F16, &wrong).expect_err("not a number");
            assert!(error.message.contains(&format!("token {} ", place / pitch)), "{error}");
        }
    }
}
