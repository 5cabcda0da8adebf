//! Sequences that read keys they have in common together: how many make a team, and the launch that finds teams.

use halyard_kernels_gpu::FIND_COMMON;
use halyard_platform_api::Result;

use super::call::Call;
use crate::driver::Function;
use crate::encoding::{Arg, Encoding, Kept};
use crate::kernel::Preparation;
use crate::run::KEPT_BYTES;

/// Keys of a tile.
pub(super) const TILE: u32 = 64;
/// Threads of the kernel (`THREADS` of it), and shared memory for each sequence, bytes.
const THREADS: u32 = 1024;
const SEQUENCE_BYTES: u32 = 28;

/// Fewest sequences for which it pays that they read keys together, of at most `team`.
pub(super) fn least_of_team(team: u32) -> u32 {
    (3 * team / 8).max(2)
}

/// Whether what is found of so many sequences (`Teams` of teams.cuh) fits where it is kept.
pub(super) fn may_keep(num_seqs: u32) -> bool {
    16 + 12 * u64::from(num_seqs) <= KEPT_BYTES
}

/// The kernel that finds what sequences have in common.
pub(super) struct FindCommon {
    function: Function,
    block_size: u32,
    least_tiles: u32,
}

impl FindCommon {
    /// Compiles it for up to `max_seqs` sequences. Teams are worth it from `least_tiles` on.
    ///
    /// # Errors
    /// Errors of compiler and driver.
    pub(super) fn prepare(
        cx: &Preparation<'_>,
        max_seqs: u32,
        block_size: u32,
        least_tiles: u32,
    ) -> Result<FindCommon> {
        Ok(FindCommon {
            function: cx.function(FIND_COMMON, &[], "find_common", SEQUENCE_BYTES * max_seqs)?,
            block_size,
            least_tiles,
        })
    }

    /// Appends the launch for teams of up to `team` sequences, if no earlier op of the list has and a call so large
    /// could have them. Where it leaves what it finds, and whether that may be read before the previous launch has
    /// ended.
    pub(super) fn append(&self, encoding: &mut Encoding, call: &Call, team: u32) -> (Arg, bool) {
        let num_seqs = call.num_seqs();
        let most_tiles = u64::from(num_seqs) * u64::from(call.block_table.shape[1] * self.block_size / TILE);
        if num_seqs < least_of_team(team) || most_tiles < u64::from(self.least_tiles) {
            return (Arg::Ptr(0), true);
        }
        let kept = Kept {
            of: [call.block_table, call.step_rows, call.query_start_loc, call.seq_lens],
            words: [team, self.block_size, self.least_tiles],
        };
        if !encoding.keeps(&kept) {
            let args = [
                Arg::Ptr(call.block_table.ptr),
                Arg::U32(call.block_table.row_stride()),
                Arg::Ptr(call.step_rows.ptr),
                Arg::Ptr(call.query_start_loc.ptr),
                Arg::Ptr(call.seq_lens.ptr),
                Arg::Kept,
                Arg::U32(num_seqs),
                Arg::U32(self.block_size),
                Arg::U32(team),
                Arg::U32(least_of_team(team)),
                Arg::U32(self.least_tiles),
            ];
            encoding.launch(self.function, [1, 1, 1], THREADS, SEQUENCE_BYTES * num_seqs, &args);
            encoding.keep(kept);
        }
        (Arg::Kept, encoding.is_kept_settled())
    }
}
