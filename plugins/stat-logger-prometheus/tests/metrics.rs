//! The sink, through its tables as the server runs it: records in, vLLM's names out.

use std::time::Duration;

use halyard_platform_api::hooks::{
    Batch, CacheRecord, FinishedRecord, IterationRecord, LoraRecord, RejectedRecord, SchedulerRecord, StartRecord,
    StatLogger, StatRecord,
};
use halyard_plugin_host::Plugin;

fn logger(config: &str) -> halyard_platform_api::Result<Box<dyn StatLogger>> {
    let plugin = Plugin::from_linked(halyard_stat_logger_prometheus::plugin()).expect("it starts");
    plugin.stat_logger_factory().expect("a stat logger").create(config)
}

fn log(logger: &mut dyn StatLogger, records: &[StatRecord]) {
    let batch = Batch {
        records,
        deadline: Duration::from_secs(1),
        num_dropped: 0,
    };
    logger.log_batch(&batch).expect("it never fails");
}

fn text(logger: &mut dyn StatLogger) -> String {
    logger.expose().expect("it never fails").expect("a text")
}

fn start() -> StatRecord {
    StatRecord::Start(StartRecord {
        model: "tiny".into(),
        max_model_len: 100,
        block_size: 16,
        num_blocks: 7,
        max_loras: 2,
        kv_cache_dtype: "bf16".into(),
        ..StartRecord::default()
    })
}

fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
    }
}

const L: &str = "model_name=\"tiny\",engine=\"0\"";

fn line(name: &str, value: &str) -> String {
    format!("vllm:{name}{{{L}}} {value}")
}

#[test]
fn nothing_is_shown_before_the_start_and_everything_is_at_zero_after_it() {
    let mut logger = logger("{}").expect("made");
    assert_eq!(logger.expose().expect("never fails"), None);
    log(&mut *logger, &[start()]);
    let text = text(&mut *logger);
    assert!(!text.contains("# EOF"), "the host ends the answer");
    assert_lines(
        &text,
        &[
            &line("num_requests_running", "0"),
            &line("prompt_tokens_total", "0"),
            &line("time_to_first_token_seconds_count", "0"),
            &format!("vllm:request_success_total{{{L},finished_reason=\"abort\"}} 0"),
            &format!(
                "vllm:cache_config_info{{{L},block_size=\"16\",cache_dtype=\"bf16\",enable_prefix_caching=\"False\",\
                 num_gpu_blocks=\"7\"}} 1"
            ),
        ],
    );
}

#[test]
fn records_move_the_metrics_of_vllm() {
    let mut logger = logger("{}").expect("made");
    let second = 1_000_000_000;
    let records = [
        start(),
        StatRecord::Scheduler(SchedulerRecord {
            num_running: 3,
            num_waiting: 2,
            num_preempted: 1,
            ..SchedulerRecord::default()
        }),
        StatRecord::Iteration(IterationRecord {
            prompt_tokens: 30,
            cached_tokens: 16,
            external_tokens: 4,
            generation_tokens: 4,
            first_token_ns: [2 * second].into(),
            inter_token_ns: [second / 2, second].into(),
            inter_token_counts: [2, 1].into(),
            ..IterationRecord::default()
        }),
        StatRecord::Cache(CacheRecord {
            usage: 0.25,
            prefix_queries: 46,
            prefix_hits: 12,
            external_queries: 34,
            external_hits: 4,
            store_blocks: 3,
            load_blocks: 1,
            evicted_blocks: 2,
            store_bytes: 300,
            load_bytes: 100,
            external_usage: 0.5,
            ..CacheRecord::default()
        }),
        StatRecord::Finished(FinishedRecord {
            reason: 1,
            num_samples: 2,
            ends_request: 1,
            prompt_tokens: 46,
            cached_tokens: 16,
            generation_tokens: 4,
            max_sample_tokens: 9,
            max_tokens: 9,
            queue_ns: 2 * second,
            prefill_ns: second,
            decode_ns: 3 * second,
            inter_token_ns: second,
            first_token_ns: 3 * second,
            total_ns: 6 * second,
            num_preemptions: 1,
            ..FinishedRecord::default()
        }),
        StatRecord::Finished(FinishedRecord {
            reason: 2,
            num_samples: 2,
            ..FinishedRecord::default()
        }),
        StatRecord::Rejected(RejectedRecord::default()),
    ];
    log(&mut *logger, &records);
    let lines = [
        line("num_requests_running", "3"),
        line("num_requests_waiting", "2"),
        format!("vllm:num_requests_waiting_by_reason{{{L},reason=\"capacity\"}} 2"),
        line("num_preemptions_total", "1"),
        line("kv_cache_usage_perc", "0.25"),
        line("prefix_cache_queries_total", "46"),
        line("prefix_cache_hits_total", "12"),
        line("external_prefix_cache_queries_total", "34"),
        line("external_prefix_cache_hits_total", "4"),
        line("kv_offload_store_bytes_total", "300"),
        line("kv_offload_load_bytes_total", "100"),
        line("kv_offload_block_eviction_total", "2"),
        line("kv_offload_cpu_cache_usage_perc", "0.5"),
        format!("halyard:kv_offload_store_blocks_total{{{L}}} 3"),
        format!("halyard:kv_offload_load_blocks_total{{{L}}} 1"),
        line("prompt_tokens_total", "46"),
        line("prompt_tokens_cached_total", "16"),
        format!("vllm:prompt_tokens_by_source_total{{{L},source=\"local_compute\"}} 30"),
        format!("vllm:prompt_tokens_by_source_total{{{L},source=\"local_cache_hit\"}} 12"),
        format!("vllm:prompt_tokens_by_source_total{{{L},source=\"external_kv_transfer\"}} 4"),
        line("generation_tokens_total", "4"),
        line("iteration_tokens_total_sum", "34.0"),
        line("time_to_first_token_seconds_sum", "2.0"),
        line("inter_token_latency_seconds_count", "3"),
        line("inter_token_latency_seconds_sum", "2.0"),
        line("e2e_request_latency_seconds_sum", "6.0"),
        line("request_queue_time_seconds_sum", "2.0"),
        line("request_prefill_time_seconds_sum", "1.0"),
        line("request_decode_time_seconds_sum", "3.0"),
        line("request_inference_time_seconds_sum", "4.0"),
        line("request_time_per_output_token_seconds_sum", "1.0"),
        line("request_prompt_tokens_sum", "46.0"),
        line("request_prefill_kv_computed_tokens_sum", "30.0"),
        line("request_generation_tokens_sum", "4.0"),
        line("request_max_num_generation_tokens_sum", "9.0"),
        line("request_params_n_count", "1"),
        line("request_params_max_tokens_sum", "9.0"),
        line("request_num_preemptions_sum", "1.0"),
        format!("vllm:request_success_total{{{L},finished_reason=\"length\"}} 1"),
        format!("vllm:request_success_total{{{L},finished_reason=\"abort\"}} 1"),
        format!("halyard:rejected_requests_total{{{L},reason=\"queue_full\"}} 1"),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_lines(&text(&mut *logger), &lines);
    log(&mut *logger, &[start()]);
    assert_lines(&text(&mut *logger), &[&line("prompt_tokens_total", "46")]);
}

#[test]
fn adapters_are_shown_as_vllm_does_and_leave_when_unloaded() {
    let mut logger = logger("{}").expect("made");
    let adapter = |lora_id: u32, name: &str, num_running, residency| {
        StatRecord::Lora(LoraRecord {
            lora_id,
            name: name.into(),
            num_running,
            residency,
            load_ns: 500_000_000,
            loads_total: 1,
            hits_total: 4,
            unix_ns: 7_000_000_000,
            ..LoraRecord::default()
        })
    };
    log(
        &mut *logger,
        &[start(), adapter(1, "sql", 2, 3), adapter(2, "chat", 1, 3)],
    );
    let info = format!(
        "vllm:lora_requests_info{{{L},max_lora=\"2\",running_lora_adapters=\"sql,chat\",waiting_lora_adapters=\"\"}} \
         7.0"
    );
    assert_lines(
        &text(&mut *logger),
        &[
            &info,
            &format!("halyard:lora_requests_running{{{L},lora=\"sql\"}} 2"),
            &format!("halyard:lora_load_seconds_total{{{L},lora=\"sql\"}} 0.5"),
            &format!("halyard:lora_device_hits_total{{{L},lora=\"sql\"}} 4"),
        ],
    );
    log(&mut *logger, &[adapter(1, "sql", 0, 0)]);
    let after = text(&mut *logger);
    assert!(!after.contains("sql"), "{after}");
    assert!(after.contains("running_lora_adapters=\"chat\""), "{after}");
}

#[test]
fn custom_buckets_are_used_and_bad_ones_refused() {
    let mut custom = logger(r#"{"custom_histogram_buckets": {"request_latency": [0.125, 2]}}"#).expect("good bounds");
    log(&mut *custom, &[start()]);
    let text = text(&mut *custom);
    for name in ["e2e_request_latency_seconds", "request_queue_time_seconds"] {
        let own = format!("vllm:{name}_bucket");
        let bounds: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(&own))
            .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(bounds, ["0.125", "2.0", "+Inf"], "{name}");
    }
    let error = logger(r#"{"custom_histogram_buckets": {"latency": [1]}}"#)
        .map(|_| ())
        .expect_err("unknown");
    assert!(error.message.contains("no family `latency`"), "{error}");
    let error = logger(r#"{"buckets": {}}"#).map(|_| ()).expect_err("unknown key");
    assert!(error.message.contains("custom_histogram_buckets"), "{error}");
}
