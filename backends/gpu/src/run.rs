//! Enqueues what ops have encoded: parameters become words, scratch offsets addresses.

use halyard_platform_api::{Error, Result};

use crate::driver::{Boxes, DevicePtr, Driver, Param, Stream};
use crate::encoding::{Arg, BoxesOf, Command, Encoding, Launch};
use crate::handles::MAX_ARGS;

/// Bytes of counters that lie before a queue's scratch: every kernel that uses them finds them zero and leaves them
/// zero.
pub(crate) const COUNTER_BYTES: u64 = 4096;
/// Bytes before the counters, for what ops keep for others of their list ([`Arg::Kept`]).
pub(crate) const KEPT_BYTES: u64 = 32 << 10;
const FRONT_BYTES: u64 = KEPT_BYTES + COUNTER_BYTES;

/// The scratch arena at a moment, with the queue's kept bytes and counters before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    pub(crate) base: DevicePtr,
    pub(crate) bytes: u64,
}

impl Scratch {
    /// An arena of `bytes` with zeroed counters, on an idle stream.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn allocate(driver: &dyn Driver, bytes: u64, stream: Stream) -> Result<Scratch> {
        let front = driver.allocate(FRONT_BYTES + bytes).map_err(|e| Error {
            message: format!("scratch of {bytes} bytes for a queue: {}", e.message),
            ..e
        })?;
        // SAFETY: the memory was just allocated with more bytes than these.
        if let Err(error) = unsafe { driver.fill(front, 0, FRONT_BYTES, stream) } {
            // SAFETY: it is used nowhere else.
            unsafe { driver.free(front) };
            return Err(error);
        }
        Ok(Scratch {
            base: front + FRONT_BYTES,
            bytes,
        })
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Nothing that names it runs any more.
    pub(crate) unsafe fn free(self, driver: &dyn Driver) {
        if self.bytes > 0 {
            // SAFETY: `allocate` made it, and the caller's promise.
            unsafe { driver.free(self.base - FRONT_BYTES) };
        }
    }

    fn counter(self, index: u32) -> Result<DevicePtr> {
        let offset = 4 * u64::from(index);
        if self.bytes > 0 && offset < COUNTER_BYTES {
            return Ok(self.base - COUNTER_BYTES + offset);
        }
        Err(Error::invalid(format!(
            "counter {index}: a queue has {} where it has scratch, and this one has {} bytes of that",
            COUNTER_BYTES / 4,
            self.bytes
        )))
    }

    fn kept(self) -> Result<DevicePtr> {
        if self.bytes > 0 {
            return Ok(self.base - FRONT_BYTES);
        }
        Err(Error::invalid(
            "a queue keeps bytes where it has scratch, and this one has none",
        ))
    }

    fn at(self, offset: u64) -> Result<DevicePtr> {
        if offset < self.bytes {
            return Ok(self.base + offset);
        }
        Err(Error::invalid(format!(
            "scratch offset {offset} passes the arena's {} bytes: the op reports less scratch than it uses",
            self.bytes
        )))
    }

    fn address(self, arg: Arg) -> Result<DevicePtr> {
        match arg {
            Arg::Scratch(offset) => self.at(offset),
            Arg::Ptr(ptr) | Arg::U64(ptr) => Ok(ptr),
            other => Err(Error::invalid(format!("{other:?} is no address"))),
        }
    }
}

/// Enqueues all commands in order.
pub(crate) fn run_commands(driver: &dyn Driver, stream: Stream, encoding: &Encoding, scratch: Scratch) -> Result<()> {
    for command in &encoding.commands {
        match command {
            Command::Launch(launch) => run_launch(driver, stream, launch, &encoding.args, scratch)?,
            Command::Product {
                product,
                call,
                in_scratch,
                workspace,
            } => {
                let mut call = *call;
                if in_scratch.x {
                    call.x = scratch.at(call.x)?;
                    call.x_scales = scratch.at(call.x_scales)?;
                }
                if in_scratch.out {
                    call.out = scratch.at(call.out)?;
                }
                if in_scratch.weight {
                    call.weight = scratch.at(call.weight)?;
                }
                if in_scratch.weight_scales {
                    call.weight_scales = scratch.at(call.weight_scales)?;
                }
                let workspace = match product.workspace_bytes() {
                    0 => 0,
                    bytes => {
                        scratch.at(workspace + bytes - 1)?;
                        scratch.at(*workspace)?
                    }
                };
                // SAFETY: the command list holds what the addresses name; the op's scratch covers the workspace.
                unsafe { product.run(&call, workspace, stream)? };
            }
            // SAFETY: the command list holds what the addresses name.
            Command::Collective(group, call) => unsafe { group.run(call, stream)? },
            Command::Zero(to, bytes) => {
                let to = scratch.address(*to)?;
                // SAFETY: as above.
                unsafe { driver.fill(to, 0, *bytes, stream)? };
            }
            Command::Independent => driver.mark_independent(stream)?,
        }
    }
    Ok(())
}

fn boxes(driver: &dyn Driver, scratch: Scratch, of: &BoxesOf) -> Result<Boxes> {
    let at = match of.in_scratch {
        true => scratch.at(of.at)?,
        false => of.at,
    };
    driver.boxes(at, of.rows, of.width)
}

fn run_launch(driver: &dyn Driver, stream: Stream, launch: &Launch, args: &[Arg], scratch: Scratch) -> Result<()> {
    let args = &args[launch.args.0 as usize..][..launch.args.1 as usize];
    if args.len() > MAX_ARGS {
        return Err(Error::invalid(format!(
            "a kernel takes {} parameters, at most {MAX_ARGS} fit",
            args.len()
        )));
    }
    let described = args.iter().filter_map(|arg| match arg {
        Arg::Boxes(of) => Some(boxes(driver, scratch, of)),
        _ => None,
    });
    let described: Vec<Boxes> = described.collect::<Result<_>>()?;
    let mut described = described.iter();
    let mut params = [Param::Word(0); MAX_ARGS];
    for (param, &arg) in params.iter_mut().zip(args) {
        *param = match arg {
            Arg::Ptr(ptr) => Param::Ptr(ptr),
            Arg::Scratch(offset) => Param::Ptr(scratch.at(offset)?),
            Arg::Counter(index) => Param::Ptr(scratch.counter(index)?),
            Arg::Kept => Param::Ptr(scratch.kept()?),
            Arg::U32(value) => Param::Word(value),
            Arg::I32(value) => Param::Word(value as u32),
            Arg::F32(value) => Param::Word(value.to_bits()),
            Arg::U64(value) => Param::Long(value),
            Arg::Boxes(_) => described.next().map_or(Param::Word(0), |boxes| Param::Bytes(&boxes.0)),
        };
    }
    // SAFETY: the op appended the parameters that its kernel takes, over live memory.
    unsafe {
        driver.launch(
            launch.function,
            launch.grid,
            launch.block,
            launch.shared_bytes,
            &params[..args.len()],
            launch.chained,
            stream,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_lie_before_the_scratch_and_end_there() {
        let scratch = Scratch {
            base: 1 << 20,
            bytes: 64,
        };
        let last = (COUNTER_BYTES / 4 - 1) as u32;
        assert_eq!(scratch.counter(0).unwrap(), scratch.base - COUNTER_BYTES);
        assert_eq!(scratch.counter(last).unwrap() + 4, scratch.at(0).unwrap());
        assert!(scratch.counter(last + 1).unwrap_err().message.contains("counter 1024"));
        assert_eq!(scratch.kept().unwrap() + KEPT_BYTES, scratch.counter(0).unwrap());
    }

    #[test]
    fn a_queue_without_scratch_has_no_counters() {
        let none = Scratch { base: 0, bytes: 0 };
        assert!(none.counter(0).unwrap_err().message.contains("0 bytes"));
        assert!(none.kept().unwrap_err().message.contains("has none"));
    }
}
