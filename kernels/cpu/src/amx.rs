//! The tile registers (AMX) as functions: eight registers of 16 rows × 64 bytes, and products of bf16 between them with
//! f32 sums. Their instructions are written as text: the compiler has no stable names for them, and uses none of these
//! registers itself.

use std::arch::asm;

/// The shapes of the eight registers: all of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPES: Shapes = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        (row_bytes[i], rows[i]) = (64, 16);
        i += 1;
    }
    Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes,
        rows,
    }
};

/// Takes the registers, each with all rows; [`release`] gives them back.
///
/// # Safety
/// The processor has them, and the system lets this process use them.
#[inline(always)]
pub(crate) unsafe fn take() {
    // SAFETY: the caller's promise; the shapes are read at once.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) };
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

/// Two tiles of tokens × two panels: sums of 32 × 32 at `sums`, which are gone on with where `goes_on` says so. Lines
/// of activations are asked for two blocks ahead, and four lines a block of what `next` points to.
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
            "tileloadd tmm4, [{x0} + {row}*1]",
            "tileloadd tmm6, [{w0} + {row}*1]",
            "tileloadd tmm7, [{w1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ".irp o, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
            "prefetcht0 [{x0} + 2048 + \\o]",
            ".endr",
            "tileloadd tmm5, [{x1} + {row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            ".irp o, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
            "prefetcht0 [{x1} + 2048 + \\o]",
            ".endr",
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
