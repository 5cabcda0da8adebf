//! A case run from a recording, twice: once with its own contents and once with others in the same memory. Both must
//! give what the oracle gives for them: a device that bakes contents into a recording gives the first answer again.

use halyard_platform_api::{Device, EncoderMode, QueueKind};

use crate::case::{Case, Contents};
use crate::execute::{Failure, Ready, WAIT_NS, broken, collect, compare, execute, operands, ready};

/// What a queue's scratch grows by between two replays, in bytes.
const MORE_SCRATCH: u64 = 4 << 20;

/// Runs a case recorded, where every op of it can be, on a device that claims recordings. `expected` is the oracle's
/// answer to the case; `other` is a case of the same ops and shapes. `None`: an op can't be recorded.
pub(crate) fn check(
    device: &dyn Device,
    oracle: &dyn Device,
    (case, expected): (&Case, &[Vec<u8>]),
    other: &Case,
    backend: u32,
) -> Option<Result<f32, String>> {
    let second = with_weights_of(other, case);
    match run(device, case, &second, backend) {
        Ok(None) | Err(Failure::Unsupported(_)) => None,
        Err(Failure::Broken(why)) => Some(Err(why)),
        Ok(Some([once, again])) => Some(judge(oracle, [(case, &once), (&second, &again)], expected)),
    }
}

fn judge(oracle: &dyn Device, replays: [(&Case, &[Vec<u8>]); 2], expected: &[Vec<u8>]) -> Result<f32, String> {
    let [(case, once), (second, again)] = replays;
    let first = compare(case, once, expected).map_err(|why| format!("first replay: {why}"))?;
    let expected = execute(oracle, second, 0).map_err(|failure| match failure {
        Failure::Unsupported(why) | Failure::Broken(why) => format!("the oracle: {why}"),
    })?;
    let worst = compare(second, again, &expected).map_err(|why| format!("second replay: {why}"))?;
    Ok(worst.max(first))
}

/// `other`'s contents with `case`'s weights, which are constant; `case` again where ops or shapes differ.
fn with_weights_of(other: &Case, case: &Case) -> Case {
    let same_shapes = case.args.len() == other.args.len()
        && case.args.iter().zip(&other.args).all(|(a, b)| {
            (a.dtype, &a.shape, a.row_gap) == (b.dtype, &b.shape, b.row_gap)
                && std::mem::discriminant(&a.contents) == std::mem::discriminant(&b.contents)
        });
    if !same_shapes || case.nodes != other.nodes {
        return case.clone();
    }
    let mut second = other.clone();
    for (arg, own) in second.args.iter_mut().zip(&case.args) {
        if let Contents::Weight { .. } = own.contents {
            arg.contents = own.contents.clone();
        }
    }
    second
}

fn run(device: &dyn Device, first: &Case, second: &Case, backend: u32) -> Result<Option<[Vec<Vec<u8>>; 2]>, Failure> {
    let Ready { ops, mut placed } = ready(device, first, backend)?;
    if ops.iter().any(|op| !op.info().recordable) {
        return Ok(None);
    }
    let queue = device
        .create_queue(QueueKind::Compute)
        .map_err(broken("create_queue"))?;
    let scratch = ops.iter().map(|op| op.info().scratch_bytes).max().unwrap_or(0);
    queue.reserve_scratch(scratch).map_err(broken("reserve_scratch"))?;
    let mut encoder = queue
        .create_encoder(EncoderMode::Reusable)
        .map_err(broken("create_encoder(Reusable)"))?;
    for (op, (_, indices)) in ops.iter().zip(&first.nodes) {
        encoder
            .encode(op.id(), &operands(&placed, indices))
            .map_err(broken("encode into a reusable encoder"))?;
    }
    let commands = encoder.finish().map_err(broken("finish a reusable encoder"))?;
    let replay = || {
        let number = queue.submit(&[commands.id()], &[]).map_err(broken("submit"))?;
        queue.wait(number, WAIT_NS).map_err(broken("wait"))
    };
    replay()?;
    let once = collect(first, &placed)?;
    // It may move: sealed commands stay right.
    queue
        .reserve_scratch(scratch + MORE_SCRATCH)
        .map_err(broken("reserve_scratch"))?;
    for (placed, arg) in placed.iter_mut().zip(&second.args) {
        placed.refill(arg)?;
    }
    replay()?;
    Ok(Some([once, collect(second, &placed)?]))
}
