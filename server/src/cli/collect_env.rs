//! `halyard collect-env`: what a report of a fault needs to say about the machine: versions, processor, memory, limits,
//! platforms with their devices, plugins, variables. Prints no secret, and looks at nothing that is not listed here.

use std::collections::BTreeMap;

use clap::Args;
use halyard_plugin_host::{PlatformReport, PluginReport, platform_reports, plugin_reports};
use serde::Serialize;

use super::args::PluginArgs;
use super::plugins::{OutputArgs, discover, print_as, print_platform, print_plugin};
use super::units::show_bytes;
use crate::error::ServerError;

/// Variables whose names begin so are shown.
const PREFIXES: [&str; 5] = ["HALYARD_", "VLLM_", "HF_", "SSL_CERT_", "MALLOC_"];
/// Others that change how a server runs.
const NAMES: [&str; 12] = [
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LANG",
    "TZ",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "RUST_BACKTRACE",
    "TMPDIR",
];
/// Parts of names whose values are not shown.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];

/// Flags of `halyard collect-env`.
#[derive(Args, Debug)]
pub struct CollectEnvArgs {
    #[command(flatten)]
    plugins: PluginArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    built_for: String,
    program: Option<String>,
    system: Option<String>,
    kernel: Option<String>,
    container: Option<&'static str>,
    processor: Option<String>,
    processors: usize,
    processor_features: Vec<&'static str>,
    memory_bytes: Option<u64>,
    available_bytes: Option<u64>,
    cgroup_memory_bytes: Option<u64>,
    cgroup_cpus: Option<f64>,
    open_files: Option<u64>,
    locked_memory_bytes: Option<u64>,
    huge_pages: Option<String>,
    environment: BTreeMap<String, String>,
    platforms: Vec<PlatformReport>,
    plugins: Vec<PluginReport>,
}

/// Runs `halyard collect-env`.
///
/// # Errors
/// A lock file of plugins that cannot be used, a library given by itself that does not load.
pub fn run(args: &CollectEnvArgs) -> Result<(), ServerError> {
    let catalog = discover(&args.plugins)?;
    let mut report = machine();
    report.platforms = platform_reports(&catalog);
    report.plugins = plugin_reports(&catalog);
    print_as(args.output, &report, print)
}

fn machine() -> Report {
    let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
    let meminfo = text("/proc/meminfo").unwrap_or_default();
    Report {
        version: env!("CARGO_PKG_VERSION"),
        built_for: format!(
            "{}-{}{}",
            std::env::consts::ARCH,
            std::env::consts::OS,
            if cfg!(debug_assertions) {
                ", without optimisation"
            } else {
                ""
            }
        ),
        program: std::env::current_exe().ok().map(|path| path.display().to_string()),
        system: text("/etc/os-release").and_then(|release| quoted(&release, "PRETTY_NAME=")),
        kernel: text("/proc/sys/kernel/osrelease").map(|kernel| kernel.trim().to_owned()),
        container: container(),
        processor: after(&cpuinfo, "model name").or_else(|| after(&cpuinfo, "CPU part")),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        processor_features: features(&cpuinfo),
        memory_bytes: kilobytes(&meminfo, "MemTotal"),
        available_bytes: kilobytes(&meminfo, "MemAvailable"),
        cgroup_memory_bytes: text("/sys/fs/cgroup/memory.max").and_then(|max| max.trim().parse().ok()),
        cgroup_cpus: text("/sys/fs/cgroup/cpu.max").and_then(|max| quota(&max)),
        open_files: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
        locked_memory_bytes: rustix::process::getrlimit(rustix::process::Resource::Memlock).maximum,
        huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled").map(|pages| pages.trim().to_owned()),
        environment: environment(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))),
        ),
        platforms: Vec::new(),
        plugins: Vec::new(),
    }
}

/// A small file of the system.
fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// What follows `NAME : ` in the first line that begins so.
fn after(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn quoted(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_matches('"').to_owned())
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = after(text, name)?;
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Processors of a line such as `150000 100000`.
fn quota(line: &str) -> Option<f64> {
    let (quota, period) = line.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then(|| quota / period)
}

/// Those that decide which kernels run.
fn features(cpuinfo: &str) -> Vec<&'static str> {
    const WANTED: [&str; 14] = [
        "sse4_2",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "avx_vnni",
        "amx_tile",
        "amx_bf16",
        "asimddp",
        "i8mm",
        "bf16",
    ];
    let flags = after(cpuinfo, "flags")
        .or_else(|| after(cpuinfo, "Features"))
        .unwrap_or_default();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    WANTED.into_iter().filter(|wanted| flags.contains(wanted)).collect()
}

fn container() -> Option<&'static str> {
    let is_there = |path: &str| std::path::Path::new(path).exists();
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some("a pod of Kubernetes")
    } else if is_there("/.dockerenv") || is_there("/run/.containerenv") {
        Some("yes")
    } else {
        None
    }
}

fn environment(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let shown = variables.filter(|(name, _)| {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || NAMES.contains(&name.as_str())
            // What names devices to a platform's libraries.
            || name.ends_with("_VISIBLE_DEVICES")
    });
    let hidden = |name: &str| SECRETS.iter().any(|part| name.contains(part)) && !name.ends_with("_FILE");
    let masked = shown.map(|(name, value)| match hidden(&name) {
        true => (name, "set, not shown".to_owned()),
        // An address of a proxy may hold a password.
        false => match value
            .split_once("://")
            .and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)))
        {
            Some((scheme, host)) => (name, format!("{scheme}://…@{host}")),
            None => (name, value),
        },
    });
    masked.collect()
}

fn print(report: &Report) {
    let line = |name: &str, value: Option<String>| say!("{name:<20} {}", value.as_deref().unwrap_or("not known"));
    line("Halyard", Some(format!("{} for {}", report.version, report.built_for)));
    line("program", report.program.clone());
    line("system", report.system.clone());
    line("kernel", report.kernel.clone());
    line(
        "container",
        Some(report.container.unwrap_or("none was found").to_owned()),
    );
    let processor = report.processor.as_deref().unwrap_or("not known");
    line("processor", Some(format!("{processor}, {} threads", report.processors)));
    line("features", Some(report.processor_features.join(" ")));
    let bytes = |bytes: Option<u64>| bytes.map(show_bytes);
    line("memory", bytes(report.memory_bytes));
    line("memory available", bytes(report.available_bytes));
    let limit = |limit: Option<String>| Some(limit.unwrap_or_else(|| "no limit".to_owned()));
    line("cgroup memory", limit(bytes(report.cgroup_memory_bytes)));
    line(
        "cgroup processors",
        limit(report.cgroup_cpus.map(|cpus| cpus.to_string())),
    );
    line("open files", limit(report.open_files.map(|files| files.to_string())));
    line("locked memory", limit(bytes(report.locked_memory_bytes)));
    line("huge pages", report.huge_pages.clone());
    say!("\nvariables");
    for (name, value) in &report.environment {
        say!("  {name}={value}");
    }
    say!("\nplatforms");
    report.platforms.iter().for_each(print_platform);
    say!("\nplugins");
    for plugin in &report.plugins {
        print_plugin(plugin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        let variables = [
            ("HALYARD_API_KEY", "sesame"),
            ("HF_TOKEN", "hf_sesame"),
            ("HALYARD_API_KEY_FILE", "/etc/keys"),
            ("HALYARD_PORT", "80"),
            ("https_proxy", "http://user:sesame@proxy.example:3128"),
            ("SOME_VISIBLE_DEVICES", "0,1"),
            ("AWS_SECRET", "sesame"),
            ("HOME", "/root"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let shown = environment(variables.into_iter());
        let names: Vec<&str> = shown.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "HALYARD_API_KEY",
                "HALYARD_API_KEY_FILE",
                "HALYARD_PORT",
                "HF_TOKEN",
                "SOME_VISIBLE_DEVICES",
                "https_proxy"
            ]
        );
        assert!(shown.values().all(|value| !value.contains("sesame")), "{shown:?}");
        assert_eq!(shown["HALYARD_API_KEY_FILE"], "/etc/keys");
        assert_eq!(shown["https_proxy"], "http://…@proxy.example:3128");
    }

    #[test]
    fn files_of_the_system_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A processor @ 3 GHz\nflags\t\t: fpu avx2 fma amx_tile\n";
        assert_eq!(after(cpuinfo, "model name").as_deref(), Some("A processor @ 3 GHz"));
        assert_eq!(features(cpuinfo), ["avx2", "fma", "amx_tile"]);
        assert_eq!(kilobytes("MemTotal:       16 kB\n", "MemTotal"), Some(16 << 10));
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(
            quoted("A=\"b\"\nPRETTY_NAME=\"c d\"\n", "PRETTY_NAME=").as_deref(),
            Some("c d")
        );
    }

    #[test]
    fn this_machine_has_a_report() {
        let report = machine();
        assert!(report.processors > 0 && report.kernel.is_some() && report.memory_bytes.is_some_and(|bytes| bytes > 0));
    }
}
