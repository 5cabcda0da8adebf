//! Compute kernels of the CPU platform: pure functions over slices and pointers, written once over a 16-lane vector
//! and compiled for each instruction set, chosen at run time. Owns weight packing, the products, attention and the
//! small ops. It never allocates, never starts a thread, never reads the environment, and knows no model.
//!
//! Start at [`Kernels`]. Sizes come from its functions (`packed_bytes`, `act_bytes`, [`LINEAR_SCRATCH`], [`KvLayout`]);
//! work is split over threads by panels of 16 output columns, tiles of tokens, KV heads and queries. Arguments are
//! trusted to fit each other (the runtime checks them at load): a length that does not is a programming error and
//! panics.

// Kernels index with constant bounds so that the compiler keeps whole arrays in registers.
#![allow(clippy::needless_range_loop)]

mod act;
mod activation;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod attention_bf16;
mod attention_coded;
mod attention_job;
#[cfg(target_arch = "x86_64")]
mod attention_tiles;
mod e4m3;
mod elementwise;
mod format;
mod isa;
mod kernels;
mod kv;
mod kv_coded;
mod kv_layout;
mod latent;
mod linear;
mod linear_bf16;
mod linear_f32;
mod linear_int8;
mod linear_int8_tiles;
mod linear_tiles;
mod math;
mod norm;
mod pack;
mod pack_coded;
mod panel;
mod panel_coded;
mod panel_groups;
mod products;
mod reduce;
mod rope;
mod simd;
mod table;

pub use act::{ActMode, TILE, act_bytes, act_token_bytes, num_act_parts};
pub use activation::Activation;
pub use attention_bf16::MAX_HEAD_DIM as MAX_BF16_HEAD_DIM;
pub use attention_job::Attention;
pub use e4m3::{e4m3_from_f32, e4m3_to_f32};
pub use format::{WeightFormat, dequantize_row};
pub use isa::Isa;
pub use kv::{kv_read, kv_write};
pub use kv_coded::MAX_U4_HEAD_DIM;
pub use kv_layout::{KvDtype, KvLayout};
pub use latent::{HeadRows, LatentAttention, LatentLayout, latent_write};
pub use linear::{LINEAR_SCRATCH, Linear, linear_supports};
pub use pack::{num_panels, pack, packed_bytes, panel_bytes};
pub use reduce::Largest;
pub use rope::RopeStyle;
pub use simd::LANES as PANEL_ROWS;
pub use table::Kernels;
