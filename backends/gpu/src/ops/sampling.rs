//! Logits to tokens: `logits_process`, `argmax`, `sample`, `top_logprobs`. A sequence's result depends on nothing but
//! its own row.

use halyard_kernels_gpu::{ARGMAX, LOGITS, LOGPROBS, SAMPLE};
use halyard_platform_api::{Error, OpSpec, Result, ops};

use crate::driver::Function;
use crate::encoding::{Arg, Encoding};
use crate::kernel::boxed;
use crate::kernel::{Kernel, Preparation};
use crate::view::View;

/// Largest vocabulary: `logits.cuh` sums runs of 512 logits in 1024 places.
const MAX_VOCAB: u32 = 520_000;
/// Most alternatives: what `logits.cuh` sorts in shared memory.
const MAX_ALTERNATIVES: u32 = 4096;
/// Most rows of a launch with a row in its grid's second extent.
const MAX_GRID_ROWS: u32 = 65_535;
/// Threads of `sample` and `top_logprobs`.
const BLOCK: u32 = 1024;
/// Threads of `argmax`.
const ARGMAX_THREADS: u32 = 1024;
/// Logits that a block of `argmax` should at least see.
const ARGMAX_LEAST: u32 = 4096;
/// Blocks of a row where there are clusters, by their entry points; the last is the largest cluster that every device
/// takes.
const ARGMAX_CLUSTERS: [(u32, &str); 4] = [(1, "argmax_1"), (2, "argmax_2"), (4, "argmax_4"), (8, "argmax_8")];
/// Most blocks of a row without clusters: the second launch joins them in one warp.
const ARGMAX_PARTS: u32 = 32;
/// Tokens of a block of `logits_process`, and its threads.
const SLICE: u32 = 8192;
const LOGITS_THREADS: u32 = 256;

/// The kernel of a descriptor of this family; `None` for others.
pub(crate) fn build(spec: &OpSpec) -> Option<Result<Box<dyn Kernel>>> {
    Some(match spec {
        OpSpec::LogitsProcess(op) => boxed(LogitsProcess::new(op)),
        OpSpec::Argmax(op) => boxed(Argmax::new(op)),
        OpSpec::Sample(op) => boxed(Sample::new(op)),
        OpSpec::TopLogprobs(op) => boxed(TopLogprobs::new(op)),
        _ => return None,
    })
}

/// Checks sizes that every op here has.
fn check(op: &str, vocab: u32, rows: u32) -> Result<()> {
    if vocab == 0 {
        return Err(Error::invalid(format!("{op}: vocab is 0, it must be at least 1")));
    }
    if vocab > MAX_VOCAB {
        return Err(Error::unsupported(format!(
            "{op} over {vocab} tokens: at most {MAX_VOCAB} here"
        )));
    }
    if rows > MAX_GRID_ROWS {
        return Err(Error::unsupported(format!(
            "{op} over {rows} rows in one call: at most {MAX_GRID_ROWS} here; call it for fewer rows at a time"
        )));
    }
    Ok(())
}

/// What `prepare` found.
fn prepared(op: &str, function: Option<Function>) -> Result<Function> {
    function.ok_or_else(|| Error::invalid(format!("{op} is encoded before it is prepared")))
}

/// Rows with neighbours side by side: address and distance of rows.
fn rows(op: &str, name: &str, view: &View) -> Result<[Arg; 2]> {
    if !view.is_none() && !view.is_inner_contiguous() {
        return Err(Error::unsupported(format!(
            "{op}: {name} has strides {:?}; values of a row must be neighbours",
            &view.strides[..view.rank as usize]
        )));
    }
    Ok([Arg::Ptr(view.ptr), Arg::U32(view.row_stride())])
}

/// A vector: address and distance of elements.
fn vector(view: &View) -> [Arg; 2] {
    [Arg::Ptr(view.ptr), Arg::U32(view.row_stride())]
}

struct LogitsProcess {
    vocab: u32,
    function: Option<Function>,
}

impl LogitsProcess {
    const NAME: &str = "logits_process";

    fn new(op: &ops::LogitsProcess) -> Result<LogitsProcess> {
        check(Self::NAME, op.vocab, op.max_seqs)?;
        Ok(LogitsProcess {
            vocab: op.vocab,
            function: None,
        })
    }
}

impl Kernel for LogitsProcess {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.function = Some(cx.function(LOGITS, &[], Self::NAME, 0)?);
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [
            logits,
            step_rows,
            sampling,
            tokens,
            num_tokens,
            allowed,
            bias_tokens,
            bias_values,
            stops,
            bad_words,
            grammar,
        ] = operands
        else {
            return Err(wrong_count(Self::NAME, 11, operands));
        };
        let rows = |name, view| rows(Self::NAME, name, view);
        let width = |view: &View| Arg::U32(view.shape[1]);
        let mut args = Vec::with_capacity(28);
        args.extend(rows("logits", logits)?);
        args.push(Arg::U32(self.vocab));
        args.extend(vector(step_rows));
        args.extend(rows("row_sampling", sampling)?);
        args.push(Arg::U32(sampling.len()));
        args.extend(rows("row_tokens", tokens)?);
        args.push(width(tokens));
        args.extend(vector(num_tokens));
        args.extend(rows("allowed_mask", allowed)?);
        args.extend(rows("bias_tokens", bias_tokens)?);
        args.push(width(bias_tokens));
        args.extend(rows("bias_values", bias_values)?);
        args.extend(rows("stop_tokens", stops)?);
        args.push(width(stops));
        args.extend(rows("bad_words", bad_words)?);
        args.push(width(bad_words));
        args.extend(rows("grammar_mask", grammar)?);
        let grid = [self.vocab.div_ceil(SLICE), step_rows.len(), 1];
        encoding.launch(prepared(Self::NAME, self.function)?, grid, LOGITS_THREADS, 0, &args);
        Ok(())
    }
}

/// How the blocks of a row join what they found.
enum Join {
    /// One launch: as [`ARGMAX_CLUSTERS`].
    Cluster([Function; 4]),
    /// One launch for the parts (the first function, or the second for whole rows), a second one over their results in
    /// scratch.
    Launch(Function, Function, Function),
}

struct Argmax {
    vocab: u32,
    max_seqs: u32,
    num_sms: u32,
    join: Option<Join>,
}

impl Argmax {
    const NAME: &str = "argmax";

    fn new(op: &ops::Argmax) -> Result<Argmax> {
        check(Self::NAME, op.vocab, op.max_seqs)?;
        Ok(Argmax {
            vocab: op.vocab,
            max_seqs: op.max_seqs,
            num_sms: 1,
            join: None,
        })
    }

    /// Blocks that `seqs` rows may have each: one on every multiprocessor, none with too little to do. (Two were
    /// slower: measured on an H200 at 32 to 128 rows.)
    fn parts(&self, seqs: u32) -> u32 {
        (self.num_sms / seqs.max(1))
            .min(self.vocab / ARGMAX_LEAST)
            .clamp(1, ARGMAX_PARTS)
    }
}

impl Kernel for Argmax {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        let function = |name| cx.function(ARGMAX, &[], name, 0);
        self.num_sms = cx.facts().num_sms.max(1);
        self.join = Some(if cx.facts().capability >= 90 {
            let [one, two, four, eight] = ARGMAX_CLUSTERS.map(|(_, name)| function(name));
            Join::Cluster([one?, two?, four?, eight?])
        } else {
            Join::Launch(
                function("argmax_part")?,
                function("argmax_1")?,
                function("argmax_join")?,
            )
        });
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        match self.join {
            Some(Join::Launch(..)) => u64::from(self.max_seqs) * u64::from(ARGMAX_PARTS) * 8,
            _ => 0,
        }
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [logits, out] = operands else {
            return Err(wrong_count(Self::NAME, 2, operands));
        };
        let Some(join) = &self.join else {
            return prepared(Self::NAME, None).map(|_| ());
        };
        let seqs = out.len();
        let [ptr, stride] = rows(Self::NAME, "logits", logits)?;
        let [to, to_stride] = vector(out);
        let whole = [ptr, stride, Arg::U32(self.vocab), to, to_stride];
        let parts = self.parts(seqs);
        match join {
            Join::Cluster(functions) => {
                let at = ARGMAX_CLUSTERS
                    .iter()
                    .rposition(|(size, _)| *size <= parts)
                    .unwrap_or(0);
                let grid = [ARGMAX_CLUSTERS[at].0, seqs, 1];
                encoding.launch(functions[at], grid, ARGMAX_THREADS, 0, &whole);
            }
            Join::Launch(_, one, _) if parts == 1 => encoding.launch(*one, [1, seqs, 1], ARGMAX_THREADS, 0, &whole),
            Join::Launch(part, _, join) => {
                let args = [ptr, stride, Arg::U32(self.vocab), Arg::Scratch(0)];
                encoding.launch(*part, [parts, seqs, 1], ARGMAX_THREADS, 0, &args);
                let args = [Arg::Scratch(0), Arg::U32(parts), to, to_stride];
                encoding.launch(*join, [seqs, 1, 1], 32, 0, &args);
            }
        }
        Ok(())
    }
}

struct Sample {
    vocab: u32,
    function: Option<Function>,
}

impl Sample {
    const NAME: &str = "sample";

    fn new(op: &ops::Sample) -> Result<Sample> {
        check(Self::NAME, op.vocab, op.max_seqs)?;
        Ok(Sample {
            vocab: op.vocab,
            function: None,
        })
    }
}

impl Kernel for Sample {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.function = Some(cx.function(SAMPLE, &[], Self::NAME, 0)?);
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [logits, step_rows, sampling, num_tokens, out] = operands else {
            return Err(wrong_count(Self::NAME, 5, operands));
        };
        let mut args = Vec::with_capacity(12);
        args.extend(rows(Self::NAME, "logits", logits)?);
        args.push(Arg::U32(self.vocab));
        args.extend(vector(step_rows));
        args.extend(rows(Self::NAME, "row_sampling", sampling)?);
        args.push(Arg::U32(sampling.len()));
        args.extend(vector(num_tokens));
        args.extend(vector(out));
        encoding.launch(prepared(Self::NAME, self.function)?, [out.len(), 1, 1], BLOCK, 0, &args);
        Ok(())
    }
}

struct TopLogprobs {
    vocab: u32,
    k: u32,
    function: Option<Function>,
}

impl TopLogprobs {
    const NAME: &str = "top_logprobs";

    fn new(op: &ops::TopLogprobs) -> Result<TopLogprobs> {
        check(Self::NAME, op.vocab, op.max_rows)?;
        if op.k > op.vocab {
            return Err(Error::invalid(format!(
                "{}: {} alternatives of a vocabulary of {}; ask for fewer",
                Self::NAME,
                op.k,
                op.vocab
            )));
        }
        if op.k > MAX_ALTERNATIVES {
            return Err(Error::unsupported(format!(
                "{} with {} alternatives: at most {MAX_ALTERNATIVES} here",
                Self::NAME,
                op.k
            )));
        }
        Ok(TopLogprobs {
            vocab: op.vocab,
            k: op.k,
            function: None,
        })
    }
}

impl Kernel for TopLogprobs {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.function = Some(cx.function(LOGPROBS, &[], Self::NAME, 0)?);
        Ok(())
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [logits, chosen, logprobs, ranks, top_tokens, top_logprobs] = operands else {
            return Err(wrong_count(Self::NAME, 6, operands));
        };
        let k = if top_tokens.is_none() || top_logprobs.is_none() {
            0
        } else {
            self.k
        };
        let mut args = Vec::with_capacity(14);
        args.extend(rows(Self::NAME, "logits", logits)?);
        args.push(Arg::U32(self.vocab));
        args.extend(vector(chosen));
        args.extend(vector(logprobs));
        args.extend(vector(ranks));
        args.extend(rows(Self::NAME, "top_tokens", top_tokens)?);
        args.extend(rows(Self::NAME, "top_logprobs", top_logprobs)?);
        args.push(Arg::U32(k));
        let grid = [chosen.len(), 1, 1];
        encoding.launch(prepared(Self::NAME, self.function)?, grid, BLOCK, 0, &args);
        Ok(())
    }
}

fn wrong_count(op: &str, expected: usize, found: &[View]) -> Error {
    Error::invalid(format!("{op}: {} operands, it takes {expected}", found.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(spec: impl Into<OpSpec>) -> String {
        match build(&spec.into()) {
            Some(Err(error)) => error.to_string(),
            Some(Ok(_)) => "accepted".to_string(),
            None => "not of this family".to_string(),
        }
    }

    #[test]
    fn sizes_beyond_the_kernels_are_refused_with_the_limit() {
        let argmax = |vocab, max_seqs| refused(ops::Argmax { vocab, max_seqs });
        assert_eq!(argmax(262_144, 512), "accepted");
        assert!(argmax(520_001, 1).contains("at most 520000"), "{}", argmax(520_001, 1));
        assert!(argmax(100, 70_000).contains("at most 65535"), "{}", argmax(100, 70_000));
        assert!(argmax(0, 1).contains("vocab is 0"), "{}", argmax(0, 1));
        let top = |vocab, k| refused(ops::TopLogprobs { vocab, k, max_rows: 64 });
        assert_eq!(top(128_256, 20), "accepted");
        assert!(
            top(10, 11).contains("11 alternatives of a vocabulary of 10"),
            "{}",
            top(10, 11)
        );
        assert!(top(10_000, 4097).contains("at most 4096"), "{}", top(10_000, 4097));
    }

    #[test]
    fn few_rows_get_many_blocks_and_small_rows_one() {
        let parts = |vocab, seqs| {
            let argmax = Argmax {
                num_sms: 132,
                ..Argmax::new(&ops::Argmax { vocab, max_seqs: 512 }).unwrap()
            };
            argmax.parts(seqs)
        };
        assert_eq!(parts(128_256, 1), 31);
        assert_eq!(parts(128_256, 64), 2);
        assert_eq!(parts(128_256, 256), 1);
        assert_eq!(parts(33, 1), 1);
    }

    #[test]
    fn encoding_before_prepare_is_an_error() {
        let kernel = build(&ops::Argmax { vocab: 33, max_seqs: 1 }.into()).unwrap().unwrap();
        let mut encoding = Encoding::default();
        let error = kernel.encode(&mut encoding, &[View::NONE; 2]).unwrap_err();
        assert!(error.message.contains("before it is prepared"), "{error}");
        let error = kernel.encode(&mut encoding, &[View::NONE; 3]).unwrap_err();
        assert!(error.message.contains("3 operands, it takes 2"), "{error}");
    }
}
