//! Products on matrix units against numbers computed here, before they are used: which lane brings what is known from documents alone, and a wrong
//! product shows in nothing but the answers of a model. Small whole numbers, so that no sum depends on its order.

use halyard_gpu::{Driver, Param, Pinned, Source, Tiling};
use halyard_platform_api::{DType, Error, Result};

use crate::driver::OpenClDriver;

/// Sizes of the product: no whole number of tiles; whole block reads, a rest of 16 depths and one of fewer.
const TOKENS: u32 = 70;
const IN_FEATURES: u32 = 152;
const OUT_FEATURES: u32 = 72;
/// Values between rows of x and of the output.
const PADDING: u32 = 2;
/// What the output holds before.
const BEFORE: f32 = 77.0;

// Both change with the depth, and in no simple rhythm: sums over depths in a wrong order must differ.
fn x_at(token: u32, depth: u32) -> i32 {
    ((token * 5 + depth * 3 + depth / 7) % 7) as i32 - 3
}
fn weight_at(row: u32, depth: u32) -> i32 {
    ((row * 2 + depth * depth + depth / 5) % 5) as i32 - 2
}

/// A small whole number in 16 bits.
fn bits_of(dtype: DType, value: i32) -> u16 {
    let bits = (value as f32).to_bits();
    match dtype {
        // Both cut off nothing: 8 and 11 bits of a number below 8 are there.
        DType::BF16 => (bits >> 16) as u16,
        _ if value == 0 => 0,
        _ => (bits >> 16 & 0x8000 | ((bits >> 23 & 0xff) - 112) << 10 | bits >> 13 & 0x3ff) as u16,
    }
}

/// Rows of 16-bit numbers with padding between them.
fn matrix(dtype: DType, rows: u32, columns: u32, padding: u32, at: impl Fn(u32, u32) -> i32) -> Vec<u8> {
    let places = (0..rows).flat_map(|row| (0..columns + padding).map(move |column| (row, column)));
    let value = |(row, column)| if column < columns { at(row, column) } else { 0 };
    places
        .flat_map(|place| bits_of(dtype, value(place)).to_le_bytes())
        .collect()
}

/// Memory of the test, freed at its end.
struct Memory<'a> {
    driver: &'a OpenClDriver,
    pinned: Pinned,
    len: usize,
}

impl<'a> Memory<'a> {
    fn with(driver: &'a OpenClDriver, bytes: &[u8]) -> Result<Memory<'a>> {
        let pinned = driver.allocate_pinned(bytes.len() as u64)?;
        // SAFETY: fresh memory of that size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.host, bytes.len()) };
        let len = bytes.len();
        Ok(Memory { driver, pinned, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the work that wrote it has been waited for.
        unsafe { std::slice::from_raw_parts(self.pinned.host, self.len) }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { self.driver.free_pinned(self.pinned) };
    }
}

/// Runs `linear_tiled` of 16-bit operands in each shape of `tiling`.
///
/// # Errors
/// `Unsupported` with the first number that is wrong, or the compiler's words; what the device reports.
pub(crate) fn check(driver: &OpenClDriver, dtype: DType, tiling: &Tiling) -> Result<()> {
    let source = Source {
        name: "linear_tiled",
        text: "",
    };
    let name = if dtype == DType::BF16 { "bf16" } else { "f16" };
    let mut options = [("ACT", name), ("WEIGHT", name), ("OUT", "f32"), ("EPILOGUE", "0")]
        .map(|(name, value)| format!("-D{name}={value}"))
        .to_vec();
    options.extend(tiling.define.as_ref().map(|(name, value)| format!("-D{name}={value}")));
    let image = driver.compile(source.name, driver.kernel_text(source)?, &options)?;
    let function = driver.function(driver.load(&image)?, source.name, 0)?;
    let x = Memory::with(driver, &matrix(dtype, TOKENS, IN_FEATURES, PADDING, x_at))?;
    let weight = Memory::with(driver, &matrix(dtype, OUT_FEATURES, IN_FEATURES, 0, weight_at))?;
    let pitch = OUT_FEATURES + PADDING;
    for tile in tiling.tiles {
        let out = Memory::with(driver, &BEFORE.to_le_bytes().repeat((TOKENS * pitch) as usize))?;
        let params = [
            Param::Ptr(x.pinned.device),
            Param::Ptr(weight.pinned.device),
            Param::Ptr(0),
            Param::Ptr(0),
            Param::Ptr(out.pinned.device),
            Param::Word(IN_FEATURES + PADDING),
            Param::Word(0),
            Param::Word(pitch),
            Param::Word(TOKENS),
            Param::Word(OUT_FEATURES),
            Param::Word(IN_FEATURES),
        ];
        let grid = [OUT_FEATURES.div_ceil(64), TOKENS.div_ceil(tile.tokens), 1];
        let stream = driver.create_stream()?;
        // SAFETY: the parameters of `linear_tiled`; memory of their sizes that lives until the stream has been waited for.
        let ran = unsafe { driver.launch(function, grid, [tile.threads, 1, 1], 0, &params, false, stream) };
        let ran = ran.and_then(|()| driver.synchronize(stream));
        // SAFETY: nothing uses it any more.
        unsafe { driver.destroy_stream(stream) };
        ran?;
        compare(dtype, out.bytes())?;
    }
    Ok(())
}

/// Whether `found` holds the product, and its padding what it held.
fn compare(dtype: DType, found: &[u8]) -> Result<()> {
    let pitch = OUT_FEATURES + PADDING;
    for (place, bytes) in found.chunks_exact(4).enumerate() {
        let (token, row) = (place as u32 / pitch, place as u32 % pitch);
        let expected = match row < OUT_FEATURES {
            true => (0..IN_FEATURES)
                .map(|k| x_at(token, k) * weight_at(row, k))
                .sum::<i32>() as f32,
            false => BEFORE,
        };
        let value = bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        if value != expected {
            return Err(Error::unsupported(format!(
                "products of {dtype:?} matrices are wrong on this device: token {token} has {value} in place {row}, and {expected} is right"
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
            true => (0..IN_FEATURES)
                .map(|k| x_at(token, k) * weight_at(row, k))
                .sum::<i32>() as f32,
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

    #[test]
    fn depths_that_meet_in_a_wrong_order_show() {
        let sum = |order: &dyn Fn(u32) -> u32, token, row| -> i32 {
            (0..IN_FEATURES)
                .map(|k| x_at(token, order(k)) * weight_at(row, k))
                .sum()
        };
        for bit in [1, 2, 4, 8] {
            let swapped = (0..TOKENS).filter(|&token| sum(&|k| k ^ bit, token, 3) != sum(&|k| k, token, 3));
            assert!(swapped.count() > TOKENS as usize / 2, "neighbours at {bit}");
        }
    }

    #[test]
    fn numbers_keep_their_value_in_16_bits() {
        for (value, f16, bf16) in [
            (0, 0, 0),
            (1, 0x3c00, 0x3f80),
            (-3, 0xc200, 0xc040),
            (2, 0x4000, 0x4000),
        ] {
            assert_eq!(bits_of(DType::F16, value), f16);
            assert_eq!(bits_of(DType::BF16, value), bf16);
        }
    }
}
