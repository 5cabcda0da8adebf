//! GGUF files: header, typed metadata, tensor table. Reads and checks; computes nothing.
//!
//! Format: docs/gguf.md of ggml, versions 2 and 3, little endian.

mod cursor;
mod file;
mod tensor_type;
mod tokenizer;
mod value;

pub use file::{GgufFile, GgufTensor};
pub(crate) use tensor_type::SUPPORTED;
pub use tensor_type::TensorType;
pub use tokenizer::GgufTokenizerData;
pub use value::{GgufArray, GgufValue};
