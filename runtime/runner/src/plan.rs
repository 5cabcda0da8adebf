//! What loading decides before it allocates: types, block size, step sizes, and the attention backend.

use halyard_models::ModelFiles;
use halyard_models::program::{KvLayout, LoraOptions, ModelProgram, ProgramOptions, Shard, build_forward};
use halyard_platform_api::{AttentionRegistry, DType, Device, DeviceInfo, OpSpec};

use crate::buckets::wanted;
use crate::config::RunnerConfig;
use crate::error::RunnerError;
use crate::memory::Capacities;
use crate::scratch::SCRATCH_ROWS;

/// Steps in flight beyond the first that make sense; more only delay what users see.
const MAX_ASYNC_DEPTH: u32 = 64;

/// Most drafted tokens that a row verifies in a step: each costs a row of logits.
const MAX_DRAFTS: u32 = 32;

/// Most bytes of logits: 512 rows of a vocabulary of 131072.
const LOGITS_BYTES: u64 = 256 << 20;
/// Least number of rows of logits, and of unprocessed logits that are kept as well.
pub(crate) const MIN_LOGITS_ROWS: u32 = 64;

/// The numbers that loading settles first.
pub(crate) struct Plan {
    pub options: ProgramOptions,
    pub kv: KvLayout,
    pub block_bytes: u64,
    pub attention_name: String,
    pub capacities: Capacities,
    pub async_depth: u32,
    /// Decode steps are to be recorded; otherwise why not.
    pub recording: Result<(), &'static str>,
    /// Adapter slots, where adapters are served.
    pub lora: Option<LoraOptions>,
}

impl Plan {
    /// KV pages besides the scheduler's.
    pub(crate) fn scratch_pages(&self) -> u32 {
        self.capacities.scratch_rows * self.kv.groups.len() as u32
    }
}

/// The KV cache type when none was asked for. With the device's preferred activation type: the device's preferred KV
/// type. With another type, or when activations must be exact: the activation type, if the device can hold KV in it.
fn kv_dtype_for(act: DType, exact: bool, facts: &DeviceInfo) -> DType {
    if (exact || act != facts.preferred_dtype) && facts.kv_dtypes.contains(act) {
        act
    } else {
        facts.preferred_kv_dtype
    }
}

/// The type of the KV cache: the one asked for, or the one for this device.
pub fn kv_dtype(config: &RunnerConfig, facts: &DeviceInfo) -> DType {
    let act = config.dtype.unwrap_or(facts.preferred_dtype);
    let chosen = || kv_dtype_for(act, !config.allow_quantized_act, facts);
    config.cache.kv_cache_dtype.unwrap_or_else(chosen)
}

/// What users call a type of the KV cache: of codes with scales the name that vLLM has, else the type's own.
pub fn kv_dtype_name(kv: DType) -> String {
    match kv {
        DType::I8 => "int8_per_token_head".to_owned(),
        DType::U4 => "int4_per_token_head".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Settles the numbers of a load, for one rank's part of the model: types, sizes, attention backend.
///
/// # Errors
/// The option that does not fit, with its value and what would.
pub(crate) fn plan(
    config: &RunnerConfig,
    device: &dyn Device,
    files: &ModelFiles,
    shard: Shard,
) -> Result<Plan, RunnerError> {
    let (facts, d) = (device.info(), &files.description);
    let act = config.dtype.unwrap_or(facts.preferred_dtype);
    let kv_dtype = kv_dtype(config, facts);
    for (name, dtype, set) in [
        ("--dtype", act, facts.compute_dtypes),
        ("--kv-cache-dtype", kv_dtype, facts.kv_dtypes),
    ] {
        if !set.contains(dtype) {
            let show = |t: DType| match name {
                "--dtype" => format!("{t:?}"),
                _ => kv_dtype_name(t),
            };
            let known: Vec<String> = set.iter().map(show).collect();
            let message = format!(
                "{} is not offered by {}; choose one of {}",
                show(dtype),
                facts.name,
                known.join(", ")
            );
            return Err(RunnerError::Config { name, message });
        }
    }
    let longest = d.max_position_embeddings as u32;
    let max_model_len = config.max_model_len.unwrap_or(longest);
    if max_model_len == 0 || max_model_len > longest {
        let message = format!("{max_model_len} is not between 1 and the {longest} positions of this model");
        return Err(RunnerError::Config {
            name: "--max-model-len",
            message,
        });
    }
    let block_size = config.cache.block_size.unwrap_or(facts.preferred_block_size);
    if !(8..=1024).contains(&block_size) || !block_size.is_multiple_of(8) {
        let message = format!("{block_size} tokens; choose a multiple of 8 from 8 to 1024");
        return Err(RunnerError::Config {
            name: "--block-size",
            message,
        });
    }
    let max_seqs = config.max_num_seqs;
    let max_tokens = config.max_num_batched_tokens.unwrap_or(facts.preferred_step_tokens);
    if max_seqs == 0 || max_tokens < max_seqs {
        let message =
            format!("{max_tokens} is below --max-num-seqs {max_seqs}: every running request needs one token a step");
        return Err(RunnerError::Config {
            name: "--max-num-batched-tokens",
            message,
        });
    }
    let kv = KvLayout::of(d);
    let logits_chunk = logits_rows(max_seqs, d.vocab_size as u64, facts);
    let mut options = ProgramOptions {
        act,
        kv: kv_dtype,
        block_size,
        attention_backend: 0,
        max_tokens,
        max_seqs,
        max_kv_len: max_model_len,
        max_logits_rows: logits_chunk,
        allow_quantized_act: config.allow_quantized_act,
        narrow_last_layer: config.lora.is_none(),
        communicator: 0,
        shard,
        expert_parallel: config.expert_parallel,
        lora: None,
    };
    let lora = config.lora.as_ref().map(|lora| lora.options(act)).transpose()?;
    let chosen = choose_attention(config, device, files, &options)?;
    options.attention_backend = chosen.index;
    let recording = wanted(&config.recording, facts, chosen.records_decode);
    let scratch_rows = if recording.is_ok() { SCRATCH_ROWS } else { 0 };
    let async_depth = config.async_depth.unwrap_or(facts.async_depth);
    if async_depth > facts.async_depth {
        let message = format!(
            "{async_depth} steps in flight beyond the first; {} takes {} at most",
            facts.name, facts.async_depth
        );
        return Err(RunnerError::Config {
            name: "--async-depth",
            message,
        });
    }
    if async_depth > MAX_ASYNC_DEPTH {
        let message = format!("{async_depth} steps in flight; the platform may ask for at most {MAX_ASYNC_DEPTH}");
        return Err(RunnerError::Config {
            name: "async_depth",
            message,
        });
    }
    if config.max_drafts > MAX_DRAFTS {
        let message = format!(
            "{} drafted tokens a step; choose at most {MAX_DRAFTS}",
            config.max_drafts
        );
        return Err(RunnerError::Config {
            name: "num_speculative_tokens",
            message,
        });
    }
    let table_blocks = kv.groups.iter().map(|_| max_model_len.div_ceil(block_size)).collect();
    let capacities = Capacities {
        rows: max_seqs + scratch_rows,
        scratch_rows,
        max_model_len,
        max_seqs,
        max_tokens,
        vocab: d.vocab_size as u32,
        table_blocks,
        ring_entries: async_depth + 3,
        logits_chunk,
        max_sampled: config.max_drafts + 1,
        hidden_states: config.hidden_states.then_some((d.hidden_size as u32, act)),
    };
    Ok(Plan {
        options,
        kv,
        block_bytes: chosen.block_bytes,
        attention_name: chosen.name,
        capacities,
        async_depth,
        recording,
        lora,
    })
}

/// Rows of logits computed at once: each further chunk reads the head's weights again. All rows of a step where they
/// fit [`LOGITS_BYTES`] and a 64th of the memory; never fewer than [`MIN_LOGITS_ROWS`], and no more where the host
/// shares the memory.
fn logits_rows(max_seqs: u32, vocab: u64, facts: &DeviceInfo) -> u32 {
    let bytes = LOGITS_BYTES.min(facts.total_memory_bytes / 64);
    let fit = match facts.unified_memory {
        true => MIN_LOGITS_ROWS,
        false => u32::try_from(bytes / (4 * vocab.max(1))).unwrap_or(u32::MAX),
    };
    max_seqs.min(fit.max(MIN_LOGITS_ROWS))
}

/// An attention backend that takes every layer.
struct Chosen {
    index: u32,
    name: String,
    /// Largest block of any layer.
    block_bytes: u64,
    /// Decode steps of every layer can be recorded.
    records_decode: bool,
}

/// The attention backend by name, or the highest priority that takes every layer.
fn choose_attention(
    config: &RunnerConfig,
    device: &dyn Device,
    files: &ModelFiles,
    options: &ProgramOptions,
) -> Result<Chosen, RunnerError> {
    let registry = device.attention();
    let mut backends: Vec<_> = registry.backends().into_iter().enumerate().collect();
    let names: Vec<String> = backends.iter().map(|(_, b)| b.name.clone()).collect();
    if let Some(asked) = &config.attention_backend {
        backends.retain(|(_, b)| b.name == *asked);
        if backends.is_empty() {
            let message = format!("`{asked}` is not one of this platform's: {}", names.join(", "));
            return Err(RunnerError::Config {
                name: "--attention-backend",
                message,
            });
        }
    }
    backends.sort_by_key(|(_, b)| std::cmp::Reverse(b.priority));
    let mut refused = match backends.is_empty() {
        true => vec!["attention: this platform has no attention backend".to_owned()],
        false => Vec::new(),
    };
    for (index, backend) in backends {
        if !backend.block_sizes.is_empty() && !backend.block_sizes.contains(&options.block_size) {
            let (name, size, sizes) = (&backend.name, options.block_size, &backend.block_sizes);
            refused.push(format!("attention {name}: --block-size {size} is not one of {sizes:?}"));
            continue;
        }
        let options = ProgramOptions {
            attention_backend: index as u32,
            ..options.clone()
        };
        let format_of = |role| files.weights.format(role);
        let program = build_forward(
            &files.description,
            &KvLayout::of(&files.description),
            &options,
            &format_of,
        )?;
        match plan_layers(registry, &program) {
            Ok((block_bytes, records_decode)) => {
                return Ok(Chosen {
                    index: index as u32,
                    name: backend.name,
                    block_bytes,
                    records_decode,
                });
            }
            Err(why) => refused.extend(
                why.message
                    .lines()
                    .map(|line| format!("attention {}: {line}", backend.name)),
            ),
        }
    }
    Err(RunnerError::MissingOps { missing: refused })
}

/// The largest block of any layer's attention, and whether all of them can record decode steps.
fn plan_layers(registry: &dyn AttentionRegistry, program: &ModelProgram) -> halyard_platform_api::Result<(u64, bool)> {
    let mut planned: Vec<&OpSpec> = Vec::new();
    let (mut block_bytes, mut records_decode) = (0, true);
    for node in &program.program.nodes {
        if planned.contains(&&node.spec) {
            continue;
        }
        let plan = match &node.spec {
            OpSpec::Attention(spec) => {
                registry.support(spec)?;
                registry.plan(spec)?
            }
            OpSpec::LatentAttention(spec) => {
                registry.support_latent(spec)?;
                registry.plan_latent(spec)?
            }
            _ => continue,
        };
        block_bytes = plan.block_bytes.max(block_bytes);
        records_decode &= plan.record_decode;
        planned.push(&node.spec);
    }
    Ok((block_bytes, records_decode))
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::{Capabilities, DTypeSet};

    use super::*;

    #[test]
    fn a_kv_cache_that_nobody_chose_follows_the_activations() {
        let gpu = DeviceInfo {
            preferred_dtype: DType::BF16,
            preferred_kv_dtype: DType::F8E4M3,
            kv_dtypes: DTypeSet::of(&[DType::F16, DType::BF16, DType::F8E4M3]),
            ..facts(false, 1)
        };
        assert_eq!(
            kv_dtype_for(DType::BF16, false, &gpu),
            DType::F8E4M3,
            "the device's own choice"
        );
        assert_eq!(kv_dtype_for(DType::F16, false, &gpu), DType::F16);
        assert_eq!(
            kv_dtype_for(DType::F32, false, &gpu),
            DType::F8E4M3,
            "F32 is no KV type here"
        );
        assert_eq!(
            kv_dtype_for(DType::BF16, true, &gpu),
            DType::BF16,
            "as exact as the activations"
        );
        assert_eq!(
            kv_dtype_for(DType::F32, true, &gpu),
            DType::F8E4M3,
            "F32 is no KV type here"
        );
    }

    fn facts(unified_memory: bool, gib: u64) -> DeviceInfo {
        DeviceInfo {
            name: String::new(),
            detail: String::new(),
            total_memory_bytes: gib << 30,
            compute_dtypes: DTypeSet::default(),
            kv_dtypes: DTypeSet::default(),
            preferred_dtype: DType::F32,
            preferred_kv_dtype: DType::F32,
            capabilities: Capabilities::default(),
            async_depth: 0,
            max_buffer_bytes: u64::MAX,
            max_binding_bytes: u64::MAX,
            offset_alignment: 1,
            unified_memory,
            num_compute_units: 1,
            preferred_block_size: 16,
            preferred_step_tokens: 512,
            shape_buckets: Vec::new(),
        }
    }

    #[test]
    fn logits_of_a_whole_step_are_computed_at_once_where_memory_allows() {
        let large = facts(false, 140);
        assert_eq!(logits_rows(256, 128_256, &large), 256);
        assert_eq!(logits_rows(512, 128_256, &large), 512);
        assert_eq!(logits_rows(1024, 128_256, &large), 523);
        assert_eq!(logits_rows(8, 128_256, &large), 8);
        assert_eq!(logits_rows(256, 262_144, &facts(false, 4)), 64);
        assert_eq!(logits_rows(256, 262_144, &facts(true, 140)), 64);
    }
}
