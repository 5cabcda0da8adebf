//! Self-test at load: runs prompts' attention on matrix units and the plain kernel on the same inputs and compares
//! them. The lane layout is known from vendors' documents only, and these compilers are young. A wrong kernel would
//! show only as bad model output.

use halyard_platform_api::ops::Attention;
use halyard_platform_api::{DType, Error, Result};

use super::call::block_bytes;
use super::launch::{TILE_THREADS, WARPS, plain_blocks, tile_blocks};
use crate::driver::{Driver, Function, Param};
use crate::self_test::{SelfTestMemory, value_of, whole_number};

/// Query heads, and KV heads that they share.
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
/// Where each sequence's tokens start, and where the last one's end: two share a tile, whose first is a part of its
/// prompt.
const STARTS: [u32; 3] = [0, 21, 81];
const TOKENS: u32 = STARTS[2];
/// Their keys.
const SEQ_LENS: [u32; 2] = [50, 60];
/// Windows and softcaps of the calls; 0: none.
const CALLS: [(u32, f32); 2] = [(0, 0.0), (20, 3.0)];
/// Values between tokens of queries and results: 16 bytes.
const PADDING: u32 = 8;
/// Fill values of the outputs before each run. They are outside the result range, so an unwritten element is detected.
const BEFORE: [i32; 2] = [15, -15];

/// Whole numbers from -4 to 3 in no order, whose products and sums are exact: values of tokens that changed places must
/// show.
fn number_at(index: u32, salt: u32) -> i32 {
    let mixed = (index ^ salt).wrapping_mul(0x9E37_79B1);
    ((mixed ^ mixed >> 15).wrapping_mul(0x85EB_CA6B) >> 29) as i32 - 4
}

fn numbers(dtype: DType, count: u32, salt: u32) -> Vec<u8> {
    (0..count)
        .flat_map(|i| whole_number(dtype, number_at(i, salt)))
        .collect()
}

fn words(all: impl IntoIterator<Item = u32>) -> Vec<u8> {
    all.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn pitch(spec: &Attention) -> u32 {
    HEADS * spec.head_dim + PADDING
}

/// How far two right results may be apart: weights, up to 1, and results, up to 4, are rounded to the type, and some
/// kernels cut off.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 1.0 / 16.0,
        _ => 1.0 / 64.0,
    }
}

/// Device memory of the calls.
struct Call<'a> {
    driver: &'a dyn Driver,
    act: DType,
    head_dim: u32,
    /// From token to token of queries and results, values.
    pitch: u32,
    page_bytes: u64,
    /// Pages of a row of the table.
    pages: u32,
    q: SelfTestMemory<'a>,
    cache: SelfTestMemory<'a>,
    table: SelfTestMemory<'a>,
    rows: SelfTestMemory<'a>,
    starts: SelfTestMemory<'a>,
    lens: SelfTestMemory<'a>,
}

impl<'a> Call<'a> {
    fn new(driver: &'a dyn Driver, spec: &Attention) -> Result<Call<'a>> {
        let page_bytes = block_bytes(spec.kv, KV_HEADS, spec.head_dim, spec.block_size);
        let pages = SEQ_LENS[1].div_ceil(spec.block_size);
        let values = 2 * pages * (page_bytes / spec.kv.bytes() as u64) as u32;
        let pitch = pitch(spec);
        Ok(Call {
            driver,
            act: spec.act,
            head_dim: spec.head_dim,
            pitch,
            page_bytes,
            pages,
            q: SelfTestMemory::with(driver, &numbers(spec.act, TOKENS * pitch, 0x5bd1))?,
            cache: SelfTestMemory::with(driver, &numbers(spec.kv, values, 0x27d4))?,
            // Pages and rows out of order.
            table: SelfTestMemory::with(driver, &words((0..2 * pages).rev()))?,
            rows: SelfTestMemory::with(driver, &words([1, 0]))?,
            starts: SelfTestMemory::with(driver, &words(STARTS))?,
            lens: SelfTestMemory::with(driver, &words(SEQ_LENS))?,
        })
    }

    /// What `function` makes of it.
    fn result(
        &self,
        function: Function,
        grid: [u32; 3],
        threads: u32,
        before: i32,
        call: (u32, f32),
    ) -> Result<Vec<f32>> {
        let empty = whole_number(self.act, before).repeat((TOKENS * self.pitch) as usize);
        let out = SelfTestMemory::with(self.driver, &empty)?;
        // Scores as far apart as those of a trained model's heads: some keys count, none alone.
        let scale = 0.3 / (self.head_dim as f32).sqrt();
        let params = [
            Param::Ptr(self.q.device()),
            Param::Word(self.pitch),
            Param::Word(self.head_dim),
            Param::Ptr(self.cache.device()),
            Param::Long(self.page_bytes),
            Param::Ptr(self.table.device()),
            Param::Word(self.pages),
            Param::Ptr(self.rows.device()),
            Param::Ptr(self.starts.device()),
            Param::Ptr(self.lens.device()),
            Param::Ptr(0),
            Param::Ptr(out.device()),
            Param::Word(self.pitch),
            Param::Word(self.head_dim),
            Param::Word(TOKENS),
            Param::Word(SEQ_LENS.len() as u32),
            Param::Word(HEADS),
            Param::Word(HEADS / KV_HEADS),
            Param::Word(scale.to_bits()),
            Param::Word(call.1.to_bits()),
            Param::Word(call.0),
        ];
        let stream = self.driver.create_stream()?;
        // SAFETY: the parameters of attention kernels; memory of their sizes that lives until the stream has been
        // waited for.
        let ran = unsafe {
            self.driver
                .launch(function, grid, [threads, 1, 1], 0, &params, false, stream)
        };
        let ran = ran.and_then(|()| self.driver.synchronize(stream));
        // SAFETY: nothing uses it any more.
        unsafe { self.driver.destroy_stream(stream) };
        ran?;
        // SAFETY: the stream has been waited for.
        let bytes = unsafe { out.bytes() };
        Ok(bytes
            .chunks_exact(self.act.bytes())
            .map(|bytes| value_of(self.act, bytes))
            .collect())
    }
}

/// Runs `tiles`, of the types and sizes of `spec`, and `plain` on the same queries and keys.
///
/// # Errors
/// `Unsupported` with the first number that is wrong; what the device reports.
pub fn attention(driver: &dyn Driver, plain: Function, tiles: Function, spec: &Attention) -> Result<()> {
    let memory = Call::new(driver, spec)?;
    let plain_grid = [plain_blocks(TOKENS, HEADS), 1, 1];
    let tiles_grid = tile_blocks(TOKENS, HEADS);
    for call in CALLS {
        let expected = memory.result(plain, plain_grid, WARPS * 32, BEFORE[0], call)?;
        let found = memory.result(tiles, tiles_grid, TILE_THREADS, BEFORE[1], call)?;
        compare(spec, &expected, &found)?;
    }
    Ok(())
}

/// Whether both are the same attention, and the places between tokens what they were.
fn compare(spec: &Attention, expected: &[f32], found: &[f32]) -> Result<()> {
    for (place, (&expected, &found)) in expected.iter().zip(found).enumerate() {
        let (token, value) = (place as u32 / pitch(spec), place as u32 % pitch(spec));
        let right = match value < HEADS * spec.head_dim {
            // A NaN is near nothing.
            true => (expected - found).abs() <= tolerance(spec.act),
            false => found == BEFORE[1] as f32,
        };
        if !right {
            let head = value / spec.head_dim;
            return Err(Error::unsupported(format!(
                "token {token} has {found} in place {} of head {head}, and {expected} is right",
                value % spec.head_dim
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(act: DType) -> Attention {
        Attention {
            head_dim: 64,
            act,
            kv: act,
            ..super::super::tests::spec()
        }
    }

    /// Results as kernels would write them, with `before` in the padding.
    fn results(spec: &Attention, before: i32) -> Vec<f32> {
        let value = |i: u32| match i % pitch(spec) < HEADS * spec.head_dim {
            true => number_at(i, 3) as f32 / 2.0,
            false => before as f32,
        };
        (0..TOKENS * pitch(spec)).map(value).collect()
    }

    #[test]
    fn one_wrong_number_is_found_wherever_it_stands_and_a_rounded_one_is_not() {
        for act in [DType::F16, DType::BF16] {
            let spec = spec(act);
            let (expected, right) = (results(&spec, BEFORE[0]), results(&spec, BEFORE[1]));
            let rounded: Vec<f32> = right
                .iter()
                .map(|value| if *value == -15.0 { *value } else { value * 1.003 })
                .collect();
            compare(&spec, &expected, &right).expect("the same");
            compare(&spec, &expected, &rounded).expect("rounded");
            for place in [
                0,
                2 * pitch(&spec) + 65,
                TOKENS * pitch(&spec) - PADDING - 1,
                TOKENS * pitch(&spec) - 1,
            ] {
                for wrong in [f32::NAN, right[place as usize] + 0.1, BEFORE[1] as f32 + 0.5] {
                    let mut found = right.clone();
                    found[place as usize] = wrong;
                    let error = compare(&spec, &expected, &found).expect_err("wrong");
                    assert!(
                        error.message.contains(&format!("token {} ", place / pitch(&spec))),
                        "{error}"
                    );
                }
            }
            let error = compare(&spec, &expected, &expected).expect_err("the padding is another's");
            assert!(error.message.contains("token 0 has 15"), "{error}");
        }
    }

    #[test]
    fn places_that_no_kernel_writes_show() {
        let spec = spec(DType::F16);
        let all = |value: i32| vec![value as f32; (TOKENS * pitch(&spec)) as usize];
        compare(&spec, &all(BEFORE[0]), &all(BEFORE[1])).expect_err("nothing was written");
    }

    #[test]
    fn queries_and_keys_are_whole_numbers_of_every_size_in_no_order() {
        let numbers: Vec<i32> = (0..4096).map(|i| number_at(i, 0x5bd1)).collect();
        for value in -4..4 {
            let count = numbers.iter().filter(|number| **number == value).count();
            assert!((400..640).contains(&count), "{value}: {count} times");
        }
        // Values of neighbours, of rows of eight, of whole heads that changed places.
        for apart in [1usize, 2, 4, 8, 16, 64, 128, 512, 1024] {
            let same = (0..4096 - apart).filter(|i| numbers[*i] == numbers[i + apart]).count();
            assert!(same * 4 < 4096 - apart, "{apart} apart: {same}");
        }
    }
}
