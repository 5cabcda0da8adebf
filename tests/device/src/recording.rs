//! Recorded steps on a real device: they give what steps encoded anew give, and many of them take no more memory.

use std::path::Path;
use std::sync::Arc;

use halyard_engine::{EngineConfig, Llm, Request, SamplingParams};
use halyard_platform_api::{Capabilities, DType, Device};

/// Families with one KV group and with several, with and without norms of q and k.
const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];
/// What may be asked of a sampler.
pub(crate) const KINDS: [&str; 3] = ["greedy", "random", "penalties"];
/// Requests of one run.
pub(crate) const REQUESTS: u32 = 24;
/// Memory that may come and go between two readings: other programs use the device too.
const SLACK_BYTES: u64 = 8 << 20;

/// A check's name, and what it showed or why it failed.
pub type Outcome = (String, Result<String, String>);

/// Whether there is anything to check; otherwise why not.
///
/// # Errors
/// The reason.
pub fn applies(device: &dyn Device) -> Result<(), String> {
    match device.info().capabilities.has(Capabilities::RECORDING) {
        true => Ok(()),
        false => Err("the device claims no recording".to_string()),
    }
}

/// Serves the same requests recorded and encoded anew, in those of the types that the device computes in: those pairs
/// of a type and a family whose number `wanted` takes.
pub fn check(
    device: &Arc<dyn Device>,
    fixtures: &Path,
    types: &[DType],
    wanted: impl Fn(usize) -> bool,
    configure: impl Fn(&Path) -> EngineConfig,
) -> Vec<Outcome> {
    let info = device.info();
    let mut outcomes = Vec::new();
    let pairs = types
        .iter()
        .flat_map(|&dtype| FAMILIES.map(|family| (dtype, family)))
        .enumerate();
    for (_, (dtype, family)) in pairs.filter(|(number, _)| wanted(*number)) {
        if info.compute_dtypes.contains(dtype) && info.kv_dtypes.contains(dtype) {
            let mut config = configure(&fixtures.join(family));
            (config.model.dtype, config.cache.kv_cache_dtype) = (Some(dtype), Some(dtype));
            config.recording.from_step = 1;
            outcomes.push((format!("recording {family} {dtype:?}"), compare(device, &config, dtype)));
        }
    }
    outcomes
}

/// The share of requests whose tokens must be the same. A padded step may sum in another order: in f32 no token of
/// these models is so near another one, in half precision some are.
pub(crate) fn least_equal(dtype: DType) -> usize {
    match dtype {
        DType::F32 => REQUESTS as usize,
        _ => REQUESTS as usize / 2,
    }
}

/// Pairs of runs of which one must have that share. Requests come while the engine runs, so that two runs may batch
/// them otherwise, and most of random tokens in half precision then follow another path from some token on; f32 does
/// not mind.
fn attempts(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 1,
        _ => 3,
    }
}

fn compare(device: &Arc<dyn Device>, config: &EngineConfig, dtype: DType) -> Result<String, String> {
    let (mut replayed, mut all, mut fewest) = (0, 0, REQUESTS as usize);
    for kind in KINDS {
        let mut run = |enforce_eager| {
            let mut config = config.clone();
            config.recording.enforce_eager = enforce_eager;
            let llm = Llm::open(config, Arc::clone(device)).map_err(|e| e.to_string())?;
            let tokens = serve(&llm, kind)?;
            let stats = llm.engine().stats();
            if !enforce_eager {
                (replayed, all) = (replayed + stats.replayed_steps_total, all + stats.steps_total);
            }
            Ok::<_, String>(tokens)
        };
        let mut equal = 0;
        for _ in 0..attempts(dtype) {
            let (recorded, eager) = (run(false)?, run(true)?);
            equal = recorded.iter().zip(&eager).filter(|(a, b)| a == b).count();
            if equal >= least_equal(dtype) {
                break;
            }
        }
        if equal < least_equal(dtype) {
            return Err(format!("{kind}: {equal} of {REQUESTS} requests got the same tokens"));
        }
        fewest = fewest.min(equal);
    }
    if 2 * replayed < all {
        return Err(format!(
            "{replayed} of {all} steps were replayed; the log says which recordings were refused"
        ));
    }
    Ok(format!(
        "{replayed} of {all} steps replayed, at least {fewest} of {REQUESTS} requests with the same tokens"
    ))
}

/// Requests of other lengths and ends, so that batches of every size come and rows change owners between steps.
pub(crate) fn serve(llm: &Llm, kind: &str) -> Result<Vec<Vec<u32>>, String> {
    let submit = |i: u32| {
        let prompt = (0..1 + 7 * i % 30).map(|j| (11 * i + 3 * j) % 300 + 3).collect();
        let request = Request::new(format!("{i}"), prompt, params(kind, i));
        llm.engine().submit(request).map_err(|e| e.to_string())
    };
    let streams = (0..REQUESTS).map(submit).collect::<Result<Vec<_>, _>>()?;
    Ok(streams
        .into_iter()
        .map(|stream| stream.blocking_collect().outputs[0].token_ids.clone())
        .collect())
}

fn params(kind: &str, i: u32) -> SamplingParams {
    let greedy = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy(3 + 5 * (i % 7))
    };
    match kind {
        "random" => SamplingParams {
            temperature: 0.9,
            top_p: 0.9,
            seed: Some(u64::from(i)),
            ..greedy
        },
        "penalties" => SamplingParams {
            temperature: 0.7,
            repetition_penalty: 1.3,
            frequency_penalty: 0.4,
            seed: Some(u64::from(i)),
            ..greedy
        },
        _ => greedy,
    }
}

/// Replays at least `steps` decode steps and compares the memory of the device, and of the process where it does
/// nothing else (`alone`), before them, with everything recorded, and at the end.
///
/// # Errors
/// Memory that grew, or an engine that failed.
pub fn many_replays(device: &Arc<dyn Device>, config: EngineConfig, steps: u64, alone: bool) -> Result<String, String> {
    let llm = Llm::open(config, Arc::clone(device)).map_err(|e| e.to_string())?;
    // `count` requests of `tokens` tokens each, together.
    let round = |kind: &str, count: u32, tokens: u32| -> Result<(), String> {
        let submit = |i: u32| {
            let params = SamplingParams {
                max_tokens: Some(tokens),
                ..params(kind, i)
            };
            let request = Request::new(format!("{i}"), vec![i + 5; 3], params);
            llm.engine().submit(request).map_err(|e| e.to_string())
        };
        let streams = (0..count).map(submit).collect::<Result<Vec<_>, _>>()?;
        streams.into_iter().for_each(|stream| drop(stream.blocking_collect()));
        Ok(())
    };
    let run_to = |goal: u64| {
        loop {
            let before = llm.engine().stats().replayed_steps_total;
            if before >= goal {
                return Ok::<_, String>(());
            }
            round(KINDS[(before % 3) as usize], 1 + (before / 200 % 8) as u32, 200)?;
            if llm.engine().stats().replayed_steps_total == before {
                let why = llm.engine().health().err();
                return Err(why.unwrap_or_else(|| "no step was replayed".to_string()));
            }
        }
    };
    let used = || -> Result<[u64; 3], String> {
        let memory = device.memory().map_err(|e| e.to_string())?;
        Ok([
            memory.used_bytes,
            memory.total_bytes - memory.free_bytes,
            resident_bytes(),
        ])
    };
    // Whatever is recorded and compiled once, for each sampler and number of sequences, comes first.
    for (count, kind) in (1..=8).flat_map(|count| KINDS.map(|kind| (count, kind))) {
        round(kind, count, 12)?;
    }
    let first = llm.engine().stats().replayed_steps_total;
    let before = used()?;
    run_to(first + steps)?;
    let after = used()?;
    let replayed = llm.engine().stats().replayed_steps_total - first;
    let grown = |i: usize| after[i].saturating_sub(before[i]);
    let text = format!(
        "{replayed} replays; grown by {} bytes in buffers, {} on the device, {} in this process",
        grown(0),
        grown(1),
        grown(2)
    );
    // Where host and device share one memory, this counts the whole machine's.
    let device_grew = grown(1) > SLACK_BYTES && !device.info().unified_memory;
    let process_grew = grown(2) > SLACK_BYTES && alone;
    match grown(0) == 0 && !device_grew && !process_grew {
        true => Ok(text),
        false => Err(text),
    }
}

/// Memory of this process that is resident; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
