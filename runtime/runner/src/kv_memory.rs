//! How many KV pages a device's memory holds, and the arithmetic shown when they are too few.

use halyard_platform_api::MemoryInfo;
use halyard_scheduler::SchedulerConfig;

use crate::config::RunnerConfig;
use crate::error::RunnerError;
use crate::host_memory::show_bytes;

/// Most KV bytes taken unasked where host and device share one memory: the rest of the machine lives there too.
/// (vLLM's CPU default, `VLLM_CPU_KVCACHE_SPACE`, is 4 GiB as well.)
const UNIFIED_KV_BYTES: u64 = 4 << 30;

/// The inputs of the sizing.
pub(crate) struct KvNeeds {
    pub page_bytes: u64,
    pub weight_bytes: u64,
    /// After weights and activations were allocated.
    pub memory: MemoryInfo,
    /// Pages that one buffer can hold.
    pub max_pages: u64,
    pub unified: bool,
    /// Ranks that take their pool from the same memory.
    pub sharing: u32,
    /// Pages besides the pool's, for checking recordings.
    pub scratch_pages: u32,
}

/// The pool's size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KvSize {
    pub num_pages: u32,
    pub max_model_len: u32,
    pub note: Option<String>,
}

/// Sizes the pool: an explicit byte size, or the utilisation's share of all memory less what is in use.
///
/// # Errors
/// `DoesNotFit` with the arithmetic, when not even one request of the context fits.
pub(crate) fn size(config: &RunnerConfig, scheduler: &SchedulerConfig, needs: &KvNeeds) -> Result<KvSize, RunnerError> {
    let utilization = config.cache.gpu_memory_utilization;
    if !(utilization > 0.0 && utilization <= 1.0) {
        let message = format!("{utilization} is not above 0 and at most 1");
        return Err(RunnerError::Config {
            name: "--gpu-memory-utilization",
            message,
        });
    }
    let m = &needs.memory;
    let share = (m.total_bytes as f64 * utilization) as u64;
    let free = share
        .saturating_sub(m.total_bytes - m.free_bytes.min(m.total_bytes))
        .saturating_sub(u64::from(needs.scratch_pages) * needs.page_bytes);
    let budget = match config.cache.kv_cache_memory_bytes {
        Some(bytes) => bytes,
        None if needs.unified => free.min(UNIFIED_KV_BYTES) / u64::from(needs.sharing.max(1)),
        None => free,
    };
    let page_bytes = needs.page_bytes.max(1);
    let most = needs
        .max_pages
        .saturating_sub(u64::from(needs.scratch_pages))
        .min(1 << 30);
    let overridden = config.cache.num_gpu_blocks_override.map(u64::from);
    if let Some(blocks) = overridden
        && (blocks == 0 || blocks > most || blocks * page_bytes > m.free_bytes)
    {
        let arithmetic = format!(
            "--num-gpu-blocks-override {blocks}: blocks of {page_bytes} bytes = {}; choose 1 to {} (memory that is \
             free: {})",
            show_bytes(blocks * page_bytes),
            most.min(m.free_bytes / page_bytes),
            show_bytes(m.free_bytes)
        );
        return Err(RunnerError::DoesNotFit { arithmetic });
    }
    let budget = overridden.map_or(budget, |blocks| blocks * page_bytes);
    if budget > m.free_bytes {
        let arithmetic = format!(
            "--kv-cache-memory-bytes {budget} ({}) is more than the {} that are free on the device",
            show_bytes(budget),
            show_bytes(m.free_bytes)
        );
        return Err(RunnerError::DoesNotFit { arithmetic });
    }
    let useful = scheduler
        .blocks_for(scheduler.max_model_len)
        .saturating_mul(u64::from(scheduler.max_num_seqs));
    let pages = overridden.unwrap_or_else(|| (budget / page_bytes).min(useful).min(most));
    let asked = scheduler.max_model_len;
    let fits = longest_context(scheduler, pages);
    if fits >= asked {
        return Ok(KvSize {
            num_pages: pages as u32,
            max_model_len: asked,
            note: None,
        });
    }
    if config.max_model_len.is_none() && fits >= 64 {
        let note = format!(
            "max_model_len lowered from {asked} to {fits}: {} of KV memory hold {pages} pages of {} bytes; give more \
             with --kv-cache-memory-bytes, or name --max-model-len to make this an error",
            show_bytes(budget),
            needs.page_bytes
        );
        return Ok(KvSize {
            num_pages: pages as u32,
            max_model_len: fits,
            note: Some(note),
        });
    }
    let needed = scheduler.blocks_for(asked);
    let request = format!(
        "one request of {asked} tokens needs {needed} KV pages of {} bytes = {}",
        needs.page_bytes,
        show_bytes(needed * needs.page_bytes)
    );
    let room = format!(
        "{} for KV = {pages} pages, enough for {fits} tokens",
        show_bytes(budget)
    );
    // Where not one token fits, a shorter context is no remedy.
    let shorter = match fits {
        0 => String::new(),
        fits => format!(", or lower --max-model-len to {fits}"),
    };
    let arithmetic = match (overridden, config.cache.kv_cache_memory_bytes) {
        (Some(blocks), _) => format!("{request}; --num-gpu-blocks-override {blocks} is {room}: raise it{shorter}"),
        (None, Some(bytes)) => format!("{request}; --kv-cache-memory-bytes {bytes} is {room}: raise it{shorter}"),
        (None, None) => format!(
            "{request}; the device has {} in all, {} in use ({} of weights), and {utilization} of it leaves {room}: \
             raise --gpu-memory-utilization, set --kv-cache-memory-bytes, end what else uses it{shorter}",
            show_bytes(m.total_bytes),
            show_bytes(m.total_bytes - m.free_bytes.min(m.total_bytes)),
            show_bytes(needs.weight_bytes),
        ),
    };
    Err(RunnerError::DoesNotFit { arithmetic })
}

/// The longest sequence whose blocks are at most `pages`.
fn longest_context(scheduler: &SchedulerConfig, pages: u64) -> u32 {
    let (mut low, mut high) = (0, scheduler.max_model_len);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if scheduler.blocks_for(middle) <= pages {
            low = middle
        } else {
            high = middle - 1
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(free_gib: u64) -> KvNeeds {
        KvNeeds {
            page_bytes: 1 << 20,
            weight_bytes: 1 << 30,
            memory: MemoryInfo {
                total_bytes: 16 << 30,
                free_bytes: free_gib << 30,
                used_bytes: 0,
            },
            max_pages: u64::MAX,
            unified: false,
            sharing: 1,
            scratch_pages: 0,
        }
    }

    fn scheduler(max_model_len: u32) -> SchedulerConfig {
        SchedulerConfig {
            max_model_len,
            num_blocks: 1,
            ..SchedulerConfig::default()
        }
    }

    #[test]
    fn utilization_counts_what_is_already_in_use() {
        let config = RunnerConfig::default();
        let size = size(&config, &scheduler(8192), &needs(12)).expect("fits");
        // 0.9 · 16 GiB − 4 GiB in use = 10.4 GiB of 1 MiB pages.
        assert_eq!(size.num_pages, (10.4f64 * 1024.0) as u32);
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_what_would() {
        let mut config = RunnerConfig {
            max_model_len: Some(1 << 20),
            ..RunnerConfig::default()
        };
        config.cache.kv_cache_memory_bytes = Some(1 << 30);
        let error = size(&config, &scheduler(1 << 20), &needs(12))
            .expect_err("too long")
            .to_string();
        assert!(error.contains("lower --max-model-len to 16384"), "{error}");
        assert!(error.contains("--kv-cache-memory-bytes 1073741824"), "{error}");
        assert!(
            !error.contains("utilization"),
            "what did not bind is not blamed: {error}"
        );
    }

    #[test]
    fn where_no_token_fits_a_shorter_context_is_no_remedy() {
        let mut config = RunnerConfig {
            max_model_len: Some(256),
            ..RunnerConfig::default()
        };
        config.cache.kv_cache_memory_bytes = Some(1);
        let error = size(&config, &scheduler(256), &needs(12))
            .expect_err("nothing fits")
            .to_string();
        assert!(
            error.contains("is 1 bytes for KV") && error.ends_with("raise it"),
            "{error}"
        );
    }

    #[test]
    fn an_unnamed_context_is_lowered_with_a_note() {
        let mut config = RunnerConfig::default();
        config.cache.kv_cache_memory_bytes = Some(1 << 30);
        let size = size(&config, &scheduler(1 << 20), &needs(12)).expect("lowered");
        assert_eq!(size.max_model_len, 16384);
        assert!(size.note.expect("says so").contains("lowered from 1048576 to 16384"));
    }

    #[test]
    fn a_number_of_blocks_is_taken_as_it_is() {
        let mut config = RunnerConfig::default();
        config.cache.num_gpu_blocks_override = Some(600);
        let sized = size(&config, &scheduler(8192), &needs(12)).expect("fits");
        assert_eq!(sized.num_pages, 600);
        // Even where the requests that may run could never fill them.
        config.cache.num_gpu_blocks_override = Some(5000);
        let few = SchedulerConfig {
            max_num_seqs: 1,
            ..scheduler(64)
        };
        assert_eq!(size(&config, &few, &needs(12)).expect("fits").num_pages, 5000);
        for too_many in [0, 12 * 1024 + 1] {
            config.cache.num_gpu_blocks_override = Some(too_many);
            let error = size(&config, &scheduler(8192), &needs(12))
                .expect_err("does not fit")
                .to_string();
            assert!(error.contains("choose 1 to 12288"), "{error}");
        }
        // A context that they do not hold is refused where it was named.
        config.cache.num_gpu_blocks_override = Some(2);
        config.max_model_len = Some(8192);
        assert!(size(&config, &scheduler(8192), &needs(12)).is_err());
    }

    #[test]
    fn more_than_is_free_is_refused() {
        let mut config = RunnerConfig::default();
        config.cache.kv_cache_memory_bytes = Some(64 << 30);
        assert!(matches!(
            size(&config, &scheduler(8192), &needs(12)),
            Err(RunnerError::DoesNotFit { .. })
        ));
    }
}
