//! All tests of whole engines, as one program: as one for each file, each was linked, and none ran while another
//! waited.

mod behaviour;
mod biases;
mod common;
mod drafts;
mod expert_parallel;
mod experts;
mod goldens;
mod guide;
mod hidden_states;
mod kv_codes;
mod lora;
mod no_token;
mod offload;
mod pace;
mod pause;
mod quantised;
mod recording;
mod reload;
mod replicas;
mod sleep;
mod structured;
mod tensor_parallel;
