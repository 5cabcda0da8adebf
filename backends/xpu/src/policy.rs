//! The policy of a device: which kernels its ops use, from its facts and the operator's choices.

use halyard_gpu::{Policy, Rounding};

use crate::facts::Dots;
use crate::matrix::Matrix;

/// The choices of a device with such matrix units and products of bytes. Both kernels on matrix units are tested before
/// they are used.
pub(crate) fn policy(matrix: Option<Matrix>, dots: Dots, rounding: Rounding) -> Policy {
    Policy {
        records: false,
        integer_dots: match rounding {
            Rounding::Never => false,
            Rounding::WhereFast => dots.accelerated,
            // The kernels have plain operations where the instruction is missing.
            Rounding::Always => true,
        },
        matrix_tiling: matrix.map(Matrix::tiling),
        attention_tiles: matrix.map(Matrix::attention_tiles),
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of `backends/gpu` are made with these policies.
    #[test]
    fn policies_are_those_of_the_tables() {
        let listed = include_str!("../../gpu/src/ops/tests/policies.txt");
        let hold = |name: &str, policy: Policy| {
            let line = format!("{name}: {policy}");
            assert!(listed.lines().any(|known| known == line), "{line}");
        };
        let (slow, fast) = (
            Dots::default(),
            Dots {
                native: true,
                accelerated: true,
            },
        );
        let matrix = Some(Matrix {
            lanes: 16,
            emulated: false,
        });
        hold("OpenCL, no matrix units", policy(None, slow, Rounding::WhereFast));
        hold("OpenCL, no matrix units", policy(None, fast, Rounding::Never));
        hold("OpenCL, matrix units", policy(matrix, slow, Rounding::Never));
        hold("OpenCL, products of bytes", policy(None, fast, Rounding::WhereFast));
        hold("OpenCL, products of bytes", policy(None, slow, Rounding::Always));
        let both = "OpenCL, matrix units, products of bytes";
        hold(both, policy(matrix, fast, Rounding::WhereFast));
    }
}
