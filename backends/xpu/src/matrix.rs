//! Matrix units: which devices have them, what kernels on them are compiled with, and the shapes of their launches.

use halyard_gpu::{AttentionTiles, Tile, Tiling};
use halyard_kernels_gpu::ATTENTION_TILES;
use halyard_platform_api::DType;

/// What a device's extensions must hold: the products, and block reads of words and half words.
pub(crate) const EXTENSIONS: [&str; 3] = [
    "cl_intel_subgroup_matrix_multiply_accumulate",
    "cl_intel_subgroups",
    "cl_intel_subgroups_short",
];
/// The definition that turns a kernel to matrix units (`matrix.h`).
const DEFINE: &str = "DPAS";
/// Kernels on matrix units keep sums in registers: attention needs the larger file, of half as many threads.
const LARGE_REGISTERS: &str = "-cl-intel-256-GRF-per-thread";
/// Shapes of `linear_tiled`: 64 output rows by so many tokens.
const TILES: [Tile; 2] = [
    Tile {
        tokens: 64,
        threads: 128,
    },
    Tile {
        tokens: 128,
        threads: 256,
    },
];

/// Products by subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Lanes of a subgroup, and columns of a product: 8 or 16.
    pub(crate) lanes: u32,
    /// The device has no such units: the same by plain operations, to test what is built on it.
    pub(crate) emulated: bool,
}

impl Matrix {
    /// What a device of these subgroup sizes uses: its own units, which work in its smallest subgroups, else what is
    /// asked for, if it has subgroups of that size. `Some(0)` asks for none.
    pub(crate) fn chosen(has_units: bool, sizes: &[u64], asked: Option<u32>) -> Option<Matrix> {
        let known = |lanes: &u32| [8, 16].contains(lanes) && sizes.contains(&u64::from(*lanes));
        match (asked, has_units) {
            (Some(0), _) => None,
            (_, true) => {
                let least = sizes.iter().min().and_then(|size| u32::try_from(*size).ok());
                least.filter(known).map(|lanes| Matrix { lanes, emulated: false })
            }
            (asked, false) => asked.filter(known).map(|lanes| Matrix { lanes, emulated: true }),
        }
    }

    /// For bug reports.
    pub(crate) fn describe(self) -> String {
        let kind = if self.emulated {
            "matrix units by plain operations"
        } else {
            "matrix units"
        };
        format!("{kind} of {} columns", self.lanes)
    }

    /// `linear_tiled` on matrix units.
    pub(crate) fn tiling(self) -> Tiling {
        Tiling {
            define: Some((DEFINE, self.lanes.to_string())),
            tiles: TILES,
            means: format!("on {}", self.describe()),
        }
    }

    /// `attention_tiles.cl`.
    pub(crate) fn attention_tiles(self) -> AttentionTiles {
        AttentionTiles {
            source: ATTENTION_TILES,
            types: vec![DType::F16, DType::BF16],
            head_dim_step: 16,
            max_head_dim: 128,
            block_step: 8,
        }
    }

    /// Whether a kernel file is to be compiled for matrix units, and what that adds to its options.
    pub(crate) fn options(self, name: &str, options: &[String]) -> Option<Vec<String>> {
        let mut more = vec![format!("-DSUBGROUP={}", self.lanes)];
        let attention = name == ATTENTION_TILES.name;
        if attention {
            more.push(format!("-D{DEFINE}={}", self.lanes));
        } else if !options.iter().any(|option| option.starts_with(&format!("-D{DEFINE}="))) {
            return None;
        }
        match self.emulated {
            true => more.push(format!("-D{DEFINE}_EMULATED")),
            false if attention => more.push(LARGE_REGISTERS.to_string()),
            false => {}
        }
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u64; 5] = [4, 8, 16, 32, 64];

    #[test]
    fn units_work_in_the_smallest_subgroups_and_others_are_emulated_when_asked() {
        let of = |lanes, emulated| Some(Matrix { lanes, emulated });
        assert_eq!(Matrix::chosen(true, &[8, 16, 32], None), of(8, false));
        assert_eq!(Matrix::chosen(true, &[16, 32], None), of(16, false));
        assert_eq!(
            Matrix::chosen(true, &[16, 32], Some(8)),
            of(16, false),
            "the device's own"
        );
        assert_eq!(Matrix::chosen(true, &[32], None), None, "no such products are known");
        assert_eq!(Matrix::chosen(true, &[], None), None);
        assert_eq!(Matrix::chosen(true, &[16, 32], Some(0)), None);
        assert_eq!(Matrix::chosen(false, &ALL, None), None);
        assert_eq!(Matrix::chosen(false, &ALL, Some(8)), of(8, true));
        assert_eq!(Matrix::chosen(false, &ALL, Some(32)), None);
        assert_eq!(Matrix::chosen(false, &[16], Some(8)), None);
    }

    #[test]
    fn files_on_matrix_units_get_their_subgroups() {
        let matrix = |emulated| Matrix { lanes: 8, emulated };
        let options = |name, matrix: Matrix, of: &str| matrix.options(name, &[of.to_string()]).map(|all| all.join(" "));
        assert_eq!(options("linear_tiled", matrix(false), "-DACT=f16"), None);
        let linear = options("linear_tiled", matrix(false), "-DDPAS=8");
        assert_eq!(linear.as_deref(), Some("-DSUBGROUP=8"));
        let attention = options(ATTENTION_TILES.name, matrix(false), "-DACT=f16");
        assert_eq!(
            attention.as_deref(),
            Some("-DSUBGROUP=8 -DDPAS=8 -cl-intel-256-GRF-per-thread")
        );
        let emulated = options(ATTENTION_TILES.name, matrix(true), "-DACT=f16");
        assert_eq!(emulated.as_deref(), Some("-DSUBGROUP=8 -DDPAS=8 -DDPAS_EMULATED"));
    }
}
