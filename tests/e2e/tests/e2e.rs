//! All end-to-end tests, as one program. As one for each file, each was linked, and none ran while another waited.

mod adapters;
mod bench;
mod bench_datasets;
mod certificates;
mod commands;
mod common;
mod connections;
mod data_parallel;
mod hook_tools;
mod hooks;
mod io_processors;
mod kv_codes;
mod kv_events;
mod kv_offload;
mod listeners;
mod logits_processors;
mod metrics_page;
mod new_platform;
mod nginx;
mod openai_client;
mod openapi;
mod packages;
mod page;
mod refusals;
mod routers;
mod run_batch;
mod run_script;
mod service_manager;
mod serving;
mod tool_calls;
mod traces;
mod vllm_bench;
mod vllm_lines;

/// A file that is not named above would never run.
#[test]
fn no_file_is_forgotten() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let names = std::fs::read_dir(folder).expect("the folder").map(|entry| {
        let name = entry.expect("an entry").file_name();
        name.to_string_lossy().trim_end_matches(".rs").to_owned()
    });
    for name in names.filter(|name| name != "e2e") {
        let module = format!("\nmod {name};\n");
        assert!(
            include_str!("e2e.rs").contains(&module),
            "e2e.rs does not name {name}.rs"
        );
    }
}
