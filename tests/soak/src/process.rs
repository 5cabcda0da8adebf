//! The server: started as an operator would, watched from outside, stopped by SIGTERM.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Sum of the values of each wanted metric, all label sets together.
pub type Gauges = [f64; 5];

/// What [`Gauges`] holds, in order.
pub const GAUGES: [&str; 5] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
];

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    url: String,
    client: reqwest::Client,
}

/// The fixtures of the tests.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models")
}

impl Server {
    /// Starts `binary serve` with a tiny model and two adapters.
    pub fn start(binary: &Path, platform: &str, port: u16, out: &Path) -> std::io::Result<Server> {
        let log = File::create(out.join("server.log"))?;
        let adapter = |name: &str| format!("{name}={}", fixtures().join("llama-lora").join(name).display());
        let mut command = Command::new(binary);
        command
            .args(["serve", "--platform", platform, "--port", &port.to_string(), "--model"])
            .arg(fixtures().join("llama"))
            .args([
                "--served-model-name",
                "tiny",
                "--kv-cache-memory-bytes",
                "2MiB",
                "--max-num-seqs",
                "32",
            ])
            .args(["--enable-lora", "--max-loras", "2", "--allow-runtime-lora-updating"])
            .args(["--lora-modules", &adapter("rank4")])
            .args(["--lora-modules", &adapter("rslora8")])
            // A line for each request would be gigabytes in an hour.
            .args(["--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn()?;
        // The sampler's own connection is one more descriptor all the time.
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .build();
        Ok(Server {
            child,
            url: format!("http://127.0.0.1:{port}"),
            client: client.map_err(std::io::Error::other)?,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until it answers.
    pub async fn ready(&self, limit: Duration) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < limit {
            let answer = self.client.get(format!("{}/health", self.url)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("the server is not ready: see server.log".to_owned())
    }

    /// Resident memory in bytes, descriptors, threads.
    pub fn resources(&self) -> std::io::Result<(u64, u64, u64)> {
        let folder = format!("/proc/{}", self.id());
        let status = std::fs::read_to_string(format!("{folder}/status"))?;
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        let descriptors = std::fs::read_dir(format!("{folder}/fd"))?.count() as u64;
        Ok((1024 * number("VmRSS:"), descriptors, number("Threads:")))
    }

    pub async fn gauges(&self) -> Result<Gauges, reqwest::Error> {
        let answer = self.client.get(format!("{}/metrics", self.url)).send().await?;
        let text = answer.error_for_status()?.text().await?;
        Ok(GAUGES.map(|name| {
            let of = |line: &str| {
                let rest = line.strip_prefix(name)?;
                let value = match rest.strip_prefix('{') {
                    Some(labels) => labels.rsplit_once("} ")?.1,
                    None => rest.strip_prefix(' ')?,
                };
                value.trim().parse::<f64>().ok()
            };
            text.lines().filter_map(of).sum()
        }))
    }

    /// Waits until nothing is in use any more; what still is, in words.
    pub async fn idle(&self, limit: Duration) -> Result<Vec<String>, reqwest::Error> {
        let started = Instant::now();
        loop {
            let gauges = self.gauges().await?;
            let used = GAUGES.iter().zip(gauges).take(3).filter(|(_, value)| *value != 0.0);
            let used: Vec<String> = used
                .map(|(name, value)| format!("{name} is {value} after the last request"))
                .collect();
            if used.is_empty() || started.elapsed() >= limit {
                return Ok(used);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends it; its exit status and the seconds that it took.
    pub fn stop(mut self) -> std::io::Result<(Option<i32>, f64)> {
        let started = Instant::now();
        Command::new("kill").args(["-TERM", &self.id().to_string()]).status()?;
        let status = self.child.wait()?;
        Ok((status.code(), started.elapsed().as_secs_f64()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
