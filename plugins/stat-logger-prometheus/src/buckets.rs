//! Bounds of the histograms: vLLM's (vllm/v1/metrics/buckets.py), a family of which the operator may replace.

use std::collections::BTreeMap;

/// Phases of a request, in seconds.
const REQUEST_LATENCY: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
/// Arrival to first token, in seconds.
const TIME_TO_FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Token to token, in seconds.
const INTER_TOKEN_LATENCY: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Tokens of a step.
const ITERATION_TOKENS: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
/// Samples of a request.
const REQUEST_PARAMS_N: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
/// Preemptions of a request.
const REQUEST_NUM_PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// The families that this sink has, by vLLM's keys.
const FAMILIES: [&str; 7] = [
    "request_latency",
    "time_to_first_token",
    "inter_token_latency",
    "iteration_tokens",
    "request_params_n",
    "request_num_preemptions",
    "request_tokens",
];

/// The bounds to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    pub request_latency: Vec<f64>,
    pub time_to_first_token: Vec<f64>,
    pub inter_token_latency: Vec<f64>,
    pub iteration_tokens: Vec<f64>,
    pub request_params_n: Vec<f64>,
    pub request_num_preemptions: Vec<f64>,
    /// None: 1, 2, 5, 10, … up to the model's context.
    pub request_tokens: Option<Vec<f64>>,
}

impl Buckets {
    /// vLLM's, with the families of `custom` replaced.
    ///
    /// # Errors
    /// A family that is not there; bounds that are not positive, finite and rising.
    pub fn new(custom: &BTreeMap<String, Vec<f64>>) -> Result<Buckets, String> {
        for (family, bounds) in custom {
            if !FAMILIES.contains(&family.as_str()) {
                return Err(format!(
                    "custom_histogram_buckets: there is no family `{family}`; families: {}",
                    FAMILIES.join(", ")
                ));
            }
            let rising = bounds.windows(2).all(|pair| pair[0] < pair[1]);
            let positive = bounds.iter().all(|bound| *bound > 0.0 && bound.is_finite());
            if bounds.is_empty() || !rising || !positive {
                return Err(format!(
                    "custom_histogram_buckets: {family} is {bounds:?}; give at least one bound, all positive and each \
                     larger than the one before"
                ));
            }
        }
        let family = |name: &str, default: &[f64]| custom.get(name).cloned().unwrap_or_else(|| default.to_vec());
        Ok(Buckets {
            request_latency: family("request_latency", &REQUEST_LATENCY),
            time_to_first_token: family("time_to_first_token", &TIME_TO_FIRST_TOKEN),
            inter_token_latency: family("inter_token_latency", &INTER_TOKEN_LATENCY),
            iteration_tokens: family("iteration_tokens", &ITERATION_TOKENS),
            request_params_n: family("request_params_n", &REQUEST_PARAMS_N),
            request_num_preemptions: family("request_num_preemptions", &REQUEST_NUM_PREEMPTIONS),
            request_tokens: custom.get("request_tokens").cloned(),
        })
    }

    /// Bounds of token counts for a context of `max_model_len`.
    pub fn request_tokens(&self, max_model_len: u32) -> Vec<f64> {
        let computed = || one_two_five(max_model_len).collect();
        self.request_tokens.clone().unwrap_or_else(computed)
    }
}

/// vLLM's token buckets: 1, 2, 5, 10, 20, 50, … up to the largest that is at most `limit`.
fn one_two_five(limit: u32) -> impl Iterator<Item = f64> {
    (0..10u32)
        .flat_map(|power| [1u64, 2, 5].map(|mantissa| mantissa * 10u64.pow(power)))
        .take_while(move |value| *value <= u64::from(limit))
        .map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_buckets_are_those_of_vllm() {
        assert_eq!(
            one_two_five(100).collect::<Vec<_>>(),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        );
        assert_eq!(one_two_five(8192).last(), Some(5000.0));
    }

    #[test]
    fn a_family_is_replaced_and_the_others_stay() {
        let custom = BTreeMap::from([("request_latency".to_string(), vec![0.01, 5.0])]);
        let buckets = Buckets::new(&custom).expect("good bounds");
        assert_eq!(buckets.request_latency, [0.01, 5.0]);
        assert_eq!(buckets.time_to_first_token, TIME_TO_FIRST_TOKEN);
        assert_eq!(buckets.request_tokens(9), [1.0, 2.0, 5.0]);
    }

    #[test]
    fn unknown_families_and_bad_bounds_are_named() {
        let refused = |family: &str, bounds: &[f64]| {
            let custom = BTreeMap::from([(family.to_string(), bounds.to_vec())]);
            Buckets::new(&custom).map(|_| ()).expect_err("refused")
        };
        assert!(refused("request_latenzy", &[1.0]).contains("`request_latenzy`; families: request_latency"));
        for bad in [
            &[][..],
            &[1.0, 1.0],
            &[2.0, 1.0],
            &[0.0, 1.0],
            &[-1.0],
            &[f64::INFINITY],
            &[f64::NAN],
        ] {
            assert!(refused("request_tokens", bad).contains("request_tokens is"), "{bad:?}");
        }
    }
}
