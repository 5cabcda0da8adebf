//! The instruction sets that kernels exist for, and which of them this CPU runs. Owns detection; never reads the
//! environment: a caller that wants to force one names it.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, on every CPU. The yardstick of the others.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2Fma,
    /// x86-64 with AVX-512 F, BW, DQ and VL, on top of AVX2.
    Avx512 {
        /// `vpdpbusd` for int8 dot products.
        vnni: bool,
        /// `vdpbf16ps` for bf16 dot products.
        bf16: bool,
    },
    /// All of AVX-512's, with matrix units for bf16 (AMX) that the system lets the process use.
    Amx,
    /// AArch64 with NEON, which every AArch64 CPU that runs Rust's std has.
    Neon,
}

impl Isa {
    /// Every variant, slowest first. `is_available` says which run here.
    pub const ALL: [Isa; 7] = [
        Isa::Portable,
        Isa::Neon,
        Isa::Avx2Fma,
        Isa::Avx512 {
            vnni: false,
            bf16: false,
        },
        Isa::Avx512 {
            vnni: true,
            bf16: false,
        },
        Isa::Avx512 { vnni: true, bf16: true },
        Isa::Amx,
    ];

    /// The fastest instruction set of this CPU, looked up once a process.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let mut best = Isa::Portable;
            for isa in Isa::ALL {
                if isa.is_available() {
                    best = isa;
                }
            }
            best
        })
    }

    /// Whether pairs of bf16 are multiplied at more than the rate of f32.
    pub fn has_bf16_dot(self) -> bool {
        matches!(self, Isa::Avx512 { bf16: true, .. } | Isa::Amx)
    }

    /// Whether there are matrix units for bf16.
    pub fn has_tiles(self) -> bool {
        self == Isa::Amx
    }

    /// Whether this CPU runs every instruction that the kernels of `self` may use.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            Isa::Avx2Fma => has_avx2(),
            Isa::Avx512 { vnni, bf16 } => {
                // No kernel set exists for bf16 without vnni: no CPU has that pair.
                has_avx512() && (!vnni || has_vnni()) && (!bf16 || (vnni && has_bf16()))
            }
            Isa::Amx => has_avx512() && has_vnni() && has_bf16() && has_amx(),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2Fma => "avx2+fma",
            Isa::Avx512 { vnni: false, .. } => "avx512",
            Isa::Avx512 {
                vnni: true,
                bf16: false,
            } => "avx512+vnni",
            Isa::Avx512 { vnni: true, bf16: true } => "avx512+vnni+bf16",
            Isa::Amx => "avx512+vnni+bf16+amx",
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_vnni() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn has_amx() -> bool {
    false
}

/// Whether the processor has tiles and their products of bf16, the system saves the registers, and lets this process
/// use them (asked once a process).
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// Bits of leaf 7's edx: tiles, and products of bf16.
    const FEATURES: u32 = 1 << 24 | 1 << 22;
    /// Leaf 1's ecx: the system has said which registers it saves.
    const OSXSAVE: u32 = 1 << 27;
    /// The tiles' shapes and data among the registers that the system saves.
    const SAVED: u64 = 1 << 17 | 1 << 18;

    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: register 0 exists where OSXSAVE is set, which the caller has seen.
        unsafe { _xgetbv(0) }
    }

    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 || __cpuid_count(7, 0).edx & FEATURES != FEATURES {
            return false;
        }
        // SAFETY: OSXSAVE implies the instruction.
        (unsafe { saved() }) & SAVED == SAVED && may_use_tiles()
    })
}

/// Asks Linux for the tile registers (arch_prctl, ARCH_REQ_XCOMP_PERM); an older kernel than 5.16 refuses.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: the call changes nothing but what this process may use; the kernel keeps all registers but these.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}
