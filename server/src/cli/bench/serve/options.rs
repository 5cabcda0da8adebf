//! The options of `halyard bench serve`, which are vLLM's, and the checks of them that need no server.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::plot_args::PlotArgs;
use super::prefix_repetition::PrefixRepetitionArgs;
use super::rate::{Rate, parse_rate};
use super::timed_trace::TimedTraceArgs;
use super::traffic::TrafficArgs;
use crate::cli::model_flags::{JsonObject, parse_object};
use crate::error::ServerError;

/// How requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Completions.
    Vllm,
    /// Completions.
    Openai,
    /// Chat completions.
    OpenaiChat,
}

impl Backend {
    pub(super) fn name(self) -> &'static str {
        match self {
            Backend::Vllm => "vllm",
            Backend::Openai => "openai",
            Backend::OpenaiChat => "openai-chat",
        }
    }

    fn route(self) -> &'static str {
        match self {
            Backend::Vllm | Backend::Openai => "/v1/completions",
            Backend::OpenaiChat => "/v1/chat/completions",
        }
    }
}

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    /// Random tokens.
    Random,
    /// A file of ShareGPT's conversations.
    Sharegpt,
    /// Lines of JSON with a prompt each.
    Custom,
    /// Random tokens of which several prompts begin alike.
    #[value(name = "prefix_repetition")]
    PrefixRepetition,
    /// Lengths of a service's requests, in a CSV file of BurstGPT.
    Burstgpt,
    /// Questions of Spec-Bench, a line of JSON each.
    #[value(name = "spec_bench")]
    SpecBench,
    /// Requests of a recorded service with their times, a line of JSON each.
    #[value(name = "timed_trace")]
    TimedTrace,
}

impl DatasetName {
    fn has_file(self) -> bool {
        !matches!(self, DatasetName::Random | DatasetName::PrefixRepetition)
    }

    /// Random tokens mean nothing: answers are measured at their full length, and those of a trace at its lengths. As
    /// in vLLM an answer of burstgpt may end before.
    pub(super) fn runs_to_length(self) -> bool {
        !self.has_file() || self == DatasetName::TimedTrace
    }
}

/// A metric whose mean, median and percentiles are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token after the first.
    Tpot,
    /// Time between pieces.
    Itl,
    /// Whole request.
    E2el,
}

/// `KEY=VALUE`, or `KEY:VALUE`.
fn parse_pair(text: &str, by: char) -> Result<(String, String), String> {
    match text.split_once(by) {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err(format!("`{text}` is not KEY{by}VALUE")),
    }
}

fn parse_equals(text: &str) -> Result<(String, String), String> {
    parse_pair(text, '=')
}

fn parse_goodput(text: &str) -> Result<(Metric, f64), String> {
    let (key, value) = parse_pair(text, ':')?;
    let metric = match key.as_str() {
        "ttft" => Metric::Ttft,
        "tpot" => Metric::Tpot,
        "e2el" => Metric::E2el,
        _ => return Err(format!("`{key}` has no goodput; choose ttft, tpot or e2el")),
    };
    match value.parse::<f64>() {
        Ok(ms) if ms >= 0.0 => Ok((metric, ms)),
        _ => Err(format!("`{value}` is no number of milliseconds")),
    }
}

/// Shares by which lengths of prompts and of answers may differ from those asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RangeRatio {
    /// Of prompts.
    pub input: f64,
    /// Of answers.
    pub output: f64,
}

fn parse_ratio(text: &str) -> Result<RangeRatio, String> {
    let bad = || format!("`{text}` is no share from 0 up to, not including, 1, nor {{\"input\": …, \"output\": …}}");
    let share = |value: Option<f64>| value.filter(|share| (0.0..1.0).contains(share)).ok_or_else(bad);
    if let Ok(one) = text.parse::<f64>() {
        let one = share(Some(one))?;
        return Ok(RangeRatio {
            input: one,
            output: one,
        });
    }
    let both: Value = serde_json::from_str(text).map_err(|_| bad())?;
    Ok(RangeRatio {
        input: share(both["input"].as_f64())?,
        output: share(both["output"].as_f64())?,
    })
}

fn parse_burstiness(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(shape) if (1e-3..=1e6).contains(&shape) => Ok(shape),
        _ => Err(format!(
            "`{text}` is not from 0.001 to 1000000; 1 is Poisson, less is more bursty"
        )),
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("`{text}` is no percentile; give a number from 0 to 100")),
    }
}

/// Flags of `halyard bench serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Bench", args_override_self = true)]
pub struct ServeBenchArgs {
    /// The server; without it http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(super) base_url: Option<String>,
    /// The server's address, where no --base-url is given
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Its port
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(super) port: u16,
    /// The API: completions (vllm, openai) or chat completions (openai-chat)
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Backend::Openai)]
    pub(super) backend: Backend,
    /// Route; without it the backend's
    #[arg(long, value_name = "ROUTE")]
    pub(super) endpoint: Option<String>,
    /// Key for the server
    #[arg(long, value_name = "KEY", env = "HALYARD_CLIENT_API_KEY", hide_env_values = true)]
    pub(super) api_key: Option<String>,
    /// Take any certificate of a server with https: one that it made itself, of another name, out of date
    #[arg(long)]
    pub(super) insecure: bool,
    /// Headers of every request
    #[arg(long, value_name = "KEY=VALUE", num_args = 1.., value_parser = parse_equals)]
    header: Vec<(String, String)>,
    /// The model; its name for the server too, unless --served-model-name is given. Without it the first that the
    /// server names
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// The model's name for the server
    #[arg(long, value_name = "NAME")]
    pub(super) served_model_name: Option<String>,
    /// Written into the result; prompts are made of tokens by the server's own tokenizer
    #[arg(long, value_name = "NAME")]
    pub(super) tokenizer: Option<String>,
    /// Where prompts come from; prompts of prefix_repetition begin alike, sharegpt, custom, burstgpt (lengths alone),
    /// spec_bench and timed_trace are files (--dataset-path)
    #[arg(long, value_name = "NAME", value_enum, default_value_t = DatasetName::Random)]
    pub(super) dataset_name: DatasetName,
    /// File of a dataset
    #[arg(long, value_name = "FILE")]
    pub(super) dataset_path: Option<PathBuf>,
    /// Tokens of each random prompt
    #[arg(long, visible_alias = "input-len", value_name = "TOKENS", default_value_t = 1024)]
    pub(super) random_input_len: u32,
    /// Tokens to generate for each random prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub(super) random_output_len: u32,
    /// Lengths differ by up to this share, evenly: 0.2, or {"input": 0.2, "output": 0}
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_ratio)]
    pub(super) random_range_ratio: RangeRatio,
    /// Tokens before each random prompt, the same for all
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub(super) random_prefix_len: u32,
    /// Prompts are drawn from ids below this; without it 32000, or as many as the server's tokenizer has where it has
    /// fewer
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) random_vocab_size: Option<u32>,
    #[command(flatten)]
    pub(super) prefix_repetition: PrefixRepetitionArgs,
    /// Tokens to generate for each prompt, in place of a dataset's own
    #[arg(long, value_name = "TOKENS")]
    pub(super) output_len: Option<u32>,
    /// Tokens to generate for each conversation of sharegpt; without it as many as its answer has
    #[arg(long, value_name = "TOKENS")]
    pub(super) sharegpt_output_len: Option<u32>,
    /// Tokens to generate for each line of custom; -1: the line's output_tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 256, allow_negative_numbers = true)]
    pub(super) custom_output_len: i64,
    /// Tokens to generate for each question of spec_bench
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub(super) spec_bench_output_len: u32,
    /// Take the questions of this category of spec_bench; without it all
    #[arg(long, value_name = "NAME")]
    pub(super) spec_bench_category: Option<String>,
    #[command(flatten)]
    pub(super) timed_trace: TimedTraceArgs,
    /// Send prompts of custom and spec_bench as they are, without the chat template
    #[arg(long)]
    pub(super) skip_chat_template: bool,
    /// Take a dataset in its own order
    #[arg(long)]
    pub(super) disable_shuffle: bool,
    /// Send each prompt of a dataset once, though it has fewer than --num-prompts
    #[arg(long)]
    pub(super) no_oversample: bool,
    /// Requests
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) num_prompts: u32,
    /// Requests a second, at random times; inf sends all at once
    #[arg(long, value_name = "NUMBER", default_value = "inf", value_parser = parse_rate)]
    pub(super) request_rate: f64,
    /// Shape of the times between requests (gamma distribution): 1 is Poisson, less comes in bursts, more is even
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = parse_burstiness)]
    pub(super) burstiness: f64,
    #[command(flatten)]
    pub(super) traffic: TrafficArgs,
    /// Requests that may be under way at the same time; without it any number
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_concurrency: Option<u32>,
    /// Requests before the measured ones, besides the one that every bench begins with
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(super) num_warmups: u32,
    /// Seed of prompts and times
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(super) seed: u64,
    /// Answers go on to their full length; those of random prompts do always
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Logprobs to ask for
    #[arg(long, value_name = "COUNT")]
    pub(super) logprobs: Option<u32>,
    /// Sampling; without it the server's default
    #[arg(long, value_name = "NUMBER")]
    pub(super) temperature: Option<f64>,
    /// Sampling
    #[arg(long, value_name = "NUMBER")]
    pub(super) top_p: Option<f64>,
    /// Sampling
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub(super) top_k: Option<i64>,
    /// Sampling
    #[arg(long, value_name = "NUMBER")]
    pub(super) min_p: Option<f64>,
    /// Sampling
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(super) frequency_penalty: Option<f64>,
    /// Sampling
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(super) presence_penalty: Option<f64>,
    /// Sampling
    #[arg(long, value_name = "NUMBER")]
    pub(super) repetition_penalty: Option<f64>,
    /// More fields of every request, as JSON
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    pub(super) extra_body: Option<JsonObject>,
    /// Settings of the chat template, as JSON; for chats and for prompts of custom
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    pub(super) chat_template_kwargs: Option<JsonObject>,
    /// Metrics to report, separated by commas
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        default_value = "ttft,tpot,itl,e2el",
        value_delimiter = ','
    )]
    pub(super) percentile_metrics: Vec<Metric>,
    /// Percentiles to report, separated by commas
    #[arg(long, value_name = "PERCENT", default_value = "99", value_delimiter = ',', value_parser = parse_percent)]
    pub(super) metric_percentiles: Vec<f64>,
    /// Count requests that keep these bounds in milliseconds: ttft:200 tpot:50 e2el:5000
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = parse_goodput)]
    pub(super) goodput: Vec<(Metric, f64)>,
    /// Write the result as JSON, named as vLLM names it
    #[arg(long)]
    pub(super) save_result: bool,
    /// Write the result as a line of JSON behind those that the file has
    #[arg(long, conflicts_with = "save_result")]
    pub(super) append_result: bool,
    /// Write the measurements of each request as well
    #[arg(long)]
    pub(super) save_detailed: bool,
    /// Folder for --save-result and --append-result
    #[arg(long, value_name = "FOLDER")]
    pub(super) result_dir: Option<PathBuf>,
    /// File for --save-result and --append-result
    #[arg(long, value_name = "NAME")]
    pub(super) result_filename: Option<PathBuf>,
    /// Name of this run in the result and in its file's name
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,
    /// More fields of the result
    #[arg(long, value_name = "KEY=VALUE", num_args = 1.., value_parser = parse_equals)]
    metadata: Vec<(String, String)>,
    #[command(flatten)]
    pub(super) plot: PlotArgs,
    /// Write the figures as JSON into this file
    #[arg(long, value_name = "FILE")]
    pub(super) output_json: Option<PathBuf>,
    /// No progress bar
    #[arg(long)]
    pub(super) disable_tqdm: bool,
    /// Accepted for vLLM's command lines; has no effect here
    #[arg(long, hide = true)]
    trust_remote_code: bool,
    /// Accepted for vLLM's command lines; has no effect here
    #[arg(long, hide = true, value_name = "NAME")]
    tokenizer_mode: Option<String>,
    /// Accepted for vLLM's command lines; has no effect here
    #[arg(long, hide = true)]
    skip_tokenizer_init: bool,
    /// Accepted for vLLM's command lines; has no effect here
    #[arg(long, hide = true)]
    no_stream: bool,
}

impl ServeBenchArgs {
    pub(super) fn url(&self) -> String {
        let host = match self.host.contains(':') && !self.host.starts_with('[') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let own = || format!("http://{host}:{}", self.port);
        self.base_url.clone().unwrap_or_else(own)
    }

    pub(super) fn route(&self) -> &str {
        self.endpoint.as_deref().unwrap_or(self.backend.route())
    }

    pub(super) fn headers(&self) -> Result<Vec<(String, String)>, ServerError> {
        Ok(self.header.clone())
    }

    pub(super) fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Refuses what contradicts itself.
    pub(super) fn check(&self) -> Result<(), ServerError> {
        let refuse = |option, message: String| Err(ServerError::Option { option, message });
        let wanted = self.backend.route().trim_start_matches("/v1");
        if !self.route().ends_with(wanted)
            || (self.backend != Backend::OpenaiChat && self.route().ends_with("/chat/completions"))
        {
            let (backend, route) = (self.backend.name(), self.backend.route());
            let message = format!("{} is no route of --backend {backend}; it is {route}", self.route());
            return refuse("--endpoint", message);
        }
        self.traffic.check(self.request_rate)?;
        if self.dataset_name == DatasetName::PrefixRepetition {
            self.prefix_repetition.check(self.num_prompts)?;
        }
        self.check_times()?;
        match (self.dataset_name.has_file(), &self.dataset_path) {
            (false, Some(path)) => {
                let message = format!(
                    "{}: random prompts have no file; name one of --dataset-name sharegpt, custom, burstgpt, \
                     spec_bench, timed_trace",
                    path.display()
                );
                refuse("--dataset-path", message)
            }
            (true, None) => refuse(
                "--dataset-name",
                "its file is missing; give it with --dataset-path".to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// Whether requests come at times of the dataset.
    pub(super) fn is_self_timed(&self) -> bool {
        self.dataset_name == DatasetName::TimedTrace && self.timed_trace.is_self_timed()
    }

    /// Refuses times that come from two places, or from none.
    fn check_times(&self) -> Result<(), ServerError> {
        let refuse = |option, message: &str| {
            Err(ServerError::Option {
                option,
                message: message.to_owned(),
            })
        };
        match self.timed_trace.timing_flag() {
            Some(flag) if self.dataset_name != DatasetName::TimedTrace => refuse(
                flag,
                "only requests of --dataset-name timed_trace have times of their own",
            ),
            _ if self.is_self_timed() && self.traffic.rate(self.request_rate) != Rate::Constant(f64::INFINITY) => {
                refuse(
                    "--request-rate",
                    "requests of timed_trace come at their own times; leave the rate out, or give --no-self-timed",
                )
            }
            _ => Ok(()),
        }
    }

    /// Says which of the options given change nothing.
    pub(super) fn tell_idle(&self) {
        let given = [
            ("--trust-remote-code", self.trust_remote_code),
            ("--tokenizer", self.tokenizer.is_some()),
            ("--tokenizer-mode", self.tokenizer_mode.is_some()),
            ("--skip-tokenizer-init", self.skip_tokenizer_init),
            ("--no-stream", self.no_stream),
            ("--insecure", self.insecure && !self.url().starts_with("https:")),
        ];
        let names: Vec<&str> = given
            .iter()
            .filter(|(_, given)| *given)
            .map(|(name, _)| *name)
            .collect();
        if !names.is_empty() {
            eprintln!("accepted, needs nothing here: {}", names.join(", "));
        }
        if self.temperature.is_none() {
            eprintln!("no --temperature: the server's default is used; --temperature 0 takes the likeliest token");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_bounds_and_pairs_are_read() {
        assert_eq!(parse_ratio("0.2").expect("a share").output, 0.2);
        let both = parse_ratio(r#"{"input": 0.1, "output": 0.5}"#).expect("two shares");
        assert_eq!((both.input, both.output), (0.1, 0.5));
        for bad in ["1", "-0.1", "x", r#"{"input": 0.1}"#] {
            assert!(parse_ratio(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_goodput("ttft:200"), Ok((Metric::Ttft, 200.0)));
        for bad in ["itl:1", "ttft", "ttft:-1", "ttft:x"] {
            assert!(parse_goodput(bad).is_err(), "{bad}");
        }
        assert!(parse_equals("a=b=c").is_ok_and(|pair| pair == ("a".to_owned(), "b=c".to_owned())));
    }
}
