//! docs/ops.md: the op catalogue for readers of C, from the doc comments.

use super::comments::{WIDTH, paragraphs, wrap};
use super::header::{access_word, values_in_c};
use super::layout::Doc;
use crate::WeightFormat;
use crate::ops::{OpLayout, SamplingRow, layouts};

/// docs/ops.md.
pub fn ops_page() -> String {
    let mut out = String::from(TOP);
    for op in layouts() {
        out += &op_text(&op);
    }
    out += "## Formats of weights\n\n";
    out += &text(WeightFormat::DOC);
    out += "| format | code | values of a block | bytes of a block | row's tail | layout of a block |\n\
        |---|---|---|---|---|---|\n";
    for ((format, (name, code)), doc) in WeightFormat::ALL
        .iter()
        .zip(WeightFormat::CODES)
        .zip(WeightFormat::DOCS)
    {
        let (values, bytes, tail) = (format.block_values(), format.block_bytes(), format.row_tail_bytes());
        out += &format!("| {name} | {code} | {values} | {bytes} | {tail} | {} |\n", cell(doc));
    }
    out += "\n## Sampling rows\n\n";
    let rows = SamplingRow::fixed_layout();
    out += &text(rows.doc);
    out += "| byte | field | type | meaning |\n|---|---|---|---|\n";
    for field in &rows.fields {
        let (at, name, ty) = (field.offset, field.name, &field.c_type);
        out += &format!("| {at} | `{name}` | {ty} | {} |\n", cell(field.doc));
    }
    out + RANDOM
}

/// Paragraphs of a doc comment.
fn text(doc: Doc) -> String {
    let lines = paragraphs(doc)
        .into_iter()
        .map(|paragraph| wrap(&paragraph, WIDTH).join("\n"));
    lines.map(|paragraph| paragraph + "\n\n").collect()
}

/// A doc comment in a cell of a table.
fn cell(doc: Doc) -> String {
    paragraphs(doc).join(" ").replace('|', "\\|")
}

fn op_text(op: &OpLayout) -> String {
    let mut out = format!("## {}\n\n", op.name);
    let (code, desc) = (op.code, op.descriptor.name);
    out += &format!(
        "Code {code} (`HALYARD_OP_{}`), descriptor `{desc}`.\n\n",
        op.name.to_uppercase()
    );
    out += &text(op.descriptor.doc);
    out += "| | operand | use | type and shape |\n|---|---|---|---|\n";
    for (at, (operand, doc)) in op.operands.iter().zip(op.operand_docs).enumerate() {
        let optional = if operand.optional { ", optional" } else { "" };
        let used = access_word(operand.access);
        out += &format!("| {at} | `{}` | {used}{optional} | {} |\n", operand.name, cell(doc));
    }
    out += "\n| byte | field | type | meaning |\n|---|---|---|---|\n";
    for (at, field) in op.descriptor.fields.iter().enumerate().skip(1) {
        let values = values_in_c(op, at).map_or(String::new(), |values| format!(" ({values})"));
        let (offset, name, ty) = (field.offset, field.name, &field.c_type);
        out += &format!("| {offset} | `{name}` | {ty}{values} | {} |\n", cell(field.doc));
    }
    out + "\n"
}

const TOP: &str = "# Ops

Generated from the doc comments of `platform-api/src/ops/` (test `ops_page_is_current`); do not edit. The rules of the
contract are in [abi.md](abi.md), the numbers with their names in `platform-api/include/halyard.h`.

An op's descriptor holds what is fixed when it is prepared. It starts with its size (byte 0). Shapes come with the
operands. All ops are version 1. An operand's use is its access code: const (does not change while the model is loaded),
read, write (written whole), update (read and written, or written in part). An optional operand may be absent.

Letters: T tokens of the step, S sequences of the step, R device rows, V vocabulary, N any number. A type that is
written as code is a field of the descriptor. Index tensors are i32.

- A row index −1 is padding: such a sequence has no tokens, and ops write nothing for it. Padding tokens have
  `token_seq` −1.
- An output may be the very same tensor as an input (same buffer, offset and strides), unless the op says otherwise.
  Otherwise no element of an output is one of another operand.
- The innermost axis is contiguous (its stride is 1). The outer axes of activations, logits, row state and caches may
  have any strides. Weights and tables are contiguous.
- Inputs are widened to f32, the op computes as if in f32 and rounds once to the output's type, to nearest even. How a
  sum is ordered is the platform's own. Sampling sums are finer: see [sample](#sample).
- A packed weight is a U8 tensor of `packed_weight_bytes` that `pack_weight` has filled for the same descriptor, of the
  op alone or in a program. What is in it is the platform's own.
- A bound (`max_…`) is the most that a call brings. More is a caller's bug.

A device row is a request's place on the device, from its admission to its end. Its state is row_tokens [R, L] (the
history, prompt first), row_num_tokens [R] (tokens of the history that are known), row_num_computed [R] (tokens whose
keys and values are stored), a block table [R, max_blocks] for each group of KV layers, and a sampling row. The host
writes it at admission, `update_rows` afterwards. A step names rows, and how many tokens of each to compute.

";

const RANDOM: &str = "
## Random numbers

Philox4x32-10 (Salmon et al. 2011): ten rounds over a counter (c0, c1, c2, c3) and a key (k0, k1), all 32-bit words. A
round: with (h0, l0) the high and low word of 0xD2511F53·c0 and (h1, l1) those of 0xCD9E8D57·c2, the counter becomes
(h1 xor c1 xor k0, l1, h0 xor c3 xor k1, l0). Between rounds k0 grows by 0x9E3779B9 and k1 by 0xBB67AE85, modulo 2³².
The counter after the last round is the result. Of a 64-bit seed k0 is the low half.

| counter | key | result |
|---|---|---|
| 0, 0, 0, 0 | 0, 0 | 6627e8d5, e169c58d, bc57ac4c, 9b00dbd8 |
| 243f6a88, 85a308d3, 13198a2e, 03707344 | a4093822, 299f31d0 | d16cfe09, 94fdcceb, 5001e420, 24126ea1 |
";
