//! What a model is: one description for every architecture, and the readers of the files it is made from.
//!
//! The families fill the description; everything above the families reads only it.

mod description;
mod fields;
mod generation;
pub(crate) mod gguf;
pub(crate) mod huggingface;
mod layer;
mod limits;
mod quantization;
mod rope;

pub use description::{KvScale, ModelDescription, NormDescription, NormKind, NormPlacement};
pub use fields::JsonFields;
pub use generation::GenerationDefaults;
pub use layer::{
    Activation, AttentionDescription, DenseMlp, ExpertGroups, ExpertsMlp, LatentDescription, LayerDescription,
    MlpDescription, QkNorm, SharedExpert,
};
pub(crate) use limits::bad;
pub(crate) use quantization::{Method, Quantization, Scheme, hqq_bits};
pub use rope::{LongScaling, PositionScale, RopeDescription, RopeScaling, YarnScaling};
