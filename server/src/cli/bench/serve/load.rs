//! Sends the requests at their times and records what a client sees of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::arrivals;
use super::dataset::Sample;
use super::options::{Backend, ServeBenchArgs};
use crate::cli::bench::progress;
use crate::client::ServerClient;
use crate::error::ServerError;

/// A client's measurements of one request, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// From the bench's start to sending.
    pub start: f64,
    /// From its time to sending: what it waited for others to end.
    pub queued: f64,
    /// From sending to the first piece.
    pub first_token: f64,
    /// Between neighbouring pieces.
    pub gaps: Vec<f64>,
    /// From sending to the last piece.
    pub total: f64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub text: String,
}

/// The measurements of a bench.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub seconds: f64,
    /// In the order of the requests.
    pub seen: Vec<Seen>,
    pub failures: Vec<String>,
}

/// Sends `samples`, of which those beyond the bench's number come first and are not measured.
pub(super) async fn run(
    args: &ServeBenchArgs,
    client: ServerClient,
    model: &str,
    mut samples: Vec<Sample>,
) -> Result<Outcome, ServerError> {
    let warmups = samples.split_off(samples.len().saturating_sub(args.num_warmups as usize + 1));
    let (client, route): (_, Arc<str>) = (Arc::new(client), args.route().into());
    // One request first, at least: it must work, and the server's first-use costs are not the bench's.
    let models = args.traffic.models(model, samples.len(), args.seed);
    for (at, sample) in warmups.iter().enumerate() {
        // The first requests' adapters.
        let model = models.get(at).copied().unwrap_or(model);
        request(&client, &route, &body(args, model, sample), sample, None).await?;
    }
    let slots = args
        .max_concurrency
        .map_or(Semaphore::MAX_PERMITS, |most| most as usize);
    let slots = Arc::new(Semaphore::new(slots));
    let bar = match args.disable_tqdm {
        true => ProgressBar::hidden(),
        false => progress(samples.len() as u64, "requests"),
    };
    let times = if args.is_self_timed() {
        samples.iter().map(|sample| sample.at.unwrap_or_default()).collect()
    } else {
        let rate = args.traffic.rate(args.request_rate);
        arrivals::times(samples.len() as u32, rate, args.burstiness, args.seed)?
    };
    let count = samples.len();
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for (index, (sample, due)) in samples.into_iter().zip(times).enumerate() {
        sleep_until(started + due).await;
        let body = body(args, models[index], &sample);
        let id = args.traffic.request_id(index);
        let (client, slots, route) = (Arc::clone(&client), Arc::clone(&slots), Arc::clone(&route));
        tasks.spawn(async move {
            let arrived = Instant::now();
            let _slot = slots.acquire_owned().await;
            let sent = Instant::now();
            let seen = request(&client, &route, &body, &sample, id.as_deref()).await;
            let seen = seen.map(|seen| Seen {
                start: sent.duration_since(started).as_secs_f64(),
                queued: sent.duration_since(arrived).as_secs_f64(),
                ..seen
            });
            (index, seen)
        });
    }
    let mut seen: Vec<Option<Seen>> = vec![None; count];
    let mut failures = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        bar.inc(1);
        match outcome {
            Ok((index, Ok(one))) => seen[index] = Some(one),
            Ok((_, Err(error))) => failures.push(error.to_string()),
            Err(error) => failures.push(error.to_string()),
        }
    }
    bar.finish_and_clear();
    Ok(Outcome {
        seconds: started.elapsed().as_secs_f64(),
        seen: seen.into_iter().flatten().collect(),
        failures,
    })
}

async fn sleep_until(time: Instant) {
    if time.duration_since(Instant::now()) > Duration::ZERO {
        tokio::time::sleep_until(time.into()).await;
    }
}

fn body(args: &ServeBenchArgs, model: &str, sample: &Sample) -> Value {
    let mut body = json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    match args.backend {
        Backend::OpenaiChat => {
            body["messages"] = json!([{"role": "user", "content": sample.prompt.json()}]);
            body["max_completion_tokens"] = json!(sample.output_len);
        }
        Backend::Vllm | Backend::Openai => {
            body["prompt"] = sample.prompt.json();
            body["max_tokens"] = json!(sample.output_len);
        }
    }
    if args.ignore_eos || args.dataset_name.runs_to_length() {
        body["ignore_eos"] = json!(true);
    }
    match (args.logprobs, args.backend) {
        (Some(count), Backend::OpenaiChat) => {
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(count);
        }
        (Some(count), _) => body["logprobs"] = json!(count),
        (None, _) => {}
    }
    let numbers = [
        ("temperature", args.temperature.map(Value::from)),
        ("top_p", args.top_p.map(Value::from)),
        ("top_k", args.top_k.map(Value::from)),
        ("min_p", args.min_p.map(Value::from)),
        ("frequency_penalty", args.frequency_penalty.map(Value::from)),
        ("presence_penalty", args.presence_penalty.map(Value::from)),
        ("repetition_penalty", args.repetition_penalty.map(Value::from)),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    if let (Some(settings), Backend::OpenaiChat) = (&args.chat_template_kwargs, args.backend) {
        body["chat_template_kwargs"] = Value::Object(settings.0.clone());
    }
    for (key, value) in args.extra_body.iter().flat_map(|object| &object.0) {
        body[key] = value.clone();
    }
    body
}

/// Sends one request. One that does not tell how many tokens it has is a failure, and so is one that goes on to its
/// full length and has another number than asked for: its figures would mislead.
async fn request(
    client: &ServerClient,
    route: &str,
    body: &Value,
    sample: &Sample,
    id: Option<&str>,
) -> Result<Seen, ServerError> {
    let started = Instant::now();
    let (mut first, mut last) = (None, started);
    let mut seen = Seen::default();
    let mut usage = Value::Null;
    client
        .stream_events(route, body, id, |event| {
            if event["usage"]["completion_tokens"].is_u64() {
                usage = event["usage"].clone();
            }
            let choice = &event["choices"][0];
            if choice.is_null() {
                return;
            }
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            // A chat begins with a piece that holds the role alone.
            if choice["delta"]["role"].is_string() && text.is_none_or(str::is_empty) && first.is_none() {
                return;
            }
            seen.text.push_str(text.unwrap_or_default());
            let now = Instant::now();
            match first {
                None => first = Some(now),
                Some(_) => seen.gaps.push(now.duration_since(last).as_secs_f64()),
            }
            last = now;
        })
        .await?;
    let Some(first) = first else {
        return Err(ServerError::Refused("an answer held no token".to_owned()));
    };
    let Some(output_tokens) = usage["completion_tokens"].as_u64() else {
        let message =
            "the server sends no usage with the stream (stream_options.include_usage), so tokens cannot be counted";
        return Err(ServerError::Refused(message.to_owned()));
    };
    if body["ignore_eos"] == true && output_tokens != u64::from(sample.output_len) {
        let message = format!(
            "an answer ended after {output_tokens} tokens, {} were asked for",
            sample.output_len
        );
        return Err(ServerError::Refused(message));
    }
    seen.first_token = first.duration_since(started).as_secs_f64();
    seen.total = last.duration_since(started).as_secs_f64();
    seen.input_tokens = usage["prompt_tokens"].as_u64().or(sample.prompt_tokens).unwrap_or(0);
    seen.output_tokens = output_tokens;
    Ok(seen)
}
