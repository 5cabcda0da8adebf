//! Rows without a token: the error text with which their sequence ends, and the rate limit of its log line. Never uses
//! the device.

use std::time::{Duration, Instant};

use halyard_runner::{NoToken, Place, REMEDY, RowFault};

use crate::guide_workers::SequenceGuide;
use crate::output::FinishReason;
use crate::params::SamplingParams;

/// Lines of one kind in the log are at least this far apart.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// How the sequence ends that has generated `num_output` tokens and gets no further one.
pub(crate) fn finish(
    fault: &RowFault,
    num_output: u32,
    params: &SamplingParams,
    guide: Option<&SequenceGuide>,
) -> FinishReason {
    let at = match fault.place {
        Place::Output => format!("output position {num_output}"),
        Place::Prompt(position) => format!("prompt position {position}"),
    };
    let constraints = constraints(params, guide);
    match fault.why {
        NoToken::NothingAllowed if !constraints.is_empty() => FinishReason::NoTokenAllowed(format!(
            "no token is allowed at {at}: {} rule out every one that the model could give; relax or leave out one of \
             them",
            constraints.join(" and ")
        )),
        why => FinishReason::NotFinite(format!("the model's logits at {at} are {}; {REMEDY}", why.seen())),
    }
}

/// The request's fields that forbid tokens.
fn constraints(params: &SamplingParams, guide: Option<&SequenceGuide>) -> Vec<String> {
    let fields = [
        (params.allowed_token_ids.is_some(), "allowed_token_ids"),
        (!params.bad_words_token_ids.is_empty(), "bad_words"),
        (params.min_tokens > 0, "min_tokens (no stop or end token before)"),
    ];
    let set = fields.iter().filter(|(is_set, _)| *is_set);
    let names = set.map(|(_, name)| (*name).to_string());
    names.chain(guide.map(|guide| guide.watch().constraint())).collect()
}

/// Lets one line of a kind through in an interval and counts the others.
#[derive(Debug, Default)]
pub(crate) struct LogPace {
    last: Option<Instant>,
    left_out: u64,
}

impl LogPace {
    /// Whether to write a line `now`, with the number of those left out since the last one.
    pub(crate) fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use halyard_scheduler::RequestId;

    use super::*;

    #[test]
    fn the_end_names_position_cause_and_remedy() {
        let fault = |why, place| RowFault {
            id: RequestId(1),
            why,
            place,
        };
        let plain = SamplingParams::greedy(4);
        let bound = SamplingParams {
            allowed_token_ids: Some(vec![3]),
            bad_words_token_ids: vec![vec![3]],
            ..plain.clone()
        };
        let words = |fault: RowFault, params| match finish(&fault, 7, params, None) {
            FinishReason::NotFinite(words) => ("not finite", words),
            FinishReason::NoTokenAllowed(words) => ("not allowed", words),
            other => panic!("{other:?}"),
        };
        for params in [&plain, &bound] {
            let (kind, text) = words(fault(NoToken::NotFinite, Place::Output), params);
            assert_eq!(kind, "not finite");
            assert!(
                text.contains("output position 7") && text.contains("NaN or +infinity"),
                "{text}"
            );
            assert!(text.contains("--dtype") && text.contains("--kv-cache-dtype"), "{text}");
        }
        let (kind, text) = words(fault(NoToken::NothingAllowed, Place::Output), &bound);
        assert_eq!(kind, "not allowed");
        assert!(text.contains("allowed_token_ids and bad_words"), "{text}");
        // Without constraints, the model alone can have made them so.
        let (kind, text) = words(fault(NoToken::NothingAllowed, Place::Output), &plain);
        assert_eq!(kind, "not finite");
        assert!(text.contains("all -infinity"), "{text}");
        let (_, text) = words(fault(NoToken::NotFinite, Place::Prompt(3)), &plain);
        assert!(text.contains("prompt position 3"), "{text}");
    }

    #[test]
    fn one_line_a_second_passes_and_says_how_many_did_not() {
        let (mut pace, start) = (LogPace::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.pass(at(0)), Some(0));
        assert_eq!(pace.pass(at(10)), None);
        assert_eq!(pace.pass(at(999)), None);
        assert_eq!(pace.pass(at(1000)), Some(2));
        assert_eq!(pace.pass(at(1001)), None);
        assert_eq!(pace.pass(at(5000)), Some(1));
        assert_eq!(pace.pass(at(6000)), Some(0));
    }
}
