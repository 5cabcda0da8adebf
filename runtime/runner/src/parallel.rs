//! Loading over several devices: the numbers on which all ranks must agree, and work that all ranks do at the same
//! time.

use std::sync::Arc;

use halyard_models::ModelFiles;
use halyard_models::program::{ModelProgram, Shard};
use halyard_platform_api::ops::MoeLinear;
use halyard_platform_api::{Capabilities, Communicator, CommunicatorDesc, CommunicatorId, Device, OpSpec, Status};

use crate::config::RunnerConfig;
use crate::error::RunnerError;
use crate::plan::{Plan, plan};

/// The option of expert parallelism.
const EXPERT_PARALLEL: &str = "--enable-expert-parallel";

/// Settles every rank's numbers. Rank 0 chooses what the configuration leaves open, the others take it over or refuse
/// it.
///
/// # Errors
/// As [`plan`]; a device that cannot work with others.
pub(crate) fn plan_ranks(
    config: &RunnerConfig,
    devices: &[Arc<dyn Device>],
    files: &ModelFiles,
) -> Result<Vec<Plan>, RunnerError> {
    let size = devices.len() as u32;
    let alone = |device: &&Arc<dyn Device>| !device.info().capabilities.has(Capabilities::COMMUNICATOR);
    if let (true, Some(device)) = (size != 1, devices.iter().find(alone)) {
        let message = format!(
            "{size}, but {} offers no communication between devices; use 1",
            device.info().name
        );
        return Err(RunnerError::Config {
            name: "--tensor-parallel-size",
            message,
        });
    }
    let has_experts = files.description.layers.iter().any(|layer| layer.mlp.num_experts() > 0);
    if config.expert_parallel && !has_experts {
        let model = &files.description.architecture;
        let message =
            format!("{model} has no layer with experts; leave it out, --tensor-parallel-size divides every layer");
        return Err(RunnerError::Config {
            name: EXPERT_PARALLEL,
            message,
        });
    }
    let Some(device) = devices.first() else {
        return Err(RunnerError::Config {
            name: "--tensor-parallel-size",
            message: "0 devices; at least one is needed".to_string(),
        });
    };
    let mut plans = vec![plan(config, &**device, files, Shard { rank: 0, size })?];
    let pinned = pinned(config, &plans[0]);
    for (device, rank) in devices.iter().zip(0..).skip(1) {
        let mut of_rank = plan(&pinned, &**device, files, Shard { rank, size }).map_err(|e| at_rank(rank, size, &e))?;
        // Sizes that were chosen by a device's memory must not differ either: collectives carry equally many values.
        of_rank.capacities = plans[0].capacities.clone();
        of_rank.options.max_logits_rows = plans[0].options.max_logits_rows;
        plans.push(of_rank);
    }
    Ok(plans)
}

/// Checks that the platform computes with some of the experts, where it does with all of them. (What it does not
/// compute at all stands in the list of missing ops.)
///
/// # Errors
/// The option, with the platform's reason.
pub(crate) fn check_experts(device: &dyn Device, program: &ModelProgram) -> Result<(), RunnerError> {
    let some = program.program.nodes.iter().filter_map(|node| match &node.spec {
        OpSpec::MoeLinear(op) if op.total_experts > 0 => Some(op),
        _ => None,
    });
    for op in some {
        let Err(why) = device.ops().support(&op.clone().into()) else {
            continue;
        };
        let all = MoeLinear {
            first_expert: 0,
            total_experts: 0,
            ..op.clone()
        };
        if device.ops().support(&all.into()).is_ok() {
            let message = format!(
                "{} has no op for some of the experts ({}); leave it out, --tensor-parallel-size divides every expert",
                device.info().name,
                why.message
            );
            return Err(RunnerError::Config {
                name: EXPERT_PARALLEL,
                message,
            });
        }
    }
    Ok(())
}

/// What expert parallelism came to, for the log.
pub(crate) fn experts_note(config: &RunnerConfig, ranks: usize) -> Option<String> {
    config.expert_parallel.then(|| match ranks {
        1 => format!("{EXPERT_PARALLEL}: one device has all experts; --tensor-parallel-size divides them"),
        _ => format!("experts: each of {ranks} ranks has some of every layer's, whole"),
    })
}

/// The configuration with everything named that rank 0 has chosen.
fn pinned(config: &RunnerConfig, plan: &Plan) -> RunnerConfig {
    let mut config = config.clone();
    config.dtype = Some(plan.options.act);
    config.attention_backend = Some(plan.attention_name.clone());
    config.cache.kv_cache_dtype = Some(plan.options.kv);
    config.cache.block_size = Some(plan.options.block_size);
    config.max_num_batched_tokens = Some(plan.capacities.max_tokens);
    config.async_depth = Some(plan.async_depth);
    config
}

fn at_rank(rank: u32, size: u32, error: &RunnerError) -> RunnerError {
    RunnerError::Ranks(format!("rank {rank} of {size}: {error}"))
}

/// Does `first` on this thread with the first input and `other` with each of the rest on a thread of its own, all at
/// the same time, and gives their results in rank order.
///
/// # Errors
/// The failures by rank. A rank that only waited for a failed one is left out.
pub(crate) fn on_every_rank<T: Send, R: Send>(
    inputs: Vec<T>,
    first: impl FnOnce(T) -> Result<R, RunnerError>,
    other: impl Fn(T) -> Result<R, RunnerError> + Sync,
) -> Result<Vec<R>, RunnerError> {
    let size = inputs.len() as u32;
    let mut inputs = inputs.into_iter();
    let mut results: Vec<Result<R, RunnerError>> = Vec::with_capacity(size as usize);
    let Some(input) = inputs.next() else {
        return Ok(Vec::new());
    };
    let other = &other;
    std::thread::scope(|scope| {
        let threads: Vec<_> = inputs.map(|input| scope.spawn(move || other(input))).collect();
        results.push(first(input));
        let panicked = || Err(RunnerError::Thread("a rank's thread panicked; see the log".to_string()));
        results.extend(threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())));
    });
    if size == 1 || results.iter().all(Result::is_ok) {
        return results.into_iter().collect();
    }
    let errors = results
        .into_iter()
        .zip(0..)
        .filter_map(|(r, rank)| Some((rank, r.err()?)));
    let errors: Vec<(u32, RunnerError)> = errors.collect();
    let in_vain = |e: &RunnerError| match e {
        RunnerError::Device(e) => e.status == Status::Timeout,
        RunnerError::Ranks(_) => true,
        _ => false,
    };
    let only_vain = errors.iter().all(|(_, e)| in_vain(e));
    let causes = errors.iter().filter(|(_, e)| only_vain || !in_vain(e));
    let words: Vec<String> = causes.map(|(rank, e)| format!("rank {rank} of {size}: {e}")).collect();
    Err(RunnerError::Ranks(words.join("; ")))
}

/// The id that the ranks of a group join with; `None` for one device.
///
/// # Errors
/// Errors of the device.
pub(crate) fn group_id(devices: &[Arc<dyn Device>]) -> Result<Option<CommunicatorId>, RunnerError> {
    match devices {
        [] | [_] => Ok(None),
        [first, ..] => Ok(Some(first.communicator_id()?)),
    }
}

/// Joins the ranks' group; blocks until all have.
///
/// # Errors
/// Errors of the device.
pub(crate) fn join(
    device: &dyn Device,
    id: Option<&CommunicatorId>,
    shard: Shard,
) -> Result<Option<Arc<dyn Communicator>>, RunnerError> {
    let Some(id) = id else {
        return Ok(None);
    };
    Ok(Some(device.create_communicator(&CommunicatorDesc::new(
        id, shard.rank, shard.size,
    ))?))
}
