//! Chooses the library's algorithm for a product by the number of tokens. The library's best few are timed on buffers
//! like the real ones, and the choice is kept on disk for the next start.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cudarc::cublaslt::sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS;
use cudarc::driver::sys as cuda;
use halyard_gpu::{DevicePtr, Driver, ProductCall, ProductSpec, Stream, write_whole};
use halyard_platform_api::{Error, Result, Status};
use sha2::{Digest, Sha256};

use crate::error::check;
use crate::product::{Algo, LtProduct, WORKSPACE_BYTES, alignment};

/// Candidates that are timed.
const CANDIDATES: usize = 6;
/// Timed runs of each.
const RUNS: u32 = 5;
/// Runs of a candidate whose first took longer than this are cut short, milliseconds.
const LONG: f32 = 1.0;
/// Weights rotate through this much memory, so that they come from it as in a model and not from the cache.
const ROTATION_BYTES: u64 = 192 << 20;
/// Another candidate must be better than the library's first by this factor: less is noise.
const MARGIN: f32 = 0.97;

/// Token counts with an algorithm of their own, up to `most`: multiples of `step`, as `most` is.
fn buckets(most: u32, step: u32) -> Vec<u32> {
    let mut buckets = vec![
        1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    ];
    let mut next = 4096u32;
    while next < most {
        buckets.push(next);
        next = next.saturating_mul(2);
    }
    buckets.retain(|&tokens| tokens < most);
    buckets.push(most.max(1));
    for tokens in &mut buckets {
        *tokens = tokens.next_multiple_of(step);
    }
    buckets.dedup();
    buckets
}

/// The algorithm of each bucket: from disk, or by time.
pub(crate) fn choose(driver: &dyn Driver, product: &LtProduct) -> Result<Vec<(u32, Algo)>> {
    let file = file(product);
    if let Some(choices) = file.as_deref().and_then(|file| read(file, product)) {
        return Ok(choices);
    }
    let (choices, timed) = match Bench::new(driver, product.spec()) {
        Ok(bench) => (measure(product, Some(&bench))?, true),
        // Too little memory to measure: use the library's ranking; the next start may measure.
        Err(error) if error.status == Status::OutOfMemory => (measure(product, None)?, false),
        Err(error) => return Err(error),
    };
    if let Some(file) = file.filter(|_| timed) {
        write(&file, product, &choices);
    }
    Ok(choices)
}

fn measure(product: &LtProduct, bench: Option<&Bench<'_>>) -> Result<Vec<(u32, Algo)>> {
    let spec = product.spec();
    let mut choices = Vec::new();
    for tokens in buckets(spec.max_tokens, spec.token_step()) {
        let shapes = product.shapes(tokens, spec.in_features, spec.out_features)?;
        let candidates = product.candidates(&shapes, alignment(spec), CANDIDATES)?;
        let mut best: Option<(f32, Algo)> = None;
        for algo in candidates {
            let time = match bench {
                Some(bench) => bench.time(product, &shapes, tokens, &algo)?,
                None => Some(f32::MAX),
            };
            // The first stays unless a later one is clearly better.
            if let Some(time) = time
                && best.is_none_or(|(least, _)| time < least * MARGIN)
            {
                best = Some((time, algo));
            }
        }
        choices.extend(best.map(|(_, algo)| (tokens, algo)));
    }
    Ok(choices)
}

/// Memory, stream and events for timing.
struct Bench<'a> {
    driver: &'a dyn Driver,
    stream: Stream,
    /// All of it: weights, x, out, workspace.
    memory: DevicePtr,
    weights: u64,
    copies: u64,
    x: DevicePtr,
    out: DevicePtr,
    workspace: DevicePtr,
    /// Of tokens and rows alike.
    scales: DevicePtr,
    events: [cuda::CUevent; 2],
}

impl<'a> Bench<'a> {
    fn new(driver: &'a dyn Driver, spec: &ProductSpec) -> Result<Bench<'a>> {
        let aligned = |elements: u64, bytes: usize| (elements * bytes as u64).next_multiple_of(256);
        let (k, n, t) = (
            u64::from(spec.in_features),
            u64::from(spec.out_features),
            u64::from(spec.max_tokens.max(1)),
        );
        let weights = aligned(k * n, spec.weight.bytes());
        let copies = (ROTATION_BYTES / weights.max(1)).clamp(1, 64);
        let (x, out) = (aligned(t * k, spec.act.bytes()), aligned(t * n, spec.out.bytes()));
        let depths = match spec.scale_depth {
            0 => 1,
            depth => k.div_ceil(u64::from(depth)),
        };
        let scales = aligned(t.max(n) * depths, size_of::<f32>());
        let total = weights * copies + x + out + WORKSPACE_BYTES + scales;
        let stream = driver.create_stream()?;
        let memory = driver.allocate(total).inspect_err(|_| {
            // SAFETY: just made, never used.
            unsafe { driver.destroy_stream(stream) };
        })?;
        let mut bench = Bench {
            driver,
            stream,
            memory,
            weights,
            copies,
            x: memory + weights * copies,
            out: memory + weights * copies + x,
            workspace: memory + weights * copies + x + out,
            scales: memory + weights * copies + x + out + WORKSPACE_BYTES,
            events: [std::ptr::null_mut(); 2],
        };
        for event in &mut bench.events {
            // SAFETY: the output is live; flag 0 keeps times.
            check("cuEventCreate", unsafe { cuda::cuEventCreate(event, 0) })?;
        }
        // Any numbers but zeros, which draw less power and run faster: 0x3c3c is 0.0115 in bf16 and 1.06 in f16.
        // SAFETY: the bench's own memory.
        unsafe { driver.fill(memory, 0x3c, total, stream)? };
        driver.synchronize(stream)?;
        Ok(bench)
    }

    /// Milliseconds of a run; `None` when the library refuses the algorithm after all.
    fn time(
        &self,
        product: &LtProduct,
        shapes: &crate::product::Shapes,
        tokens: u32,
        algo: &Algo,
    ) -> Result<Option<f32>> {
        let spec = product.spec();
        let run = |i: u64| {
            let call = ProductCall {
                tokens,
                x: self.x,
                x_stride: spec.in_features,
                weight: self.memory + i % self.copies * self.weights,
                out: self.out,
                out_stride: spec.out_features,
                x_scales: self.scales,
                weight_scales: self.scales,
            };
            // SAFETY: the bench's own memory, of the spec's sizes.
            unsafe { product.run_with(shapes, algo, &call, self.workspace, self.stream) }
        };
        let stream = self.stream.0 as cuda::CUstream;
        let timed = |first: u64, runs: u32| -> Result<Option<f32>> {
            // SAFETY: live events and stream; the output is live.
            unsafe {
                check("cuEventRecord", cuda::cuEventRecord(self.events[0], stream))?;
                for i in 0..u64::from(runs) {
                    if run(first + i) != CUBLAS_STATUS_SUCCESS {
                        self.driver.synchronize(self.stream)?;
                        return Ok(None);
                    }
                }
                check("cuEventRecord", cuda::cuEventRecord(self.events[1], stream))?;
                check("cuEventSynchronize", cuda::cuEventSynchronize(self.events[1]))?;
                Ok(Some(elapsed(self.events)? / runs as f32))
            }
        };
        // The first also loads the code.
        if timed(0, 1)?.is_none() {
            return Ok(None);
        }
        let Some(once) = timed(1, 1)? else { return Ok(None) };
        if once > LONG {
            return Ok(Some(once));
        }
        // The better of two: this thread may lose its core to a compiler meanwhile.
        let (Some(first), Some(second)) = (timed(2, RUNS)?, timed(2 + u64::from(RUNS), RUNS)?) else {
            return Ok(None);
        };
        Ok(Some(first.min(second)))
    }
}

/// Milliseconds between two events. Looked up by its old name, which every driver has; the bindings know only the new
/// one.
fn elapsed(events: [cuda::CUevent; 2]) -> Result<f32> {
    type Elapsed = unsafe extern "C" fn(*mut f32, cuda::CUevent, cuda::CUevent) -> cuda::CUresult;
    let mut time = 0.0;
    // SAFETY: the driver is up, the symbol has this type, and the events are live.
    unsafe {
        let found = cuda::culib().get::<Elapsed>(b"cuEventElapsedTime");
        let function = found.map_err(|e| Error::new(Status::Unavailable, format!("libcuda lacks a function: {e}")))?;
        check("cuEventElapsedTime", function(&mut time, events[0], events[1]))?;
    }
    Ok(time)
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // Whatever the outcome, nothing runs afterwards.
        let _ = self.driver.synchronize(self.stream);
        // SAFETY: made in `new`, and idle.
        unsafe {
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                cuda::cuEventDestroy_v2(event);
            }
            self.driver.free(self.memory);
            self.driver.destroy_stream(self.stream);
        }
    }
}

/// The facts for which a choice is valid.
fn title(product: &LtProduct) -> String {
    let spec = ProductSpec {
        accumulate: false,
        ..*product.spec()
    };
    // Files of before there were depths and blocks are good where there are none.
    let spec = format!("{spec:?}")
        .replace(", weight_blocks: false", "")
        .replace(", scale_depth: 0", "");
    format!(
        "halyard products 1\n{}\n{spec}\n{CANDIDATES} candidates, {WORKSPACE_BYTES} bytes of workspace\n",
        product.products().basis
    )
}

fn file(product: &LtProduct) -> Option<PathBuf> {
    let hash = Sha256::digest(title(product));
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(product.products().folder.as_ref()?.join(hex + ".products"))
}

/// The choices as text: the title, then tokens and the algorithm's words a line, then the hash of all that.
fn render(title: &str, choices: &[(u32, Algo)]) -> String {
    let mut text = title.to_string();
    for (tokens, algo) in choices {
        // Writing to a string cannot fail.
        let _ = write!(text, "{tokens}");
        for word in algo.data {
            let _ = write!(text, " {word:x}");
        }
        text.push('\n');
    }
    let hash = Sha256::digest(&text);
    let _ = writeln!(
        text,
        "{}",
        hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    );
    text
}

/// The choices in a text; `None` unless it is whole and for this title.
fn parse(title: &str, text: &str) -> Option<Vec<(u32, Algo)>> {
    let mut choices = Vec::new();
    let lines: Vec<&str> = text.strip_prefix(title)?.lines().collect();
    for line in &lines[..lines.len().checked_sub(1)?] {
        let mut words = line.split(' ');
        let tokens = words.next()?.parse().ok()?;
        let mut algo = Algo { data: [0; 8] };
        for word in &mut algo.data {
            *word = u64::from_str_radix(words.next()?, 16).ok()?;
        }
        choices.push((tokens, algo));
    }
    (!choices.is_empty() && render(title, &choices) == text).then_some(choices)
}

fn read(file: &Path, product: &LtProduct) -> Option<Vec<(u32, Algo)>> {
    let choices = parse(&title(product), &std::fs::read_to_string(file).ok()?)?;
    let spec = product.spec();
    // The library has the last word: words of another build would be run as they are.
    let sound = choices.iter().all(|(tokens, algo)| {
        product
            .shapes(*tokens, spec.in_features, spec.out_features)
            .is_ok_and(|shapes| product.accepts(&shapes, algo))
    });
    sound.then_some(choices)
}

/// Best effort: a choice that is not kept is made again.
fn write(file: &Path, product: &LtProduct, choices: &[(u32, Algo)]) {
    write_whole(file, render(&title(product), choices).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_the_most_tokens() {
        assert_eq!(buckets(1, 1), [1]);
        assert_eq!(buckets(33, 1), [1, 8, 16, 32, 33]);
        assert_eq!(buckets(20000, 1)[16..], [3072, 4096, 8192, 16384, 20000]);
        assert_eq!(buckets(4, 4), [4]);
        assert_eq!(buckets(36, 4), [4, 8, 16, 32, 36]);
    }

    #[test]
    fn kept_choices_come_back_and_damaged_ones_do_not() {
        let algo = |seed: u64| Algo {
            data: std::array::from_fn(|i| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + i as u64),
        };
        let choices = vec![(1, algo(3)), (64, algo(5))];
        let text = render("title\n", &choices);
        let back = parse("title\n", &text).expect("whole");
        assert_eq!(back.len(), 2);
        assert!(
            back.iter()
                .zip(&choices)
                .all(|(a, b)| a.0 == b.0 && a.1.data == b.1.data)
        );
        assert!(parse("other\n", &text).is_none());
        for at in [8, text.len() / 2, text.len() - 3] {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(parse("title\n", &String::from_utf8(bytes).unwrap()).is_none(), "{at}");
            assert!(parse("title\n", &text[..at]).is_none(), "{at}");
        }
    }
}
