//! The GPUs whose kernels are compiled ahead: one of each number of multiprocessors that people serve on, as some
//! kernels are chosen by it. Numbers are the vendor's data sheets'.

use halyard_cuda::arch;
use halyard_gpu::Facts;

const KIB: u32 = 1 << 10;
/// Shared memory that a block may ask for, by compute capability (CUDA C++ Programming Guide, technical
/// specifications).
const fn max_shared_bytes(capability: u32) -> u32 {
    match capability {
        80 => 163 * KIB,
        86 | 89 | 120 => 99 * KIB,
        _ => 227 * KIB,
    }
}

/// Name, compute capability, multiprocessors, second-level cache in MB, memory in GB.
const DEVICES: [(&str, u32, u32, u64, u64); 14] = [
    ("A100", 80, 108, 40, 80),
    ("A30", 80, 56, 24, 24),
    ("A10", 86, 72, 6, 24),
    ("RTX 3090", 86, 82, 6, 24),
    ("RTX A6000", 86, 84, 6, 48),
    ("L4", 89, 58, 48, 24),
    ("RTX 4090", 89, 128, 72, 24),
    ("L40S", 89, 142, 96, 48),
    ("H100 PCIe", 90, 114, 50, 80),
    ("H100 and H200 SXM", 90, 132, 50, 141),
    ("B200", 100, 148, 126, 180),
    ("RTX 5080", 120, 84, 64, 16),
    ("RTX 5090", 120, 170, 96, 32),
    ("RTX PRO 6000", 120, 188, 128, 96),
];

/// Facts of each, as its driver would say them.
pub fn all() -> Vec<Facts> {
    let facts = |&(name, capability, num_sms, l2_mb, memory_gb): &(&str, u32, u32, u64, u64)| Facts {
        name: name.to_string(),
        detail: String::new(),
        arch: arch(capability),
        capability,
        num_sms,
        warp_size: 32,
        matrix_units: true,
        struct_params: true,
        max_shared_bytes: max_shared_bytes(capability),
        l2_bytes: l2_mb << 20,
        total_memory_bytes: memory_gb * 1_000_000_000,
    };
    DEVICES.iter().map(facts).collect()
}
