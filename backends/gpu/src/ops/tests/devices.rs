//! The devices of the tables: facts, and the policies of their drivers. Each driver's own tests hold it to the line of
//! `policies.txt` that its policy prints here.

use halyard_kernels_gpu::ATTENTION_TILES;
use halyard_platform_api::DType;

use crate::driver::Facts;
use crate::policy::{AttentionTiles, BlockProduct, Policy, Tile, Tiling};

/// What a driver multiplies by other means than our kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// The library is not there, and the driver says so as an error.
    Missing,
    /// There is none.
    None,
    CublasLt,
    RocBlas,
    /// Of 16-bit floats to any.
    SixteenBit,
}

/// One device.
#[derive(Clone)]
pub(super) struct Device {
    pub(super) name: &'static str,
    pub(super) facts: Facts,
    pub(super) products: Products,
    /// Kernel files that the language lacks.
    pub(super) lacks: &'static [&'static str],
    pub(super) splits_attention: bool,
    pub(super) policy: Policy,
}

fn attention_tiles(head_dim_step: u32, max_head_dim: u32, block_step: u32) -> Option<AttentionTiles> {
    Some(AttentionTiles {
        source: ATTENTION_TILES,
        types: vec![DType::F16, DType::BF16],
        head_dim_step,
        max_head_dim,
        block_step,
    })
}

/// A device without matrix units; tests change what they look at.
pub(in crate::ops) fn facts(arch: &str, num_sms: u32, max_shared_bytes: u32) -> Facts {
    Facts {
        name: arch.to_string(),
        detail: String::new(),
        arch: arch.to_string(),
        capability: 0,
        num_sms,
        warp_size: 32,
        matrix_units: false,
        struct_params: false,
        max_shared_bytes,
        l2_bytes: 0,
        total_memory_bytes: 1 << 36,
    }
}

/// A device whose driver says nothing.
fn device(name: &'static str, facts: Facts) -> Device {
    Device {
        name,
        facts,
        products: Products::None,
        lacks: &["linear_dots"],
        splits_attention: false,
        policy: Policy::default(),
    }
}

fn cuda(name: &'static str, arch: &str, num_sms: u32, max_shared_bytes: u32, products: Products) -> Device {
    let facts = Facts {
        matrix_units: true,
        ..facts(arch, num_sms, max_shared_bytes)
    };
    Device {
        products,
        ..device(name, facts)
    }
}

fn hip(name: &'static str, arch: &str, warp_size: u32, num_sms: u32, products: Products) -> Device {
    let facts = Facts {
        warp_size,
        ..facts(arch, num_sms, 64 << 10)
    };
    Device {
        products,
        ..device(name, facts)
    }
}

fn hip_matrix_units(device: Device) -> Device {
    Device {
        policy: Policy {
            matrix_tiling: Some(Tiling::plain("on matrix units")),
            attention_tiles: attention_tiles(8, 256, 8),
            ..Policy::default()
        },
        ..device
    }
}

fn vulkan(name: &'static str, num_sms: u32) -> Device {
    let block_product = BlockProduct {
        rows: 16,
        depths: 64,
        from_tokens: 2,
    };
    Device {
        lacks: &[],
        splits_attention: true,
        policy: Policy {
            plain_block: (4, 64),
            block_product: Some(block_product),
            records: false,
            unpack_from: 9,
            separate_entries: true,
            concurrent_commands: true,
            ..Policy::default()
        },
        ..device(name, facts("vulkan1.2", num_sms, 48 << 10))
    }
}

fn opencl(name: &'static str) -> Device {
    Device {
        lacks: &[],
        policy: Policy {
            records: false,
            ..Policy::default()
        },
        ..device(name, facts("opencl", 96, 64 << 10))
    }
}

/// The same device under another name, with products of bytes.
fn with_integer_dots(name: &'static str, mut device: Device) -> Device {
    device.policy.integer_dots = true;
    Device { name, ..device }
}

/// Every device of the tables.
pub(super) fn all() -> Vec<Device> {
    let tile = |tokens, threads| Tile { tokens, threads };
    let opencl_tiling = Tiling {
        define: Some(("DPAS", "16".to_string())),
        tiles: [tile(64, 128), tile(128, 256)],
        means: "on matrix units of 16 columns".to_string(),
    };
    let opencl_matrix = Device {
        policy: Policy {
            matrix_tiling: Some(opencl_tiling),
            attention_tiles: attention_tiles(16, 128, 8),
            ..Policy::default()
        },
        ..opencl("OpenCL, matrix units")
    };
    let mut vulkan_matrix = vulkan("Vulkan, matrix units", 132);
    vulkan_matrix.products = Products::SixteenBit;
    vulkan_matrix.policy.attention_tiles = attention_tiles(16, 128, 32);
    let mut processor = vulkan("Vulkan, a processor", 2);
    processor.lacks = &["linear_tiled"];
    processor.policy.plain_block = (32, 8);
    vec![
        cuda("CUDA, H200", "sm_90a", 132, 232_448, Products::CublasLt),
        cuda(
            "CUDA, H200, cuBLASLt without an algorithm",
            "sm_90a",
            132,
            232_448,
            Products::None,
        ),
        cuda(
            "CUDA, H200, cuBLASLt missing",
            "sm_90a",
            132,
            232_448,
            Products::Missing,
        ),
        cuda("CUDA, RTX 3090", "sm_86", 82, 101_376, Products::CublasLt),
        hip_matrix_units(hip("HIP, gfx942, waves of 64", "gfx942", 64, 304, Products::RocBlas)),
        hip_matrix_units(hip("HIP, gfx942, no rocBLAS", "gfx942", 64, 304, Products::None)),
        hip("HIP, gfx1100, waves of 32", "gfx1100", 32, 96, Products::RocBlas),
        vulkan("Vulkan, no matrix units", 32),
        vulkan_matrix.clone(),
        with_integer_dots("Vulkan, matrix units, products of bytes", vulkan_matrix),
        processor,
        opencl("OpenCL, no matrix units"),
        opencl_matrix.clone(),
        with_integer_dots("OpenCL, products of bytes", opencl("")),
        with_integer_dots("OpenCL, matrix units, products of bytes", opencl_matrix),
    ]
}
