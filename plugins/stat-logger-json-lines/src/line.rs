//! A record as one JSON object: `type`, then the record's fields under their names. Codes are written as words.

use halyard_platform_api::hooks::{
    CacheRecord, FINISH_REASONS, FinishedRecord, IterationRecord, LoraRecord, REJECTION_REASONS, RESIDENCIES,
    RejectedRecord, SHUTDOWN_REASONS, SchedulerRecord, ShutdownRecord, StartRecord, StatRecord,
};
use serde_json::{Value, json};

/// The object of a record.
pub fn line(record: &StatRecord) -> Value {
    match record {
        StatRecord::Start(record) => start(record),
        StatRecord::Scheduler(record) => scheduler(record),
        StatRecord::Iteration(record) => iteration(record),
        StatRecord::Finished(record) => finished(record),
        StatRecord::Cache(record) => cache(record),
        StatRecord::Lora(record) => lora(record),
        StatRecord::Rejected(record) => rejected(record),
        StatRecord::Shutdown(record) => shutdown(record),
    }
}

/// The word of a code; `unknown` for one that a newer host sends.
fn word(code: u32, words: &[&'static str]) -> &'static str {
    words.get(code as usize).copied().unwrap_or("unknown")
}

fn start(r: &StartRecord) -> Value {
    json!({
        "type": "start", "unix_ns": r.unix_ns, "engine_index": r.engine_index, "model": &*r.model,
            "model_root": &*r.model_root,
        "architecture": &*r.architecture, "dtype": &*r.dtype, "kv_cache_dtype": &*r.kv_cache_dtype,
            "platform": &*r.platform,
        "device": &*r.device, "version": &*r.version, "tensor_parallel_size": r.tensor_parallel_size,
        "max_model_len": r.max_model_len, "max_num_seqs": r.max_num_seqs,
        "max_num_batched_tokens": r.max_num_batched_tokens, "block_size": r.block_size, "num_blocks": r.num_blocks,
        "prefix_caching": r.prefix_caching != 0, "max_loras": r.max_loras, "weight_bytes": r.weight_bytes,
        "kv_cache_bytes": r.kv_cache_bytes,
    })
}

fn scheduler(r: &SchedulerRecord) -> Value {
    json!({
        "type": "scheduler", "unix_ns": r.unix_ns, "step_index": r.step_index, "num_running": r.num_running,
        "num_waiting": r.num_waiting, "num_preempted": r.num_preempted,
    })
}

fn iteration(r: &IterationRecord) -> Value {
    json!({
        "type": "iteration", "unix_ns": r.unix_ns, "step_index": r.step_index, "step_ns": r.step_ns,
        "num_seqs": r.num_seqs, "num_admitted": r.num_admitted, "replayed": r.replayed != 0,
        "prompt_tokens": r.prompt_tokens, "cached_tokens": r.cached_tokens, "external_tokens": r.external_tokens,
        "generation_tokens": r.generation_tokens, "first_token_ns": &r.first_token_ns[..],
        "inter_token_ns": &r.inter_token_ns[..], "inter_token_counts": &r.inter_token_counts[..],
    })
}

fn finished(r: &FinishedRecord) -> Value {
    json!({
        "type": "finished", "unix_ns": r.unix_ns, "arrival_unix_ns": r.arrival_unix_ns, "request_id": &*r.request_id,
        "sequence": r.sequence, "sample_index": r.sample_index, "num_samples": r.num_samples,
        "ends_request": r.ends_request != 0, "reason": word(r.reason, &FINISH_REASONS),
        "detail": &*r.detail, "prompt_tokens": r.prompt_tokens, "cached_tokens": r.cached_tokens,
        "generation_tokens": r.generation_tokens, "max_sample_tokens": r.max_sample_tokens,
        "max_tokens": r.max_tokens, "queue_ns": r.queue_ns, "prefill_ns": r.prefill_ns, "decode_ns": r.decode_ns,
        "first_token_ns": r.first_token_ns, "inter_token_ns": r.inter_token_ns,
        "max_inter_token_ns": r.max_inter_token_ns, "total_ns": r.total_ns, "num_preemptions": r.num_preemptions,
        "priority": r.priority, "lora_id": r.lora_id, "lora_name": &*r.lora_name, "trace_parent": &*r.trace_parent,
        "trace_state": &*r.trace_state, "temperature": r.temperature, "top_p": r.top_p,
    })
}

fn cache(r: &CacheRecord) -> Value {
    json!({
        "type": "cache", "unix_ns": r.unix_ns, "used_blocks": r.used_blocks, "total_blocks": r.total_blocks,
        "block_size": r.block_size, "usage": r.usage, "prefix_queries": r.prefix_queries,
        "prefix_hits": r.prefix_hits, "external_queries": r.external_queries, "external_hits": r.external_hits,
        "store_blocks": r.store_blocks, "load_blocks": r.load_blocks, "evicted_blocks": r.evicted_blocks,
        "store_bytes": r.store_bytes, "load_bytes": r.load_bytes, "external_usage": r.external_usage,
    })
}

fn lora(r: &LoraRecord) -> Value {
    json!({
        "type": "lora", "unix_ns": r.unix_ns, "lora_id": r.lora_id, "name": &*r.name, "path": &*r.path, "rank": r.rank,
        "num_running": r.num_running, "num_waiting": r.num_waiting,
        "residency": word(r.residency, &RESIDENCIES), "weight_bytes": r.weight_bytes,
        "load_ns": r.load_ns, "loads_total": r.loads_total, "hits_total": r.hits_total,
        "requests_total": r.requests_total, "disk_reads_total": r.disk_reads_total,
    })
}

fn rejected(r: &RejectedRecord) -> Value {
    json!({
        "type": "rejected", "unix_ns": r.unix_ns, "request_id": &*r.request_id,
            "reason": word(r.reason, &REJECTION_REASONS),
        "prompt_tokens": r.prompt_tokens, "detail": &*r.detail,
    })
}

fn shutdown(r: &ShutdownRecord) -> Value {
    json!({
        "type": "shutdown", "unix_ns": r.unix_ns, "reason": word(r.reason, &SHUTDOWN_REASONS),
        "steps_total": r.steps_total, "detail": &*r.detail,
    })
}
