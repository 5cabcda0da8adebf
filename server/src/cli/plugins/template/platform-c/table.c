/* What this platform has: capabilities, types, weight formats, ops. The file that grows: an op is a line here and two
 * functions.
 *
 * The order is the one to go in. After each line run `halyard-conformance FILE.so --filter NAME`. With the first two
 * groups a llama model serves; what follows is for other models and for adapters. */
#include "first_ops.h"

/* A row's sums do not depend on the other rows. */
const uint64_t capabilities = HALYARD_CAPABILITY_BATCH_INVARIANT;
const uint64_t compute_types = 1u << HALYARD_DTYPE_F32 | 1u << HALYARD_DTYPE_F16 | 1u << HALYARD_DTYPE_BF16;
const uint64_t kv_types = 1u << HALYARD_DTYPE_F32;

/* GGUF's block formats come later. */
#define FORMAT(name, unpack) \
    {HALYARD_WEIGHT_##name, #name, HALYARD_WEIGHT_##name##_BLOCK_VALUES, HALYARD_WEIGHT_##name##_BLOCK_BYTES, \
     HALYARD_WEIGHT_##name##_ROW_TAIL_BYTES, unpack}

const weight_format weight_formats[] = {
    FORMAT(F32, unpack_f32),
    FORMAT(F16, unpack_f16),
    FORMAT(BF16, unpack_bf16),
};
const uint32_t num_weight_formats = sizeof weight_formats / sizeof weight_formats[0];

/* Code, operands (c constant, r read, w written, u updated; a capital letter: may be absent), functions. */
#define HAVE(code, name, operands) \
    {HALYARD_OP_##code, #name, operands, (uint32_t)sizeof(halyard_##name##_desc), halyard_##name##_desc_base_size, \
     check_##name, run_##name}
#define LATER(code, name, operands) {HALYARD_OP_##code, #name, operands, 0, 0, NULL, NULL}

const op_kind op_kinds[] = {
    HAVE(COPY, copy, "rw"),
    HAVE(ADD, add, "rrw"),
    HAVE(SILU_MUL, silu_mul, "rrw"),
    HAVE(RMS_NORM, rms_norm, "rcw"),
    HAVE(EMBEDDING, embedding, "rcw"),
    HAVE(LINEAR, linear, "rcCRw"),
    /* What every model needs besides. With attention comes its interface, `attention_table` below. */
    LATER(GATHER_ROWS, gather_rows, "rru"),
    LATER(ROPE, rope, "rcu"),
    LATER(PREPARE_INPUTS, prepare_inputs, "rrrrRwwwWwww"),
    LATER(SLOT_MAPPING, slot_mapping, "rrrrw"),
    LATER(KV_WRITE, kv_write, "rrru"),
    LATER(ATTENTION, attention, "rrrrrrCw"),
    LATER(ARGMAX, argmax, "rw"),
    LATER(UPDATE_ROWS, update_rows, "rrrrRrRuuuu"),
    LATER(SAMPLE, sample, "rrrrw"),
    LATER(LOGITS_PROCESS, logits_process, "urrrrRRRRRR"),
    LATER(TOP_LOGPROBS, top_logprobs, "rrwwWW"),
    /* Gemma; capped logits; weights without a file, weights rounded at load. */
    LATER(GELU_MUL, gelu_mul, "rrw"),
    LATER(SOFTCAP, softcap, "rw"),
    LATER(FILL_RANDOM, fill_random, "w"),
    LATER(QUANTIZE_ACT, quantize_act, "rww"),
    /* Adapters. */
    LATER(LORA_SHRINK, lora_shrink, "rcrw"),
    LATER(LORA_EXPAND, lora_expand, "rccru"),
    /* Mixtures of experts. */
    LATER(MOE_ROUTE, moe_route, "rwwC"),
    LATER(MOE_LINEAR, moe_linear, "rcrwC"),
    LATER(MOE_COMBINE, moe_combine, "rrw"),
    /* Latent attention. */
    LATER(HEAD_LINEAR, head_linear, "rcw"),
    LATER(LATENT_WRITE, latent_write, "rrru"),
    LATER(LATENT_ATTENTION, latent_attention, "rrrrrrrw"),
    /* Models over several devices, with the communicator interface. */
    LATER(COLLECTIVE, collective, "RW"),
    /* What no model asks for yet. */
    LATER(POOL, pool, "rrw"),
    LATER(LAYER_NORM, layer_norm, "rcCw"),
    LATER(GELU, gelu, "rw"),
    LATER(RELU_SQUARED, relu_squared, "rw"),
    LATER(SCALE, scale, "rw"),
    LATER(SCATTER_ROWS, scatter_rows, "rru"),
    LATER(CAST, cast, "rw"),
    LATER(FILL, fill, "w"),
    LATER(COPY_BLOCKS, copy_blocks, "ru"),
};
const uint32_t num_op_kinds = sizeof op_kinds / sizeof op_kinds[0];

const halyard_attention_table *const attention_table = NULL;
