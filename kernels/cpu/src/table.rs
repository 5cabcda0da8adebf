//! One table of kernels an instruction set, chosen once. Owns the `#[target_feature]` wrappers and the choice; a table
//! is handed out only where its instructions run. Its methods are in `kernels`.

use half::{bf16, f16};

use crate::act::ActJob;
use crate::activation::Activation;
use crate::attention::Tiles;
use crate::attention_job::Attention;
use crate::format::NUM_FORMATS;
use crate::isa::Isa;
use crate::kv::E4m3;
use crate::kv_coded::{I8, U4};
use crate::latent::LatentAttention;
use crate::linear::{Linear, LinearFn};
use crate::linear_f32::{Chunk, DecodeFn, DecodedFn};
use crate::reduce::Largest;
use crate::rope::RopeStyle;
use crate::{
    act, activation, attention, elementwise, latent, linear_bf16, linear_f32, linear_int8, linear_int8_tiles,
    linear_tiles, norm, panel, panel_coded, products, reduce, rope,
};

type LayerNormFn = unsafe fn(&[f32], &[f32], Option<&[f32]>, f32, &mut [f32]);

/// The kernels of one instruction set.
pub struct Kernels {
    pub(crate) isa: Isa,
    pub(crate) prepare_act: unsafe fn(&ActJob),
    pub(crate) few: [LinearFn; NUM_FORMATS],
    pub(crate) decode: [DecodeFn; NUM_FORMATS],
    pub(crate) multiply: DecodedFn,
    pub(crate) linear_bf16: LinearFn,
    pub(crate) linear_tiles: LinearFn,
    pub(crate) linear_int8: [LinearFn; NUM_FORMATS - 6],
    pub(crate) linear_int8_tiles: [LinearFn; NUM_FORMATS - 6],
    pub(crate) attention: unsafe fn(&Attention<'_>),
    pub(crate) latent_attention: unsafe fn(&mut LatentAttention<'_>),
    pub(crate) rms_norm: unsafe fn(&[f32], &[f32], f32, f32, &mut [f32]),
    pub(crate) layer_norm: LayerNormFn,
    pub(crate) rope: unsafe fn(&mut [f32], &[f32], RopeStyle),
    pub(crate) activate: unsafe fn(Activation, *const f32, Option<*const f32>, *mut f32, usize),
    pub(crate) add: unsafe fn(&mut [f32], &[f32]),
    pub(crate) scale: unsafe fn(&mut [f32], f32),
    pub(crate) add_products: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(crate) transpose: unsafe fn(&[f32], usize, &mut [f32]),
    pub(crate) add_columns: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(crate) softcap: unsafe fn(&mut [f32], f32),
    pub(crate) softmax: unsafe fn(&mut [f32]),
    pub(crate) logsumexp: unsafe fn(&[f32]) -> f32,
    pub(crate) argmax: unsafe fn(&[f32]) -> Largest,
    pub(crate) f32_to_f16: unsafe fn(&[f32], &mut [f16]),
    pub(crate) f16_to_f32: unsafe fn(&[f16], &mut [f32]),
    pub(crate) f32_to_bf16: unsafe fn(&[f32], &mut [bf16]),
    pub(crate) bf16_to_f32: unsafe fn(&[bf16], &mut [f32]),
}

/// Compiles kernels for one instruction set: `$attr` is the attribute that brings it.
macro_rules! wrap {
    ($attr:meta; $($path:path => fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {$(
        #[$attr]
        pub(super) unsafe fn $name($($arg: $ty),*) $(-> $out)? {
            // SAFETY: the caller's promises are the kernel's; the attribute brings the instructions.
            #[allow(unused_unsafe)]
            unsafe { $path($($arg),*) }
        }
    )*};
}

/// Everything but the integer products and what multiplies in bf16.
macro_rules! float_kernels {
    ($module:ident, $simd:ty, $attr:meta) => {
        mod $module {
            use super::*;
            type S = $simd;

            wrap! {
                $attr;
                act::prepare::<S> => fn prepare_act(job: &ActJob);
                latent::run::<S> => fn latent_attention(job: &mut LatentAttention<'_>);
                norm::rms_norm::<S> => fn rms_norm(x: &[f32], w: &[f32], offset: f32, eps: f32, out: &mut [f32]);
                norm::layer_norm::<S> =>
                    fn layer_norm(x: &[f32], w: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]);
                rope::rope => fn rope(x: &mut [f32], cos_sin: &[f32], style: RopeStyle);
                activation::activate::<S> =>
                    fn activate(f: Activation, x: *const f32, up: Option<*const f32>, out: *mut f32, n: usize);
                elementwise::add => fn add(out: &mut [f32], x: &[f32]);
                elementwise::scale => fn scale(out: &mut [f32], factor: f32);
                products::add_products::<S> => fn add_products(rows: &[f32], x: &[f32], scale: f32, out: &mut [f32]);
                products::transpose::<S> => fn transpose(rows: &[f32], k: usize, columns: &mut [f32]);
                products::add_columns::<S> => fn add_columns(columns: &[f32], x: &[f32], scale: f32, out: &mut [f32]);
                elementwise::softcap::<S> => fn softcap(x: &mut [f32], cap: f32);
                reduce::softmax::<S> => fn softmax(x: &mut [f32]);
                reduce::logsumexp::<S> => fn logsumexp(x: &[f32]) -> f32;
                reduce::argmax::<S> => fn argmax(x: &[f32]) -> Largest;
                elementwise::f32_to_f16::<S> => fn f32_to_f16(x: &[f32], out: &mut [f16]);
                elementwise::f16_to_f32::<S> => fn f16_to_f32(x: &[f16], out: &mut [f32]);
                elementwise::f32_to_bf16::<S> => fn f32_to_bf16(x: &[f32], out: &mut [bf16]);
                elementwise::bf16_to_f32::<S> => fn bf16_to_f32(x: &[bf16], out: &mut [f32]);
                linear_f32::multiply::<S> => fn multiply(job: &mut Linear<'_>, chunk: &Chunk);
                linear_f32::few::<S, panel::F32> => fn few_f32(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::F32> =>
                    fn decode_f32(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::F16> => fn few_f16(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::F16> =>
                    fn decode_f16(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Bf16> => fn few_bf16(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Bf16> =>
                    fn decode_bf16(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Q4_0> => fn few_q4_0(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Q4_0> =>
                    fn decode_q4_0(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Q4_1> => fn few_q4_1(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Q4_1> =>
                    fn decode_q4_1(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Q5_0> => fn few_q5_0(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Q5_0> =>
                    fn decode_q5_0(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Q8_0> => fn few_q8_0(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Q8_0> =>
                    fn decode_q8_0(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Q4K> => fn few_q4k(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Q4K> =>
                    fn decode_q4k(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::Q6K> => fn few_q6k(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::Q6K> =>
                    fn decode_q6k(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::F8E4M3> => fn few_f8(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::F8E4M3> =>
                    fn decode_f8(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Int5> => fn few_int5(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Int5> =>
                    fn decode_int5(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Int5Scaled> => fn few_int5_scaled(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Int5Scaled> =>
                    fn decode_int5_scaled(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Int2Scaled> => fn few_int2_scaled(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Int2Scaled> =>
                    fn decode_int2_scaled(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Int2> => fn few_int2(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Int2> =>
                    fn decode_int2(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Int3Scaled> => fn few_int3_scaled(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Int3Scaled> =>
                    fn decode_int3_scaled(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Table3Scaled> => fn few_table3_scaled(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Table3Scaled> =>
                    fn decode_table3_scaled(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Table3Small> => fn few_table3_small(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Table3Small> =>
                    fn decode_table3_small(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Table4Scaled> => fn few_table4_scaled(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Table4Scaled> =>
                    fn decode_table4_scaled(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel_coded::Table4> => fn few_table4(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel_coded::Table4> =>
                    fn decode_table4(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::U4<16>> => fn few_u4g16(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::U4<16>> =>
                    fn decode_u4g16(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::U4<32>> => fn few_u4g32(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::U4<32>> =>
                    fn decode_u4g32(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::U4<128>> => fn few_u4g128(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::U4<128>> =>
                    fn decode_u4g128(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::I8<16>> => fn few_i8g16(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::I8<16>> =>
                    fn decode_i8g16(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::I8<32>> => fn few_i8g32(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::I8<32>> =>
                    fn decode_i8g32(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::I8<128>> => fn few_i8g128(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::I8<128>> =>
                    fn decode_i8g128(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::F8<32>> => fn few_f8g32(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::F8<32>> =>
                    fn decode_f8g32(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
                linear_f32::few::<S, panel::F8<128>> => fn few_f8g128(job: &mut Linear<'_>);
                linear_f32::decode_chunk::<S, panel::F8<128>> =>
                    fn decode_f8g128(panel: *const u8, k0: usize, k1: usize, out: *mut f32);
            }
        }
    };
}

/// The integer products, in the order of `WeightFormat` from Q4_0 on, without 8-bit floats.
macro_rules! int8_kernels {
    ($module:ident, $simd:ty, $attr:meta) => {
        int8_kernels!($module, $simd, $attr, linear_int8::run);
    };
    ($module:ident, $simd:ty, $attr:meta, $($kernel:ident)::+ $(, $tiles:ty)?) => {
        mod $module {
            use super::*;
            type S = $simd;

            wrap! {
                $attr;
                $($kernel)::+::<S, panel::Q4_0 $(, $tiles)?> => fn q4_0(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::Q4_1 $(, $tiles)?> => fn q4_1(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::Q5_0 $(, $tiles)?> => fn q5_0(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::Q8_0 $(, $tiles)?> => fn q8_0(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::Q4K $(, $tiles)?> => fn q4k(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::Q6K $(, $tiles)?> => fn q6k(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Int5 $(, $tiles)?> => fn int5(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Int5Scaled $(, $tiles)?> => fn int5_scaled(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Int2Scaled $(, $tiles)?> => fn int2_scaled(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Int2 $(, $tiles)?> => fn int2(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Int3Scaled $(, $tiles)?> => fn int3_scaled(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Table3Scaled $(, $tiles)?> => fn table3_scaled(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Table3Small $(, $tiles)?> => fn table3_small(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Table4Scaled $(, $tiles)?> => fn table4_scaled(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel_coded::Table4 $(, $tiles)?> => fn table4(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::U4<16> $(, $tiles)?> => fn u4g16(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::U4<32> $(, $tiles)?> => fn u4g32(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::U4<128> $(, $tiles)?> => fn u4g128(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::I8<16> $(, $tiles)?> => fn i8g16(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::I8<32> $(, $tiles)?> => fn i8g32(job: &mut Linear<'_>);
                $($kernel)::+::<S, panel::I8<128> $(, $tiles)?> => fn i8g128(job: &mut Linear<'_>);
            }
        }
    };
}

/// What multiplies in bf16. `run` is for any number of tokens; with `few`, one function each of up to 24 tokens, for
/// sets that have the registers.
macro_rules! bf16_kernels {
    ($module:ident, $simd:ty, $attr:meta) => {
        mod $module {
            use super::*;
            wrap! {
                $attr;
                linear_bf16::many::<$simd> => fn run(job: &mut Linear<'_>);
                linear_tiles::run::<$simd> => fn tiles(job: &mut Linear<'_>);
            }
        }
    };
    ($module:ident, $simd:ty, $attr:meta, few) => {
        mod $module {
            use super::*;
            mod one_tile {
                use super::*;
                few_tokens!($simd, $attr, t1 1, t2 2, t3 3, t4 4, t5 5, t6 6, t7 7, t8 8, t9 9, t10 10, t11 11, t12 12,
                    t13 13, t14 14, t15 15, t16 16, t17 17, t18 18, t19 19, t20 20, t21 21, t22 22, t23 23, t24 24);
            }
            wrap! {
                $attr;
                linear_bf16::many::<$simd> => fn many(job: &mut Linear<'_>);
                linear_tiles::run::<$simd> => fn tiles(job: &mut Linear<'_>);
            }
            pub(super) unsafe fn run(job: &mut Linear<'_>) {
                // SAFETY: the caller's promises are the kernel's.
                unsafe { linear_bf16::run(job, &one_tile::FEW, many) }
            }
        }
    };
}

/// Products in bf16 of few tokens, a function each.
macro_rules! few_tokens {
    ($simd:ty, $attr:meta, $($name:ident $tokens:literal),*) => {
        wrap! { $attr; $(linear_bf16::few::<$simd, $tokens> => fn $name(job: &mut Linear<'_>);)* }
        pub(super) const FEW: linear_bf16::Few = [$($name),*];
    };
}

/// Attention over a cache of one element type: a function for each number of rows, or one for all of them.
macro_rules! cache_tiles {
    ($module:ident, $simd:ty, $element:ty, $attr:meta) => {
        mod $module {
            use super::*;
            wrap! {
                $attr;
                attention::tile::<$simd, $element, 1> => fn one(job: &Attention<'_>, row: usize) -> usize;
                attention::tile::<$simd, $element, 2> => fn two(job: &Attention<'_>, row: usize) -> usize;
                attention::tile::<$simd, $element, 3> => fn three(job: &Attention<'_>, row: usize) -> usize;
                attention::tile::<$simd, $element, 4> => fn four(job: &Attention<'_>, row: usize) -> usize;
            }
            pub(super) const TILES: Tiles = [one, two, three, four];
        }
    };
    ($module:ident, $simd:ty, $element:ty, $attr:meta, small) => {
        mod $module {
            use super::*;
            wrap! {
                $attr;
                attention::tile::<$simd, $element, 1> => fn one(job: &Attention<'_>, row: usize) -> usize;
            }
            pub(super) const TILES: Tiles = [one; 4];
        }
    };
}

/// Attention over every cache.
macro_rules! attention_kernels {
    ($module:ident, $simd:ty, $attr:meta $(, $small:ident)?) => {
        mod $module {
            use super::*;
            cache_tiles!(f32_cache, $simd, f32, $attr $(, $small)?);
            cache_tiles!(f16_cache, $simd, f16, $attr $(, $small)?);
            cache_tiles!(bf16_cache, $simd, bf16, $attr $(, $small)?);
            cache_tiles!(e4m3_cache, $simd, E4m3, $attr $(, $small)?);
            cache_tiles!(i8_cache, $simd, I8, $attr $(, $small)?);
            cache_tiles!(u4_cache, $simd, U4, $attr $(, $small)?);
            /// In the order of `KvDtype`.
            pub(super) const TILES: [Tiles; 6] = [
                f32_cache::TILES,
                f16_cache::TILES,
                bf16_cache::TILES,
                e4m3_cache::TILES,
                i8_cache::TILES,
                u4_cache::TILES,
            ];
            pub(super) unsafe fn attention(job: &Attention<'_>) {
                // SAFETY: the caller's promises are the kernel's.
                unsafe { attention::run(job, &TILES[job.layout.dtype as usize]) }
            }
        }
    };
}

/// The table of one set, from the modules that it takes its parts from.
macro_rules! table {
    ($isa:expr, $float:ident, $int8:ident, $bf16:ident, $attention:ident) => {
        table!($isa, $float, $int8, $bf16, $attention, $bf16, plain_int8_tiles)
    };
    ($isa:expr, $float:ident, $int8:ident, $bf16:ident, $attention:ident, $tiles:ident, $int8_tiles:ident) => {
        Kernels {
            isa: $isa,
            prepare_act: $float::prepare_act,
            latent_attention: $float::latent_attention,
            multiply: $float::multiply,
            few: [
                $float::few_f32,
                $float::few_f16,
                $float::few_bf16,
                $float::few_q4_0,
                $float::few_q4_1,
                $float::few_q5_0,
                $float::few_q8_0,
                $float::few_q4k,
                $float::few_q6k,
                $float::few_f8,
                $float::few_int5,
                $float::few_int5_scaled,
                $float::few_int2_scaled,
                $float::few_int2,
                $float::few_int3_scaled,
                $float::few_table3_scaled,
                $float::few_table3_small,
                $float::few_table4_scaled,
                $float::few_table4,
                $float::few_u4g16,
                $float::few_u4g32,
                $float::few_u4g128,
                $float::few_i8g16,
                $float::few_i8g32,
                $float::few_i8g128,
                $float::few_f8g32,
                $float::few_f8g128,
            ],
            decode: [
                $float::decode_f32,
                $float::decode_f16,
                $float::decode_bf16,
                $float::decode_q4_0,
                $float::decode_q4_1,
                $float::decode_q5_0,
                $float::decode_q8_0,
                $float::decode_q4k,
                $float::decode_q6k,
                $float::decode_f8,
                $float::decode_int5,
                $float::decode_int5_scaled,
                $float::decode_int2_scaled,
                $float::decode_int2,
                $float::decode_int3_scaled,
                $float::decode_table3_scaled,
                $float::decode_table3_small,
                $float::decode_table4_scaled,
                $float::decode_table4,
                $float::decode_u4g16,
                $float::decode_u4g32,
                $float::decode_u4g128,
                $float::decode_i8g16,
                $float::decode_i8g32,
                $float::decode_i8g128,
                $float::decode_f8g32,
                $float::decode_f8g128,
            ],
            linear_bf16: $bf16::run,
            linear_tiles: $tiles::tiles,
            linear_int8: [
                $int8::q4_0,
                $int8::q4_1,
                $int8::q5_0,
                $int8::q8_0,
                $int8::q4k,
                $int8::q6k,
                $int8::int5,
                $int8::int5_scaled,
                $int8::int2_scaled,
                $int8::int2,
                $int8::int3_scaled,
                $int8::table3_scaled,
                $int8::table3_small,
                $int8::table4_scaled,
                $int8::table4,
                $int8::u4g16,
                $int8::u4g32,
                $int8::u4g128,
                $int8::i8g16,
                $int8::i8g32,
                $int8::i8g128,
            ],
            linear_int8_tiles: [
                $int8_tiles::q4_0,
                $int8_tiles::q4_1,
                $int8_tiles::q5_0,
                $int8_tiles::q8_0,
                $int8_tiles::q4k,
                $int8_tiles::q6k,
                $int8_tiles::int5,
                $int8_tiles::int5_scaled,
                $int8_tiles::int2_scaled,
                $int8_tiles::int2,
                $int8_tiles::int3_scaled,
                $int8_tiles::table3_scaled,
                $int8_tiles::table3_small,
                $int8_tiles::table4_scaled,
                $int8_tiles::table4,
                $int8_tiles::u4g16,
                $int8_tiles::u4g32,
                $int8_tiles::u4g128,
                $int8_tiles::i8g16,
                $int8_tiles::i8g32,
                $int8_tiles::i8g128,
            ],
            attention: $attention::attention,
            rms_norm: $float::rms_norm,
            layer_norm: $float::layer_norm,
            rope: $float::rope,
            activate: $float::activate,
            add: $float::add,
            scale: $float::scale,
            add_products: $float::add_products,
            transpose: $float::transpose,
            add_columns: $float::add_columns,
            softcap: $float::softcap,
            softmax: $float::softmax,
            logsumexp: $float::logsumexp,
            argmax: $float::argmax,
            f32_to_f16: $float::f32_to_f16,
            f16_to_f32: $float::f16_to_f32,
            f32_to_bf16: $float::f32_to_bf16,
            bf16_to_f32: $float::bf16_to_f32,
        }
    };
}

float_kernels!(portable, crate::simd::portable::Portable, inline(never));
int8_kernels!(portable_int8, crate::simd::portable::Portable, inline(never));
bf16_kernels!(portable_bf16, crate::simd::portable::Portable, inline(never));
attention_kernels!(
    portable_attention,
    crate::simd::portable::Portable,
    inline(never),
    small
);
// Of every set that has no matrix units: only tests call them.
int8_kernels!(
    plain_int8_tiles,
    crate::simd::portable::Portable,
    inline(never),
    linear_int8_tiles::run,
    linear_int8_tiles::Plain
);
static PORTABLE: Kernels = table!(
    Isa::Portable,
    portable,
    portable_int8,
    portable_bf16,
    portable_attention
);

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::*;
    use crate::simd::neon::Neon;

    float_kernels!(neon, Neon, target_feature(enable = "neon"));
    int8_kernels!(neon_int8, Neon, target_feature(enable = "neon"));
    bf16_kernels!(neon_bf16, Neon, target_feature(enable = "neon"));
    attention_kernels!(neon_attention, Neon, target_feature(enable = "neon"));
    pub(super) static NEON: Kernels = table!(Isa::Neon, neon, neon_int8, neon_bf16, neon_attention);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::kv_layout::KvDtype;
    use crate::simd::avx2::Avx2;
    use crate::simd::avx512::Avx512;

    float_kernels!(avx2, Avx2, target_feature(enable = "avx2,fma,f16c"));
    int8_kernels!(avx2_int8, Avx2, target_feature(enable = "avx2,fma,f16c"));
    bf16_kernels!(avx2_bf16, Avx2, target_feature(enable = "avx2,fma,f16c"));
    attention_kernels!(avx2_attention, Avx2, target_feature(enable = "avx2,fma,f16c"));
    pub(super) static AVX2: Kernels = table!(Isa::Avx2Fma, avx2, avx2_int8, avx2_bf16, avx2_attention);

    type Base = Avx512<false, false>;
    type Vnni = Avx512<true, false>;
    type VnniBf16 = Avx512<true, true>;
    float_kernels!(
        avx512,
        Base,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
    );
    int8_kernels!(
        avx512_int8,
        Base,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
    );
    bf16_kernels!(
        avx512_bf16,
        Base,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"),
        few
    );
    attention_kernels!(
        avx512_attention,
        Base,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
    );
    int8_kernels!(
        vnni_int8,
        Vnni,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
    );
    bf16_kernels!(
        dot_bf16,
        VnniBf16,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c"),
        few
    );
    /// Of the additional instructions only caches in bf16 have a use.
    mod dot_attention {
        use super::*;
        cache_tiles!(
            bf16_cache,
            VnniBf16,
            bf16,
            target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")
        );
        pub(super) unsafe fn attention(job: &Attention<'_>) {
            let tiles = match job.layout.dtype {
                KvDtype::Bf16 => &bf16_cache::TILES,
                other => &avx512_attention::TILES[other as usize],
            };
            // SAFETY: the caller's promises are the kernel's.
            unsafe { attention::run(job, tiles) }
        }
    }
    pub(super) static AVX512: Kernels = table!(
        Isa::Avx512 {
            vnni: false,
            bf16: false
        },
        avx512,
        avx512_int8,
        avx512_bf16,
        avx512_attention
    );
    pub(super) static AVX512_VNNI: Kernels = table!(
        Isa::Avx512 {
            vnni: true,
            bf16: false
        },
        avx512,
        vnni_int8,
        avx512_bf16,
        avx512_attention
    );
    pub(super) static AVX512_BF16: Kernels = table!(
        Isa::Avx512 { vnni: true, bf16: true },
        avx512,
        vnni_int8,
        dot_bf16,
        dot_attention
    );

    mod amx {
        use super::*;
        use crate::attention_tiles;
        wrap! {
            target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c");
            linear_tiles::run_amx::<VnniBf16> => fn tiles(job: &mut Linear<'_>);
            attention_tiles::run::<VnniBf16> => fn attention_of_whole_tiles(job: &Attention<'_>);
        }
        pub(super) unsafe fn attention(job: &Attention<'_>) {
            // SAFETY: the caller's promises are the kernel's.
            unsafe {
                if attention_tiles::has_tiles(&job.layout) {
                    attention_of_whole_tiles(job);
                } else {
                    dot_attention::attention(job);
                }
            }
        }
    }
    int8_kernels!(
        amx_int8,
        Vnni,
        target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"),
        linear_int8_tiles::run,
        linear_int8_tiles::Amx
    );
    pub(super) static AMX: Kernels = table!(Isa::Amx, avx512, vnni_int8, dot_bf16, amx, amx, amx_int8);
}

impl Kernels {
    /// The fastest set of this CPU.
    pub fn best() -> &'static Kernels {
        Kernels::for_isa(Isa::best()).unwrap_or(&PORTABLE)
    }

    /// The set of one instruction set, or `None` where this CPU or build lacks it.
    pub fn for_isa(isa: Isa) -> Option<&'static Kernels> {
        if !isa.is_available() {
            return None;
        }
        match isa {
            Isa::Portable => Some(&PORTABLE),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Some(&arm::NEON),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Fma => Some(&x86::AVX2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 { vnni: false, .. } => Some(&x86::AVX512),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 { bf16: false, .. } => Some(&x86::AVX512_VNNI),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 { .. } => Some(&x86::AVX512_BF16),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Some(&x86::AMX),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }

    /// The instruction set of these kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}
