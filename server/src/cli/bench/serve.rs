//! `halyard bench serve`: sends streaming requests to a running server at a given rate and measures what a client sees.
//! Works with any OpenAI-compatible server, which makes it the bench for peers too. Options and the fields of the
//! result are those of `vllm bench serve`.

mod arrivals;
mod dataset;
mod dataset_file;
mod figures;
mod load;
mod options;
mod plot;
mod plot_args;
mod prefix_repetition;
mod rate;
mod timed_trace;
mod traffic;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::report::{append_json, write_json};
use crate::client::{ClientError, ServerClient};
use crate::clock::unix_seconds;
use crate::error::ServerError;
pub use options::ServeBenchArgs;
use rate::Rate;

/// Between looks for a server that does not answer yet.
const READY_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn run(args: &ServeBenchArgs) -> Result<(), ServerError> {
    args.check()?;
    let measured = super::super::runtime()?.block_on(measure(args));
    if let Err(error @ ServerError::Client(ClientError::Unreachable { .. })) = &measured
        && error.to_string().contains("certificate")
    {
        eprintln!("--insecure takes any certificate, such as one that the server made itself");
    }
    measured
}

/// Waits for a server that does not answer yet, if it may.
async fn until_ready(args: &ServeBenchArgs, client: &ServerClient) -> Result<(), ServerError> {
    let patience = Duration::from_secs(args.traffic.ready_check_timeout_sec);
    let begun = Instant::now();
    while !patience.is_zero() {
        match client.get_json("/v1/models").await {
            Ok(_) => break,
            Err(error) if begun.elapsed() >= patience => return Err(error.into()),
            Err(_) => tokio::time::sleep(READY_PAUSE).await,
        }
    }
    Ok(())
}

async fn measure(args: &ServeBenchArgs) -> Result<(), ServerError> {
    args.tell_idle();
    let (url, key) = (args.url(), args.api_key.clone());
    let client = match args.insecure {
        true => ServerClient::insecure(&url, key)?,
        false => ServerClient::new(&url, key)?,
    };
    let client = client.with_headers(&args.headers()?)?;
    until_ready(args, &client).await?;
    let served = match (&args.served_model_name, &args.model) {
        (Some(name), _) | (None, Some(name)) => name.clone(),
        (None, None) => client.first_model().await?,
    };
    let samples = dataset::samples(args, &client, &served).await?;
    let outcome = load::run(args, client, &served, samples).await?;
    let mut figures = figures::summarize(args, &outcome);
    let about = about(args, &served);
    if let (Value::Object(fields), Value::Object(about)) = (&mut figures, about) {
        // A measured field wins over a --metadata of the same name.
        for (key, value) in about {
            fields.entry(key).or_insert(value);
        }
    }
    write_json(args.output_json.as_deref(), &figures)?;
    let saves = args.save_result || args.append_result;
    let path = match saves || args.plot.is_asked() {
        true => result_path(args, &served)?,
        false => PathBuf::new(),
    };
    plot::write(&args.plot, &path, &outcome)?;
    if saves {
        match args.append_result {
            true => append_json(&path, &figures)?,
            false => write_json(Some(&path), &figures)?,
        }
        say!("result written to {}", path.display());
    }
    match outcome.failures.first() {
        Some(first) => Err(ServerError::Refused(format!(
            "{} requests failed; the first: {first}",
            outcome.failures.len()
        ))),
        None => Ok(()),
    }
}

/// The options of the run, under the names of vLLM's result files.
fn about(args: &ServeBenchArgs, served: &str) -> Value {
    let rate = match args.request_rate.is_finite() {
        true => json!(args.request_rate),
        false => json!("inf"),
    };
    let model = args.model.as_deref().unwrap_or(served);
    let mut about = json!({
        "date": date(unix_seconds()),
        "endpoint_type": args.backend.name(),
        "backend": args.backend.name(),
        "label": args.label,
        "model_id": model,
        "tokenizer_id": args.tokenizer.as_deref().unwrap_or(model),
        "num_prompts": args.num_prompts,
        "request_rate": rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
    });
    if let Rate::RampUp { strategy, start, end } = args.traffic.rate(args.request_rate) {
        about["ramp_up_strategy"] = json!(strategy.name());
        about["ramp_up_start_rps"] = json!(start);
        about["ramp_up_end_rps"] = json!(end);
    }
    for (key, value) in args.metadata() {
        about[key] = json!(value);
    }
    about
}

/// Where vLLM would write the result: label, rate, concurrency, model and time in the name, unless one is given.
fn result_path(args: &ServeBenchArgs, served: &str) -> Result<PathBuf, ServerError> {
    let folder = args.result_dir.clone().unwrap_or_default();
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(&folder).map_err(ServerError::io("creating --result-dir"))?;
    }
    if let Some(name) = &args.result_filename {
        return Ok(folder.join(name));
    }
    let label = args.label.as_deref().unwrap_or(args.backend.name());
    let concurrency = args
        .max_concurrency
        .map(|most| format!("-concurrency{most}"))
        .unwrap_or_default();
    let model = args.model.as_deref().unwrap_or(served);
    let model = model.rsplit('/').next().unwrap_or(model);
    let date = date(unix_seconds());
    let rate = match args.traffic.rate(args.request_rate) {
        Rate::Constant(rate) => format!("{rate:?}qps"),
        Rate::RampUp { strategy, start, end } => format!("ramp-up-{}-{start}qps-{end}qps", strategy.name()),
    };
    Ok(folder.join(format!("{label}-{rate}{concurrency}-{model}-{date}.json")))
}

/// `YYYYMMDD-HHMMSS`, in UTC. The civil date by Howard Hinnant's `civil_from_days`.
fn date(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "19700101-000000");
        assert_eq!(date(951_827_696), "20000229-123456");
        assert_eq!(date(1_798_761_599), "20261231-235959");
    }
}
