//! What an op becomes: launches, library products and copies, in order. Collected while encoding, run or captured at submit.

use std::sync::Arc;

use crate::driver::{CollectiveCall, DevicePtr, Function, Group, Product, ProductCall};

/// Most parameters of a kernel.
pub const MAX_ARGS: usize = 40;

/// A kernel parameter.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// An address (0: absent).
    Ptr(DevicePtr),
    /// An address in the queue's scratch arena, known at submit: byte offset in this op's scratch.
    Scratch(u64),
    /// The address of a counter of the queue, known at submit. Kernels leave counters zero. The op must report scratch.
    Counter(u32),
    /// A word.
    U32(u32),
    /// A signed word.
    I32(i32),
    /// A float.
    F32(f32),
    /// Eight bytes.
    U64(u64),
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

/// One thing to enqueue.
#[derive(Clone)]
pub enum Command {
    /// A kernel.
    Launch(Launch),
    /// A library product. Its workspace is this op's scratch from the offset on; x and out may lie in scratch: see [`Encoding::product`].
    Product {
        /// Which.
        product: Arc<dyn Product>,
        /// Addresses; those of operands in scratch are offsets.
        call: ProductCall,
        /// x is an offset in scratch.
        x_in_scratch: bool,
        /// out is an offset in scratch.
        out_in_scratch: bool,
        /// The weight is an offset in scratch: unpacked there just before.
        weight_in_scratch: bool,
        /// Workspace: offset in scratch.
        workspace: u64,
    },
    /// Zeroes memory: address or scratch offset, bytes.
    Zero(Arg, u64),
    /// A collective.
    Collective(Arc<dyn Group>, CollectiveCall),
    /// The next command shares nothing with those since the last one that waited.
    Beside,
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

    /// Appends a library product over tensors in memory.
    pub fn product(&mut self, product: &Arc<dyn Product>, call: ProductCall, workspace: u64) {
        self.product_in_scratch(product, call, false, false, workspace);
    }

    /// Appends a library product whose x or out lies in this op's scratch.
    pub fn product_in_scratch(
        &mut self,
        product: &Arc<dyn Product>,
        call: ProductCall,
        x_in_scratch: bool,
        out_in_scratch: bool,
        workspace: u64,
    ) {
        if call.tokens > 0 {
            self.commands.push(Command::Product {
                product: product.clone(),
                call,
                x_in_scratch,
                out_in_scratch,
                weight_in_scratch: false,
                workspace,
            });
        }
    }

    /// Appends a library product whose weight lies in this op's scratch, and whose out may.
    pub fn product_unpacked(
        &mut self,
        product: &Arc<dyn Product>,
        call: ProductCall,
        out_in_scratch: bool,
        workspace: u64,
    ) {
        if call.tokens > 0 {
            self.commands.push(Command::Product {
                product: product.clone(),
                call,
                x_in_scratch: false,
                out_in_scratch,
                weight_in_scratch: true,
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

    /// Notes that a command waits for the other ranks of `group`.
    pub fn waits_for(&mut self, group: &Arc<dyn Group>) {
        if !self.groups.iter().any(|known| Arc::ptr_eq(known, group)) {
            self.groups.push(group.clone());
        }
    }
}
