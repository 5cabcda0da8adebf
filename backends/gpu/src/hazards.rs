//! Finds ops that may run at the same time: compares the memory that the ops since the last barrier read and wrote with
//! the next op's, by address.
//!
//! An operand is rows of bytes: a window that repeats at a pitch, so that different columns of one matrix (queries next
//! to keys) do not count as overlapping. If in doubt, operands count as overlapping.

use halyard_platform_api::Access;

use crate::handles::DevicePtr;
use crate::view::View;

/// Remembered accesses; with more of them the next op waits for all.
const MAX_KNOWN: usize = 64;

/// The bytes of a view.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: DevicePtr,
    end: DevicePtr,
    /// Distance of rows and bytes of one; equal where there is one row, or rows touch.
    pitch: u64,
    row: u64,
}

impl Window {
    /// `None`: nothing is touched.
    fn of(view: &View) -> Option<Window> {
        if view.is_none() || view.is_empty() {
            return None;
        }
        let bytes = view.dtype.bytes() as u64;
        let reach = |axes: std::ops::Range<usize>| -> u64 {
            let last: u64 = axes
                .map(|axis| u64::from(view.shape[axis] - 1) * u64::from(view.strides[axis]))
                .sum();
            (last + 1) * bytes
        };
        let rank = view.rank as usize;
        let (row, whole) = (reach(1.min(rank)..rank), reach(0..rank));
        let pitch = u64::from(view.strides[0]) * bytes;
        let rows_apart = rank > 1 && view.shape[0] > 1 && pitch > row;
        Some(Window {
            start: view.ptr,
            end: view.ptr + whole,
            pitch: if rows_apart { pitch } else { whole },
            row: if rows_apart { row } else { whole },
        })
    }

    fn overlaps(&self, other: &Window) -> bool {
        if self.end <= other.start || other.end <= self.start {
            return false;
        }
        if self.pitch != other.pitch || self.row == self.pitch || other.row == other.pitch {
            return true;
        }
        // How far the other's rows begin behind this one's.
        let behind = (i128::from(other.start) - i128::from(self.start)).rem_euclid(i128::from(self.pitch)) as u64;
        behind < self.row || self.pitch - behind < other.row
    }
}

/// The operands of ops since the last barrier.
#[derive(Default)]
pub(crate) struct Hazards {
    /// Whether anything did: before the first op nothing is known.
    known: bool,
    scratch: bool,
    reads: Vec<Window>,
    writes: Vec<Window>,
}

impl Hazards {
    /// Notes an op over `views`, of which `commands` were made and which may use scratch. Whether its first command can
    /// do without a barrier. Operands of which nothing is said may be written.
    pub(crate) fn admit(&mut self, operands: &[Access], views: &[View], scratch: bool, commands: usize) -> bool {
        if commands == 0 {
            return false;
        }
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (at, view) in views.iter().enumerate() {
            let Some(window) = Window::of(view) else { continue };
            match operands.get(at).copied().unwrap_or(Access::Update) {
                // No op writes it while lists run.
                Access::Const => {}
                Access::Read => reads.push(window),
                Access::Write | Access::Update => writes.push(window),
            }
        }
        let meet = |these: &[Window], those: &[Window]| these.iter().any(|a| those.iter().any(|b| a.overlaps(b)));
        let shares = self.scratch && scratch
            || meet(&writes, &self.writes)
            || meet(&writes, &self.reads)
            || meet(&reads, &self.writes);
        let independent = self.known && !shares && self.reads.len() + self.writes.len() < MAX_KNOWN;
        // Commands of one op wait for each other, and so for everything before it.
        if !independent || commands > 1 {
            *self = Hazards::default();
        }
        self.known = true;
        self.scratch |= scratch;
        self.reads.append(&mut reads);
        self.writes.append(&mut writes);
        independent
    }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::DType;

    use super::*;

    /// `rows` rows of `columns` f32 at `ptr`, `stride` values apart.
    fn view(ptr: DevicePtr, rows: u32, columns: u32, stride: u32) -> View {
        View {
            ptr,
            shape: [rows, columns, 0, 0],
            strides: [stride, 1, 0, 0],
            dtype: DType::F32,
            rank: 2,
        }
    }

    use Access::{Const, Read, Update, Write};

    #[test]
    fn only_what_shares_bytes_waits() {
        let (a, b, c) = (view(4096, 2, 8, 8), view(8192, 2, 8, 8), view(12288, 2, 8, 8));
        let map = [Read, Write];
        let mut hazards = Hazards::default();
        assert!(!hazards.admit(&map, &[a, b], false, 1), "what came before is not known");
        assert!(hazards.admit(&map, &[a, c], false, 1), "two readers of one operand");
        assert!(
            !hazards.admit(&map, &[c, view(16384, 2, 8, 8)], false, 1),
            "read after write"
        );
        assert!(
            hazards.admit(&map, &[b, a], false, 1),
            "the write of b lies before a barrier"
        );
        assert!(
            !hazards.admit(&map, &[view(20480, 2, 8, 8), b], false, 1),
            "write after read"
        );
        assert!(
            !hazards.admit(&map, &[view(24576, 2, 8, 8), b], false, 1),
            "write after write"
        );
        assert!(!hazards.admit(&[Update], &[b], false, 1), "update after write");
        assert!(
            hazards.admit(&[Const, Write], &[b, a], false, 1),
            "constants are not written"
        );
        assert!(
            !hazards.admit(&[], &[a], false, 1),
            "what is not documented may be written"
        );
    }

    #[test]
    fn commands_of_one_op_wait_for_all_before_it() {
        let (a, b) = (view(4096, 2, 8, 8), view(8192, 2, 8, 8));
        let write = [Write];
        let mut hazards = Hazards::default();
        hazards.admit(&write, &[a], false, 1);
        assert!(hazards.admit(&write, &[b], false, 2));
        assert!(
            hazards.admit(&write, &[a], false, 1),
            "the second command waited for the first write of a"
        );
        assert!(!hazards.admit(&write, &[b], false, 1));
        assert!(!hazards.admit(&write, &[a], false, 0), "nothing was to do");
    }

    #[test]
    fn two_ops_with_scratch_share_it() {
        let write = [Write];
        let mut hazards = Hazards::default();
        hazards.admit(&write, &[view(4096, 1, 8, 8)], true, 1);
        assert!(hazards.admit(&write, &[view(8192, 1, 8, 8)], false, 1));
        assert!(!hazards.admit(&write, &[view(12288, 1, 8, 8)], true, 1));
    }

    #[test]
    fn columns_of_a_matrix_lie_side_by_side() {
        // Rows of 24 values: queries in 0 .. 16, keys in 16 .. 24.
        let (queries, keys) = (view(4096, 4, 16, 24), view(4096 + 64, 4, 8, 24));
        let update = [Update];
        let mut hazards = Hazards::default();
        hazards.admit(&update, &[queries], false, 1);
        assert!(hazards.admit(&update, &[keys], false, 1));
        assert!(
            !hazards.admit(&update, &[view(4096 + 60, 4, 8, 24)], false, 1),
            "one column of both"
        );
        let mut hazards = Hazards::default();
        hazards.admit(&update, &[keys], false, 1);
        assert!(
            !hazards.admit(&update, &[view(4096 + 64 + 24, 4, 16, 24)], false, 1),
            "around a row's end"
        );
        assert!(!hazards.admit(&update, &[view(4096, 1, 96, 96)], false, 1), "all of it");
        // With other pitches the windows count as overlapping.
        let mut hazards = Hazards::default();
        hazards.admit(&update, &[queries], false, 1);
        assert!(!hazards.admit(&update, &[view(4096 + 64, 4, 2, 12)], false, 1));
    }

    #[test]
    fn an_absent_or_empty_operand_touches_nothing() {
        let update = [Update, Update];
        let mut hazards = Hazards::default();
        hazards.admit(&update, &[view(4096, 2, 8, 8), View::NONE], false, 1);
        assert!(hazards.admit(&update, &[view(4096, 0, 8, 8), View::NONE], false, 1));
    }
}
