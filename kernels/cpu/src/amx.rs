//! The tile registers (AMX) as functions: eight registers of 16 rows × 64 bytes, and products of bf16 between them with
//! f32 sums. Their instructions are written as text: the compiler has no stable names for them, and uses none of these
//! registers itself.

use std::arch::asm;

/// The shapes of the eight registers.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All of 16 rows of 64 bytes.
static WHOLE: Shapes = shapes([(16, 64); 8]);
/// Of products of bytes: four of sums, two of 16 tokens' bytes, two of as many quads of 16 rows of weights.
static BYTES: [Shapes; 2] = [bytes(8), bytes(4)];

const fn bytes(quads: u8) -> Shapes {
    let (sums, x, w) = ((16, 64), (16, 4 * quads as u16), (quads, 64));
    shapes([sums, sums, sums, sums, x, x, w, w])
}

/// (rows, bytes of a row) of each register.
const fn shapes(of: [(u8, u16); 8]) -> Shapes {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        (rows[i], row_bytes[i]) = of[i];
        i += 1;
    }
    Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes,
        rows,
    }
}

/// Takes the registers, each with all rows; [`release`] gives them back.
///
/// # Safety
/// The processor has them, and the system lets this process use them.
#[inline(always)]
pub(crate) unsafe fn take() {
    // SAFETY: the caller's promise; the shapes are read at once.
    unsafe { take_as(&WHOLE) };
}

/// Takes the registers for [`int8`]: units of 32 elements of K, or of 16.
///
/// # Safety
/// As [`take`].
#[inline(always)]
pub(crate) unsafe fn take_int8(halves: bool) {
    // SAFETY: the caller's promise.
    unsafe { take_as(&BYTES[usize::from(halves)]) };
}

/// # Safety
/// As [`take`].
#[inline(always)]
unsafe fn take_as(shapes: &'static Shapes) {
    // SAFETY: the caller's promise; the shapes are read at once.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const *shapes, options(nostack, readonly)) };
}

/// Gives them back, so that a switch of threads need not save them.
///
/// # Safety
/// As [`take`].
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Two tiles of tokens × two panels: sums of 32 × 32 at `sums`, which are gone on with where `goes_on` says so. The
/// weights are to stay in the first-level cache, which activations pass by; of what `next` points to, four lines a
/// block are asked for.
///
/// # Safety
/// The registers are taken; `blocks` tiles lie behind each of `x` and `w`. What is asked for need not exist.
#[inline(always)]
pub(crate) unsafe fn four(
    x: [*const u8; 2],
    w: [*const u8; 2],
    blocks: usize,
    sums: *mut [[f32; 32]; 32],
    goes_on: bool,
    next: *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "test {goes_on}, {goes_on}",
            "jz 2f",
            "tileloadd tmm0, [{to} + {row}*2]",
            "tileloadd tmm1, [{to} + {row}*2 + 64]",
            "tileloadd tmm2, [{to} + {row}*2 + 2048]",
            "tileloadd tmm3, [{to} + {row}*2 + 2112]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            "tileloaddt1 tmm4, [{x0} + {row}*1]",
            "tileloadd tmm6, [{w0} + {row}*1]",
            "tileloadd tmm7, [{w1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloaddt1 tmm5, [{x1} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "prefetcht1 [{next}]",
            "prefetcht1 [{next} + 64]",
            "prefetcht1 [{next} + 128]",
            "prefetcht1 [{next} + 192]",
            "add {x0}, 1024",
            "add {x1}, 1024",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "add {next}, 256",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {n}",
            "jnz 3b",
            "tilestored [{to} + {row}*2], tmm0",
            "tilestored [{to} + {row}*2 + 64], tmm1",
            "tilestored [{to} + {row}*2 + 2048], tmm2",
            "tilestored [{to} + {row}*2 + 2112], tmm3",
            x0 = inout(reg) x[0] => _,
            x1 = inout(reg) x[1] => _,
            w0 = inout(reg) w[0] => _,
            w1 = inout(reg) w[1] => _,
            n = inout(reg) blocks => _,
            next = inout(reg) next => _,
            row = in(reg) 64usize,
            to = in(reg) sums,
            goes_on = in(reg) usize::from(goes_on),
            options(nostack)
        );
    }
}

/// One tile of tokens × two panels, which come from memory: their lines are asked for `ahead` bytes ahead. Sums of 16 ×
/// 32 at `sums`.
///
/// # Safety
/// As [`four`].
#[inline(always)]
pub(crate) unsafe fn two(x: *const u8, w: [*const u8; 2], blocks: usize, sums: *mut [[f32; 32]; 16], ahead: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{x} + {row}*1]",
            "tileloadd tmm6, [{w0} + {row}*1]",
            ".irp o, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
            "prefetcht1 [{w0} + {ahead} + \\o]",
            ".endr",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{w1} + {row}*1]",
            ".irp o, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
            "prefetcht1 [{w1} + {ahead} + \\o]",
            ".endr",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {x}, 1024",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "dec {n}",
            "jnz 2b",
            "tilestored [{to} + {row}*2], tmm0",
            "tilestored [{to} + {row}*2 + 64], tmm1",
            x = inout(reg) x => _,
            w0 = inout(reg) w[0] => _,
            w1 = inout(reg) w[1] => _,
            n = inout(reg) blocks => _,
            row = in(reg) 64usize,
            to = in(reg) sums,
            ahead = in(reg) ahead,
            options(nostack)
        );
    }
}

/// Two products of signed bytes: `sums[i][token][row]` = Σ over a unit of x\[i\] · w\[i\]. Tokens' bytes are 32 apart,
/// quads of 16 rows of weights 64.
///
/// # Safety
/// The registers are taken by [`take_int8`]; 16 tokens' bytes lie behind each of `x`, a unit's quads behind each of
/// `w`, 2 × 16 × 16 sums at `sums`.
#[inline(always)]
pub(crate) unsafe fn int8(x: [*const u8; 2], w: [*const u8; 2], sums: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm4, [{x0} + {half}*1]",
            "tileloadd tmm6, [{w0} + {half}*2]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{x1} + {half}*1]",
            "tileloadd tmm7, [{w1} + {half}*2]",
            "tilezero tmm1",
            "tdpbssd tmm1, tmm5, tmm7",
            "tilestored [{to} + {half}*2], tmm0",
            "tilestored [{to} + {half}*2 + 1024], tmm1",
            x0 = in(reg) x[0],
            x1 = in(reg) x[1],
            w0 = in(reg) w[0],
            w1 = in(reg) w[1],
            to = in(reg) sums,
            half = in(reg) 32usize,
            options(nostack)
        );
    }
}

/// Four panels of keys: `scores[row][16·p + key]` = Σ over `blocks` blocks of 32 dimensions of q·k, rows of scores 256
/// bytes apart.
///
/// # Safety
/// The registers are taken; `blocks` tiles lie behind `q` and each of `keys`, 16 rows of 64 scores behind `scores`.
#[inline(always)]
pub(crate) unsafe fn scores(q: *const u8, keys: [*const u8; 4], blocks: usize, scores: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{q} + {row}*1]",
            "tileloadd tmm5, [{k0} + {row}*1]",
            "tileloadd tmm6, [{k1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm7, [{k2} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm5, [{k3} + {row}*1]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "add {q}, 1024",
            "add {k0}, 1024",
            "add {k1}, 1024",
            "add {k2}, 1024",
            "add {k3}, 1024",
            "dec {n}",
            "jnz 2b",
            "shl {row}, 2",
            "tilestored [{to} + {row}*1], tmm0",
            "tilestored [{to} + {row}*1 + 64], tmm1",
            "tilestored [{to} + {row}*1 + 128], tmm2",
            "tilestored [{to} + {row}*1 + 192], tmm3",
            q = inout(reg) q => _,
            k0 = inout(reg) keys[0] => _,
            k1 = inout(reg) keys[1] => _,
            k2 = inout(reg) keys[2] => _,
            k3 = inout(reg) keys[3] => _,
            n = inout(reg) blocks => _,
            row = inout(reg) 64usize => _,
            to = in(reg) scores,
            options(nostack)
        );
    }
}

/// 64 dimensions of values: `sums[row][d]` += Σ over 64 keys of weight · value. Rows of weights are 128 bytes apart,
/// rows of sums and of pairs of values `row_bytes`.
///
/// # Safety
/// The registers are taken; 16 rows of 64 weights in bf16 lie behind `weights`, 16 pairs of rows of values behind each
/// of `values`, 16 rows of sums behind `sums`.
#[inline(always)]
pub(crate) unsafe fn values(weights: *const u8, values: [*const u8; 2], row_bytes: usize, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm4, [{w} + {half}*1]",
            "tileloadd tmm5, [{w} + {half}*1 + 64]",
            "tileloadd tmm0, [{to} + {row}*1]",
            "tileloadd tmm6, [{v0} + {row}*1]",
            "tileloadd tmm7, [{v1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm1, [{to} + {row}*1 + 64]",
            "tdpbf16ps tmm0, tmm5, tmm7",
            "tileloadd tmm6, [{v0} + {row}*1 + 64]",
            "tileloadd tmm7, [{v1} + {row}*1 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm2, [{to} + {row}*1 + 128]",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tileloadd tmm6, [{v0} + {row}*1 + 128]",
            "tileloadd tmm7, [{v1} + {row}*1 + 128]",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tileloadd tmm3, [{to} + {row}*1 + 192]",
            "tdpbf16ps tmm2, tmm5, tmm7",
            "tileloadd tmm6, [{v0} + {row}*1 + 192]",
            "tileloadd tmm7, [{v1} + {row}*1 + 192]",
            "tdpbf16ps tmm3, tmm4, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tilestored [{to} + {row}*1], tmm0",
            "tilestored [{to} + {row}*1 + 64], tmm1",
            "tilestored [{to} + {row}*1 + 128], tmm2",
            "tilestored [{to} + {row}*1 + 192], tmm3",
            w = in(reg) weights,
            v0 = in(reg) values[0],
            v1 = in(reg) values[1],
            half = in(reg) 128usize,
            row = in(reg) row_bytes,
            to = in(reg) sums,
            options(nostack)
        );
    }
}
