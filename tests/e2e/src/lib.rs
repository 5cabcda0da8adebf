//! Starts the real `halyard` binary as an operator would, with platforms loaded from their `.so`. Links nothing of
//! Halyard: what these tests see is what a user sees.

pub mod clients;
pub mod scripted;

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The binary, built first, with the platforms in its folder.
///
/// # Panics
/// When the build fails.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        let folder = test.ancestors().nth(2).expect("tests stand in PROFILE/deps");
        let packages = [
            "halyard",
            "halyard-hub",
            "halyard-backend-cpu",
            "halyard-backend-reference",
            "halyard-stat-logger-json-lines",
        ];
        build_into(folder, &packages);
        folder.join("halyard")
    })
}

/// Builds more packages into the binary's folder, such as hook plugins.
///
/// # Panics
/// When they do not build.
pub fn build_with_binary(packages: &[&str]) {
    build_into(binary().parent().expect("a folder"), packages);
}

/// Builds packages in the profile of a folder, `TARGET/PROFILE`. Tests that were started without cargo take what is
/// there, and so do those of tests/run: it has built the workspace, and a few packages by themselves are compiled with
/// other features, dependencies included.
fn build_into(folder: &Path, packages: &[&str]) {
    let built = std::env::var_os("HALYARD_TEST_BUILT").is_some();
    let Some(cargo) = std::env::var_os("CARGO").filter(|_| !built) else {
        return;
    };
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet"]);
    for package in packages {
        build.args(["-p", package]);
    }
    build
        .arg("--target-dir")
        .arg(folder.parent().expect("a target folder"))
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "building {packages:?} failed");
}

/// A program of this machine: the one that a variable names, else the first of these names on the path.
pub fn installed(variable: &str, names: &[&str]) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(variable) {
        return Some(PathBuf::from(named));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        // Where Debian puts servers, which is not on everyone's path.
        .chain([PathBuf::from("/usr/sbin")])
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)).collect::<Vec<_>>())
        .find(|file| file.is_file())
}

/// Ports that the system gives to nobody who asks for any: Linux takes those from 32768 on.
const PORTS: Range<u16> = 10_000..32_000;

/// A port that nobody has on any address of this machine, and that is given once: who gets it may bind it later.
///
/// # Panics
/// When all are taken.
pub fn free_port() -> u16 {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    // Programs of tests that run at the same time begin at other ones.
    let first = std::process::id() as usize * 500;
    let next = |_| PORTS.start + ((first + GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len()) as u16;
    let is_free = |port: &u16| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok();
    PORTS.map(next).find(is_free).expect("a free port")
}

/// The library of a platform, in the binary's folder.
pub fn library(name: &str) -> PathBuf {
    binary().with_file_name(format!("libhalyard_{name}.so"))
}

/// Builds a C file of the repository as a plugin, `folder/libNAME.so`.
///
/// # Panics
/// With the compiler's words.
pub fn build_c(source: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let source = root.join(source);
    let name = source
        .file_stem()
        .expect("a file's name")
        .to_string_lossy()
        .into_owned();
    let library = folder.join(format!("lib{name}.so"));
    let mut command = Command::new("cc");
    command.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]);
    command
        .arg("-I")
        .arg(root.join("platform-api/include"))
        .arg(source)
        .arg("-o")
        .arg(&library);
    let output = command.output().expect("cc is needed for this test");
    assert!(output.status.success(), "{}", stderr(&output));
    library
}

/// Runs a build tool in a new project's folder, where nothing of this repository is known to it.
///
/// # Panics
/// With the tool's words.
pub fn build_project(folder: &Path, program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder);
    for name in ["CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    let output = command.output().expect("the tool is there");
    assert!(output.status.success(), "{program}: {}", stderr(&output));
}

/// A model of tests/fixtures/models.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/models")
        .join(name)
}

/// Deadlines that a busy machine may miss: a plugin or a collector that is late would fail a test of something else.
/// A test of a deadline sets its flag, which counts before the variable.
const LONG_MS: [&str; 5] = [
    "HALYARD_STAT_LOGGER_DEADLINE_MS",
    "HALYARD_IO_PROCESSOR_TIMEOUT_MS",
    "HALYARD_LOGITS_PROCESSOR_TIMEOUT_MS",
    "HALYARD_TEST_DEADLINE_MS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];

/// The binary with `args`, in an environment that has none of the caller's settings.
pub fn halyard(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| {
        ["HALYARD_", "HF_", "OTEL_"]
            .iter()
            .any(|start| name.to_string_lossy().starts_with(start))
    }) {
        command.env_remove(name);
    }
    command.envs(LONG_MS.map(|name| (name, "60000")));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
///
/// # Panics
/// When it cannot be started.
pub fn run(args: &[&str]) -> Output {
    halyard(args).output().expect("the binary starts")
}

/// What a command wrote to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running `halyard serve` on a free port; killed when dropped.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub url: String,
    log: Log,
}

/// What a server writes to standard error, as it comes.
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    reading: Option<JoinHandle<()>>,
}

impl Log {
    fn of(mut errors: impl Read + Send + 'static) -> Log {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reading = std::thread::spawn(move || {
            let mut part = [0; 8192];
            while let Ok(count @ 1..) = errors.read(&mut part) {
                let mut text = shared.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend_from_slice(&part[..count]);
            }
        });
        Log {
            text,
            reading: Some(reading),
        }
    }

    fn so_far(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The whole, when the server has ended.
    fn whole(&mut self) -> String {
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
        self.so_far()
    }
}

/// How long a line of the log may take to come, on a busy machine too.
const LOGGED_WITHIN: Duration = Duration::from_secs(60);

impl Server {
    /// Serves a tiny model of the fixtures on the CPU platform.
    pub fn tiny(args: &[&str]) -> Server {
        let model = fixture("llama");
        let model = model.to_str().expect("a UTF-8 path");
        let base = [
            "--platform",
            "cpu",
            "--model",
            model,
            "--served-model-name",
            "tiny",
            "--kv-cache-memory-bytes",
            "16MiB",
        ];
        Server::start(&mut halyard(&[&["serve", "--port", "0"], &base[..], args].concat()))
    }

    /// A server of a model whose words are written down, by the platform `script`.
    pub fn scripted(model: &scripted::ScriptedModel, args: &[&str]) -> Server {
        build_with_binary(&["halyard-backend-script"]);
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let option = |name: &str, path: &Path| format!("{name}={}", text(path));
        let folder = text(model.folder());
        let script = option("script", &model.script());
        let tokenizer = option("tokenizer", &model.tokenizer());
        let base = [
            "serve",
            "--port",
            "0",
            "--platform",
            "script",
            "--platform-option",
            &script,
            "--platform-option",
            &tokenizer,
            "--model",
            &folder,
            "--load-format",
            "dummy",
            "--served-model-name",
            "scripted",
            "--kv-cache-memory-bytes",
            "16MiB",
        ];
        Server::start(&mut halyard(&[&base[..], args].concat()))
    }

    /// Starts a `serve` command and waits until it says that it is ready.
    ///
    /// # Panics
    /// With the log, when it ends before.
    pub fn start(command: &mut Command) -> Server {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut log = Log::of(child.stderr.take().expect("piped"));
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let ready = line.trim_start().strip_prefix("ready")?.trim_start().to_owned();
            Some(ready.split_whitespace().next()?.to_owned())
        });
        // The rest of the banner is read away, so that the pipe never fills.
        std::thread::spawn(move || lines.for_each(drop));
        match url {
            Some(url) => Server { child, url, log },
            None => {
                let _ = child.wait();
                panic!("the server ended before it was ready:\n{}", log.whole());
            }
        }
    }

    /// Sends a signal by name.
    ///
    /// # Panics
    /// When `kill` cannot be run.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill runs").success());
    }

    /// The system's number of the server.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end; the exit status and the log.
    ///
    /// # Panics
    /// When the system loses the process.
    pub fn wait(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("a child");
        (status.code(), self.log.whole())
    }

    /// Waits until the log has these words in so many lines; the lines.
    ///
    /// # Panics
    /// With the log, when they do not come.
    pub fn until_logged(&self, words: &str, lines: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let log = self.log.so_far();
            // A line that is not whole yet is none.
            let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let found: Vec<String> = whole.filter(|line| line.contains(words)).map(str::to_owned).collect();
            if found.len() >= lines {
                return found;
            }
            assert!(
                begun.elapsed() < LOGGED_WITHIN,
                "`{words}` is in {} lines, not {lines}:\n{log}",
                found.len()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that goes when dropped.
pub struct TestFolder(pub PathBuf);

impl TestFolder {
    /// A fresh folder.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(name: &str) -> TestFolder {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("halyard-e2e-{name}-{process}-{number}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        TestFolder(folder)
    }

    /// A copy of a fixture folder's files.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn with_model(name: &str, model: &str) -> TestFolder {
        let folder = TestFolder::new(name);
        for entry in std::fs::read_dir(fixture(model)).expect("the fixture").flatten() {
            std::fs::copy(entry.path(), folder.0.join(entry.file_name())).expect("copies");
        }
        folder
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
