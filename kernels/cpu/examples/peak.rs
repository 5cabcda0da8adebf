//! Measures the processor's peak arithmetic: multiplications and additions per second of all threads together, for f32,
//! bf16 and int8, from chains of instructions that use no memory. `halyard-bench compare --peak-gops` takes it.
//!
//! `cargo run --release -p halyard-kernels-cpu --example peak`

#[cfg(target_arch = "x86_64")]
fn main() {
    use x86::{bf16, bytes_avx2, f32s, f32s_avx2, int8, tiles};
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: AVX2 and FMA are there.
        report("f32 of AVX2", 2 * 8, || unsafe { f32s_avx2() });
        // SAFETY: AVX2 is there.
        report("bytes of AVX2, pairs summed in 16 bits", 2 * 32, || unsafe {
            bytes_avx2()
        });
    }
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: AVX-512 F is there.
        report("f32", 2 * 16, || unsafe { f32s() });
    }
    if is_x86_feature_detected!("avx512bf16") {
        // SAFETY: AVX-512 BF16, and F with it, is there.
        report("bf16", 2 * 32, || unsafe { bf16() });
    }
    if halyard_kernels_cpu::Isa::Amx.is_available() {
        // SAFETY: the tiles are there, and the system lets this process use them.
        report("bf16 of AMX", 2 * 16 * 16 * 32, || unsafe { tiles() });
    }
    if is_x86_feature_detected!("avx512vnni") {
        // SAFETY: AVX-512 VNNI, and F with it, is there.
        report("int8", 2 * 64, || unsafe { int8() });
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("only x86-64 is measured");
}

/// Rounds of a measurement, by what one instruction does.
#[cfg(target_arch = "x86_64")]
fn rounds(ops: usize) -> usize {
    if ops > 1024 { x86::TILE_ROUNDS } else { x86::ROUNDS }
}

/// Runs `work` on every thread and prints the best of five.
#[cfg(target_arch = "x86_64")]
fn report(name: &str, ops: usize, work: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut best = 0f64;
    for _ in 0..5 {
        let start = std::time::Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(&work);
            }
        });
        best = best.max((threads * ops * x86::CHAINS * rounds(ops)) as f64 / start.elapsed().as_secs_f64());
    }
    println!("{name}: {:.0} GOP/s on {threads} threads", best / 1e9);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Sums side by side, more than an instruction's latency.
    pub const CHAINS: usize = 12;
    pub const ROUNDS: usize = 20_000_000;
    /// The same for tiles, each of which does as much as a hundred vectors.
    pub const TILE_ROUNDS: usize = ROUNDS / 20;

    /// Products of tiles, four sums side by side.
    ///
    /// # Safety
    /// The processor has tiles that the system lets this process use.
    pub unsafe fn tiles() {
        let mut shapes = [0u8; 64];
        shapes[0] = 1;
        for i in 0..8 {
            (shapes[16 + 2 * i], shapes[48 + i]) = (64, 16);
        }
        // SAFETY: the caller's promise; the registers are given back.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{shapes}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tilezero tmm4",
                "tilezero tmm5",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tdpbf16ps tmm1, tmm4, tmm5",
                "tdpbf16ps tmm2, tmm4, tmm5",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "dec {n}",
                "jnz 2b",
                "tilerelease",
                shapes = in(reg) shapes.as_ptr(),
                n = inout(reg) TILE_ROUNDS * CHAINS / 4 => _,
                options(nostack)
            );
        }
    }

    macro_rules! chains {
        ($name:ident, $features:literal, $zero:expr, $x:expr, $step:ident) => {
            #[target_feature(enable = $features)]
            pub fn $name() {
                let x = black_box($x);
                let mut sums = [black_box($zero); CHAINS];
                for _ in 0..ROUNDS {
                    // Written out: a loop would keep the sums in memory.
                    let [a, b, c, d, e, f, g, h, i, j, k, l] = sums;
                    sums = [
                        $step(a, x, x),
                        $step(b, x, x),
                        $step(c, x, x),
                        $step(d, x, x),
                        $step(e, x, x),
                        $step(f, x, x),
                        $step(g, x, x),
                        $step(h, x, x),
                        $step(i, x, x),
                        $step(j, x, x),
                        $step(k, x, x),
                        $step(l, x, x),
                    ];
                }
                black_box(sums);
            }
        };
    }

    #[target_feature(enable = "avx512f")]
    fn fma(sum: __m512, a: __m512, b: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, sum)
    }

    chains!(f32s, "avx512f", _mm512_setzero_ps(), _mm512_set1_ps(1e-4), fma);
    chains!(
        int8,
        "avx512f,avx512vnni",
        _mm512_setzero_si512(),
        _mm512_set1_epi32(0x0102_0304),
        _mm512_dpbusd_epi32
    );

    #[target_feature(enable = "avx2,fma")]
    fn fma_avx2(sum: __m256, a: __m256, b: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, sum)
    }

    /// What takes the place of a dot product of bytes; its factors change with the sums, or one product would serve all
    /// chains.
    #[target_feature(enable = "avx2")]
    fn bytes(sum: __m256i, a: __m256i, _: __m256i) -> __m256i {
        _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, sum))
    }

    chains!(
        f32s_avx2,
        "avx2,fma",
        _mm256_setzero_ps(),
        _mm256_set1_ps(1e-4),
        fma_avx2
    );
    chains!(bytes_avx2, "avx2", _mm256_set1_epi8(1), _mm256_set1_epi8(3), bytes);

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn dot_bf16(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: both types are 64 bytes of plain bits.
        let (a, b) = unsafe {
            (
                std::mem::transmute::<__m512i, __m512bh>(a),
                std::mem::transmute::<__m512i, __m512bh>(b),
            )
        };
        _mm512_dpbf16_ps(sum, a, b)
    }

    chains!(
        bf16,
        "avx512f,avx512bf16",
        _mm512_setzero_ps(),
        _mm512_set1_epi32(0x3c00_3c00),
        dot_bf16
    );
}
