//! Whole-engine checks of a device, beyond the conformance of its ops. Used by the engine's own tests on CPU platforms,
//! and by the `halyard-device-check` program on machines that have a device and nothing else.

pub mod collectives;
pub mod drafts;
pub mod goldens;
pub mod hidden_states;
pub mod lora;
pub mod recording;
pub mod tensor_parallel;
