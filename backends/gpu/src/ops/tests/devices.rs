//! The devices of the tables: facts, and what their drivers say of how ops run there.

use halyard_kernels_gpu::{ATTENTION_TILES, Source};
use halyard_platform_api::DType;
use halyard_platform_api::ops::Attention;

use crate::driver::{Facts, Tile, Tiling};

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
    pub(super) separate_entries: bool,
    pub(super) plain_rows: (u32, u32),
    pub(super) unpack_from: u32,
    /// Products of few tokens pay where rows and depths are whole multiples of these.
    few_product: Option<(u32, u32)>,
    pub(super) integer_dots: bool,
    pub(super) matrix_tiling: Option<Tiling>,
    attention_tiles: Option<Tiles>,
}

/// What attention tiles take: heads of a multiple of the first up to the second, blocks of a multiple of the third.
#[derive(Clone, Copy)]
struct Tiles(u32, u32, u32);

impl Device {
    pub(super) fn product_from(&self, in_features: u32, out_features: u32) -> u32 {
        match self.few_product {
            Some((rows, depths)) if out_features.is_multiple_of(rows) && in_features.is_multiple_of(depths) => 2,
            _ => 9,
        }
    }

    pub(super) fn attention_tiles(&self, spec: &Attention) -> Option<Source> {
        let Tiles(heads, most, blocks) = self.attention_tiles?;
        let takes = [DType::F16, DType::BF16].contains(&spec.act)
            && spec.kv == spec.act
            && spec.head_dim.is_multiple_of(heads)
            && (heads..=most).contains(&spec.head_dim)
            && spec.block_size.is_multiple_of(blocks);
        takes.then_some(ATTENTION_TILES)
    }
}

fn facts(arch: &str, num_sms: u32, max_shared_bytes: u32) -> Facts {
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
        separate_entries: false,
        plain_rows: (8, 256),
        unpack_from: 33,
        few_product: None,
        integer_dots: false,
        matrix_tiling: None,
        attention_tiles: None,
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
        matrix_tiling: Some(Tiling::plain("on matrix units")),
        attention_tiles: Some(Tiles(8, 256, 8)),
        ..device
    }
}

fn vulkan(name: &'static str, num_sms: u32) -> Device {
    Device {
        lacks: &[],
        splits_attention: true,
        separate_entries: true,
        plain_rows: (4, 64),
        unpack_from: 9,
        few_product: Some((16, 64)),
        ..device(name, facts("vulkan1.2", num_sms, 48 << 10))
    }
}

fn opencl(name: &'static str) -> Device {
    Device {
        lacks: &[],
        ..device(name, facts("opencl", 96, 64 << 10))
    }
}

/// Every device of the tables.
pub(super) fn all() -> Vec<Device> {
    let tile = |tokens, threads| Tile { tokens, threads };
    let opencl_matrix = Device {
        matrix_tiling: Some(Tiling {
            define: Some(("DPAS", "16".to_string())),
            tiles: [tile(64, 128), tile(128, 256)],
            means: "on matrix units of 16 columns".to_string(),
        }),
        attention_tiles: Some(Tiles(16, 128, 8)),
        ..opencl("OpenCL, matrix units")
    };
    let vulkan_matrix = Device {
        products: Products::SixteenBit,
        attention_tiles: Some(Tiles(16, 128, 32)),
        ..vulkan("Vulkan, matrix units", 132)
    };
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
        Device {
            name: "Vulkan, matrix units, products of bytes",
            integer_dots: true,
            ..vulkan_matrix
        },
        Device {
            plain_rows: (32, 8),
            lacks: &["linear_tiled"],
            ..vulkan("Vulkan, a processor", 2)
        },
        opencl("OpenCL, no matrix units"),
        opencl_matrix.clone(),
        Device {
            name: "OpenCL, products of bytes",
            integer_dots: true,
            ..opencl("")
        },
        Device {
            name: "OpenCL, matrix units, products of bytes",
            integer_dots: true,
            ..opencl_matrix
        },
    ]
}
