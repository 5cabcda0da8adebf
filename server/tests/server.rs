//! All tests of the router, as one program: as one for each file, each was linked, and none ran while another waited.

mod abort;
mod answer_bytes;
mod answers;
mod bad_input;
mod batch;
mod common;
mod dashboard;
mod device_lost;
mod hostile_templates;
mod long_texts;
mod lora;
mod messages;
mod no_token;
mod openapi;
mod pause;
mod reasoning_first;
mod requests;
mod responses;
mod sleep;
mod stored_responses;
mod streams;
mod structured;
mod tool_calls;
mod transport;
mod ui;
mod vllm_parity;

#[path = "../../runtime/engine/tests/common/damaged.rs"]
mod damaged;
#[path = "common/long_answers.rs"]
mod long_answers;
#[path = "common/scripted_server.rs"]
mod scripted_server;

/// The folder of the tiny models, for `damaged`.
fn fixtures() -> std::path::PathBuf {
    common::fixture("")
}
