//! An encoded op: launches, library products and copies, in order. Collected while encoding, run or captured at submit.

use std::sync::Arc;

use crate::driver::{CollectiveCall, Group, Product, ProductCall};
use crate::handles::{DevicePtr, Function, MAX_ARGS};
use crate::view::View;

/// A kernel parameter.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// An address (0: absent).
    Ptr(DevicePtr),
    /// An address in the queue's scratch arena, known at submit: byte offset in this op's scratch.
    Scratch(u64),
    /// The address of a counter of the queue, known at submit. Kernels leave counters zero. The op must report scratch.
    Counter(u32),
    /// The address of the queue's kept bytes ([`Encoding::keep`]), known at submit. The op must report scratch.
    Kept,
    /// A word.
    U32(u32),
    /// A signed word.
    I32(i32),
    /// A float.
    F32(f32),
    /// Eight bytes.
    U64(u64),
    /// Matrices by the copy engine.
    Boxes(BoxesOf),
}

/// What a launch leaves in the queue's kept bytes for later ops of its list: what it has found in these operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The operands.
    pub of: [View; 4],
    /// What else the result depends on.
    pub words: [u32; 3],
}

/// Rows of 16-bit values, one behind the other, that a kernel asks the copy engine for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxesOf {
    /// An address, or with `in_scratch` an offset in this op's scratch.
    pub at: u64,
    /// Which of them `at` is.
    pub in_scratch: bool,
    /// How many.
    pub rows: u64,
    /// Values of each.
    pub width: u32,
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What.
    pub function: Function,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// May start while its predecessor ends. The kernel must call `wait_for_previous()`.
    pub chained: bool,
    /// Parameters: `first .. first + count` of the encoding's.
    pub args: (u32, u32),
}

/// Operands of a product that lie in the op's scratch, where launches just before have put them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InScratch {
    /// x and its scales: rounded there.
    pub x: bool,
    /// The weight: unpacked there.
    pub weight: bool,
    /// Its scales, apart from its codes there.
    pub weight_scales: bool,
    /// out: it waits there for what follows.
    pub out: bool,
}

/// One thing to enqueue.
#[derive(Clone)]
pub enum Command {
    /// A kernel.
    Launch(Launch),
    /// A library product. Its workspace is this op's scratch from the offset on.
    Product {
        /// Which.
        product: Arc<dyn Product>,
        /// Addresses; those of operands in scratch are offsets.
        call: ProductCall,
        /// Which those are.
        in_scratch: InScratch,
        /// Workspace: offset in scratch.
        workspace: u64,
    },
    /// Zeroes memory: address or scratch offset, bytes.
    Zero(Arg, u64),
    /// A collective.
    Collective(Arc<dyn Group>, CollectiveCall),
    /// The next command shares nothing with those since the last one that waited.
    Independent,
}

/// Collects the commands of one command buffer.
#[derive(Default)]
pub struct Encoding {
    /// In order.
    pub commands: Vec<Command>,
    /// Parameters of all launches.
    pub args: Vec<Arg>,
    /// The groups whose ranks the commands wait for.
    pub groups: Vec<Arc<dyn Group>>,
    writes: Writes,
    /// What the queue's kept bytes hold, and the number of commands up to the one that wrote them.
    kept: Option<(Kept, usize)>,
}

/// What the ops of one list write, for those that would read before their predecessor has ended.
#[derive(Default)]
struct Writes {
    /// Number of commands up to the last that [`Encoding::settles`] named, if any.
    settled: Option<usize>,
    /// Address, bytes, and the number of commands up to the op's last, in order.
    ranges: Vec<(DevicePtr, u64, usize)>,
}

impl Encoding {
    /// Appends a launch of `function` with `threads` threads a block, chained to its predecessor. The kernel must call
    /// `wait_for_previous()`.
    pub fn launch(&mut self, function: Function, grid: [u32; 3], threads: u32, shared_bytes: u32, args: &[Arg]) {
        debug_assert!(args.len() <= MAX_ARGS);
        if grid.contains(&0) {
            return;
        }
        let first = self.args.len() as u32;
        self.args.extend_from_slice(args);
        self.commands.push(Command::Launch(Launch {
            function,
            grid,
            block: [threads, 1, 1],
            shared_bytes,
            chained: true,
            args: (first, args.len() as u32),
        }));
    }

    /// Says of the newest command that its kernel lets its successor start only behind its own `wait_for_previous()`:
    /// when anything after it starts, all before it has ended.
    pub fn settles(&mut self) {
        self.writes.settled = Some(self.commands.len());
    }

    /// Notes that the op just appended writes `view`: what was found in it before no longer holds.
    pub(crate) fn note_write(&mut self, view: &View) {
        let (at, bytes) = (view.ptr, view.span_bytes());
        self.writes.ranges.push((at, bytes, self.commands.len()));
        self.kept = self
            .kept
            .filter(|(kept, _)| !kept.of.iter().any(|of| overlaps(of, at, bytes)));
    }

    /// Says that the newest command leaves `kept` in the queue's kept bytes.
    pub fn keep(&mut self, kept: Kept) {
        self.kept = Some((kept, self.commands.len()));
    }

    /// Whether the queue's kept bytes hold it.
    pub fn keeps(&self, kept: &Kept) -> bool {
        self.kept.is_some_and(|(held, _)| held == *kept)
    }

    /// Whether an op appended now may read the kept bytes before `wait_for_previous()`, as [`Encoding::is_settled`].
    pub fn is_kept_settled(&self) -> bool {
        let written = self.kept.map(|(_, commands)| commands);
        written
            .zip(self.writes.settled)
            .is_some_and(|(written, settled)| written < settled)
    }

    /// Takes commands and parameters back, down to so many.
    pub(crate) fn truncate(&mut self, commands: usize, args: usize) {
        self.commands.truncate(commands);
        self.args.truncate(args);
        self.kept = self.kept.filter(|&(_, written)| written <= commands);
    }

    /// Whether an op appended now may read `view` before `wait_for_previous()`: nothing since the command before the
    /// last settling one has written it.
    pub fn is_settled(&self, view: &View) -> bool {
        let Some(settled) = self.writes.settled else {
            return false;
        };
        let since = self
            .writes
            .ranges
            .iter()
            .rev()
            .take_while(|&&(.., commands)| commands >= settled);
        !since.into_iter().any(|&(at, bytes, _)| overlaps(view, at, bytes))
    }

    /// Appends a library product; `workspace` is an offset in scratch.
    pub fn product(&mut self, product: &Arc<dyn Product>, call: ProductCall, in_scratch: InScratch, workspace: u64) {
        if call.tokens > 0 {
            self.commands.push(Command::Product {
                product: product.clone(),
                call,
                in_scratch,
                workspace,
            });
        }
    }

    /// Appends zeroing of memory.
    pub fn zero(&mut self, to: Arg, bytes: u64) {
        if bytes > 0 {
            self.commands.push(Command::Zero(to, bytes));
        }
    }

    /// Appends a collective.
    pub fn collective(&mut self, group: &Arc<dyn Group>, call: CollectiveCall) {
        self.waits_for(group);
        self.commands.push(Command::Collective(group.clone(), call));
    }

    /// Whether sums over ranks are among the commands.
    pub(crate) fn has_ranks(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Notes that a command waits for the other ranks of `group`.
    pub fn waits_for(&mut self, group: &Arc<dyn Group>) {
        if !self.groups.iter().any(|known| Arc::ptr_eq(known, group)) {
            self.groups.push(group.clone());
        }
    }
}

/// Whether a view has some of these bytes.
fn overlaps(view: &View, at: DevicePtr, bytes: u64) -> bool {
    at < view.ptr + view.span_bytes() && view.ptr < at + bytes
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::DType;

    use super::*;

    fn ints(ptr: DevicePtr, count: u32) -> View {
        View {
            ptr,
            shape: [count, 0, 0, 0],
            strides: [1, 0, 0, 0],
            dtype: DType::I32,
            rank: 1,
        }
    }

    #[test]
    fn what_was_found_holds_until_an_operand_is_written() {
        let kept = |table: View| Kept {
            of: [table, ints(1000, 4), ints(1100, 5), ints(1200, 4)],
            words: [16, 64, 0],
        };
        let mut encoding = Encoding::default();
        let (found, other) = (kept(ints(2000, 8)), kept(ints(4000, 8)));
        let find = |encoding: &mut Encoding, what: Kept| {
            encoding.zero(Arg::Kept, 4);
            encoding.keep(what);
        };
        find(&mut encoding, found);
        assert!(
            encoding.keeps(&found) && !encoding.keeps(&other),
            "of these operands alone"
        );
        assert!(!encoding.is_kept_settled(), "its own launch may still run");
        encoding.zero(Arg::Ptr(0), 4);
        encoding.settles();
        assert!(encoding.is_kept_settled());
        encoding.note_write(&ints(2032, 8));
        assert!(encoding.keeps(&found), "what lies behind the table is written");
        encoding.note_write(&ints(1012, 1));
        assert!(!encoding.keeps(&found), "a row is written");
        find(&mut encoding, found);
        find(&mut encoding, other);
        assert!(!encoding.keeps(&found), "something else is there now");
        encoding.truncate(encoding.commands.len() - 1, 0);
        assert!(!encoding.keeps(&other), "its launch was taken back");
    }

    #[test]
    fn only_what_was_written_before_a_settling_command_may_be_read_early() {
        let mut encoding = Encoding::default();
        let (lengths, table, hidden) = (ints(1000, 4), ints(2000, 8), ints(3000, 16));
        let op = |encoding: &mut Encoding, written: &View| {
            encoding.zero(Arg::Ptr(0), 4);
            encoding.note_write(written);
        };
        op(&mut encoding, &lengths);
        assert!(!encoding.is_settled(&table), "nothing has settled yet");
        encoding.zero(Arg::Ptr(0), 4);
        encoding.settles();
        encoding.note_write(&hidden);
        assert!(encoding.is_settled(&lengths), "written before");
        assert!(encoding.is_settled(&table), "never written");
        assert!(!encoding.is_settled(&hidden), "written by the settling command itself");
        op(&mut encoding, &ints(2028, 1));
        assert!(!encoding.is_settled(&table), "its last value is written since");
        assert!(encoding.is_settled(&ints(2000, 7)), "the values before it are not");
    }
}
