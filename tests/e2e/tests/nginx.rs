//! The recipe "Behind nginx, with TLS" of docs/recipes.md: the file and the command that stand there are what runs
//! here, with places of this machine in the place of theirs. Skipped, with the reason, where there is no nginx.

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::Authority;
use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, TestFolder, fixture, free_port, installed, stderr};
use rcgen::ExtendedKeyUsagePurpose::ServerAuth;
use serde_json::{Value, json};

/// The recipe's name for the site.
const SITE: &str = "llm.example.org";
const KEY: &str = "behind-nginx-7";
/// Tokens of an answer that streams; far more than come before the first of them is read.
const TOKENS: u64 = 2000;

/// An nginx of this machine.
fn nginx() -> Result<PathBuf, String> {
    let found = installed("HALYARD_NGINX", &["nginx"]);
    found.ok_or_else(|| "no nginx is installed: `tests/setup nginx` fetches it".to_owned())
}

/// The first block of a language in the recipe.
fn block(language: &str) -> String {
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes.md");
    let recipes = std::fs::read_to_string(recipes).expect("the document");
    let (_, recipe) = recipes.split_once("\n## Behind nginx, with TLS\n").expect("the recipe");
    let (_, rest) = recipe.split_once(&format!("```{language}\n")).expect("its block");
    rest.split_once("```").expect("the block's end").0.to_owned()
}

/// `text` with each first part, which it has once, as the second.
fn with(text: &str, places: &[(&str, &str)]) -> String {
    places.iter().fold(text.to_owned(), |text, (old, new)| {
        assert_eq!(
            text.matches(old).count(),
            1,
            "`{old}` stands once in the recipe:\n{text}"
        );
        text.replace(old, new)
    })
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A running nginx with two sites: the recipe's, and the same below a path.
struct Nginx {
    child: Child,
    port: u16,
    below_path_port: u16,
    authority: PathBuf,
}

impl Nginx {
    fn start(program: &Path, folder: &Path, upstream: &str) -> Nginx {
        let authority = Authority::new(folder, "authority");
        let (cert, key) = authority.sign(folder, SITE, ServerAuth);
        let (port, below_path_port) = (free_port(), free_port());
        let recipe = block("nginx");
        let site = |port: u16, places: &[(&str, &str)]| {
            let listen = format!("listen 127.0.0.1:{port} ");
            let own = [
                ("listen 443 ", listen.as_str()),
                ("/etc/ssl/llm.pem", text(&cert)),
                ("/etc/ssl/llm.key", text(&key)),
                ("http://127.0.0.1:8000", upstream),
            ];
            with(&recipe, &[&own[..], places].concat())
        };
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {};\n", text(&folder.join(name))))
            .concat();
        let (file, log) = (folder.join("nginx.conf"), folder.join("error.log"));
        let whole = format!(
            "daemon off;\nworker_processes 1;\npid {pid};\nerror_log {log};\nevents {{}}\nhttp {{\naccess_log \
             off;\n{temporary}{}\n{}\n}}\n",
            site(port, &[]),
            site(below_path_port, &[("location / {", "location /llm/ {")]),
            pid = text(&folder.join("nginx.pid")),
            log = text(&log),
        );
        std::fs::write(&file, whole).expect("written");
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(&file).arg("-e").arg(&log);
        let child = command.stdin(Stdio::null()).spawn().expect("nginx starts");
        let mut nginx = Nginx {
            child,
            port,
            below_path_port,
            authority: authority.file,
        };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = nginx.child.try_wait().expect("a child");
            assert!(
                ended.is_none() && begun.elapsed() < Duration::from_secs(30),
                "nginx: {ended:?}: {:?}",
                std::fs::read_to_string(&log)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        nginx
    }

    /// curl as a client of the recipe's site, with the server's key unless another one is among `args`.
    fn curl(&self, port: u16, args: &[&str]) -> Command {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--no-buffer",
            "--max-time",
            "60",
            "--cacert",
        ]);
        curl.arg(&self.authority);
        curl.args(["--resolve", &format!("{SITE}:{port}:127.0.0.1")]);
        if !args.iter().any(|arg| arg.starts_with("Authorization:")) {
            curl.args(["--header", &format!("Authorization: Bearer {KEY}")]);
        }
        curl.args(args);
        curl
    }

    /// The status of an answer, and its body.
    fn ask(&self, port: u16, path: &str, args: &[&str]) -> (u16, String) {
        let url = format!("https://{SITE}:{port}{path}");
        let output = self
            .curl(port, &[&["--write-out", "\n%{http_code}", &url], args].concat())
            .output()
            .expect("curl is needed for this test");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = said.rsplit_once('\n').expect("a status");
        (status.parse().expect("a number"), body.to_owned())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Killed, it would leave its worker behind.
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
    }
}

/// A streamed answer as curl prints it.
struct Stream {
    curl: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Stream {
    fn open(nginx: &Nginx) -> Stream {
        let body = json!({
            "model": "scripted",
            "messages": [{"role": "user", "content": "Never stop."}],
            "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
            "max_tokens": TOKENS,
            "ignore_eos": true,
        });
        let url = format!("https://{SITE}:{}/v1/chat/completions", nginx.port);
        let sent = ["--json", &body.to_string(), &url];
        let mut curl = nginx
            .curl(nginx.port, &sent)
            .stdout(Stdio::piped())
            .spawn()
            .expect("curl is needed for this test");
        let lines = BufReader::new(curl.stdout.take().expect("piped")).lines();
        Stream { curl, lines }
    }

    /// Reads up to the event at which so many tokens are there.
    fn until(&mut self, tokens: u64) {
        for line in self.lines.by_ref() {
            let line = line.expect("UTF-8");
            let Some(event) = line.strip_prefix("data: ").filter(|data| data.starts_with('{')) else {
                continue;
            };
            let event: Value = serde_json::from_str(event).expect("JSON");
            if event["usage"]["completion_tokens"].as_u64() >= Some(tokens) {
                return;
            }
        }
        panic!("the stream ended before its token {tokens}");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

/// Asks the server itself.
fn direct(server: &Server, method: &str, path: &str) -> String {
    let key = format!("Authorization: Bearer {KEY}");
    let url = format!("{}{path}", server.url);
    let args = [
        "--silent",
        "--show-error",
        "--fail",
        "--max-time",
        "60",
        "--request",
        method,
    ];
    let output: Output = Command::new("curl")
        .args(args)
        .args(["--header", &key, &url])
        .output()
        .expect("curl");
    assert!(output.status.success(), "{path}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn generated(server: &Server) -> u64 {
    let metrics = direct(server, "GET", "/metrics");
    let mut lines = metrics
        .lines()
        .filter(|line| line.starts_with("vllm:generation_tokens_total"));
    let value = lines
        .next()
        .and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.expect("the metric") as u64
}

/// An answer that has begun and stands still far from its end, with its tokens so far.
fn held_stream(server: &Server, nginx: &Nginx) -> (Stream, u64) {
    let mut held = (0..10).filter_map(|_| {
        // What stands still is counted to the last token.
        direct(server, "POST", "/pause?mode=keep");
        let before = generated(server);
        direct(server, "POST", "/resume");
        let mut stream = Stream::open(nginx);
        stream.until(1);
        direct(server, "POST", "/pause?mode=keep");
        let so_far = generated(server) - before;
        if so_far < TOKENS / 2 {
            return Some((stream, so_far));
        }
        // On a busy machine the pause may come behind its end.
        direct(server, "POST", "/resume");
        stream.until(TOKENS);
        None
    });
    held.next().expect("one of ten answers runs when the pause comes")
}

/// The server of the recipe's command, and a name for each flag whose value is another one here.
fn server(model: &ScriptedModel, folder: &Path) -> Server {
    let keys = folder.join("keys");
    std::fs::write(&keys, format!("{KEY}\n")).expect("written");
    let command = with(
        &block(""),
        &[
            ("halyard serve --model org/repo --port 8000 ", ""),
            ("/etc/halyard/keys", text(&keys)),
        ],
    );
    let flags: Vec<&str> = command.split_whitespace().collect();
    Server::scripted(
        model,
        &[&flags[..], &["--root-path", "/llm", "--server-dev-mode"]].concat(),
    )
}

#[test]
fn the_recipe_for_nginx_works_as_it_stands() {
    let program = match nginx() {
        Ok(program) => program,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let folder = TestFolder::new("nginx");
    let endless = "again ".repeat(TOKENS as usize);
    let model = ScriptedModel::with_template_of(&fixture("../"), "qwen3", &[("Never stop.", &endless)]);
    let server = server(&model, &folder.0);
    let nginx = Nginx::start(&program, &folder.0, &server.url);
    let (port, below) = (nginx.port, nginx.below_path_port);

    // Names and versions of HTTP, the key, and a name that is not allowed.
    for flag in ["--http1.1", "--http2"] {
        let (status, body) = nginx.ask(port, "/v1/models", &[flag]);
        assert!(status == 200 && body.contains("scripted"), "{flag}: {status} {body}");
    }
    assert_eq!(
        nginx
            .ask(port, "/v1/models", &["--header", "Authorization: Bearer other"])
            .0,
        401
    );
    assert_eq!(
        nginx
            .ask(port, "/v1/models", &["--header", "Host: other.example.org"])
            .0,
        421
    );

    // Below a path; what is above it is not the server's.
    assert_eq!(nginx.ask(below, "/llm/v1/models", &[]).0, 200);
    assert_eq!(nginx.ask(below, "/v1/models", &[]).0, 404);

    // Bodies: more than nginx takes without the recipe's line, and more than the server takes.
    for (mib, expected) in [(4, 200), (17, 413)] {
        let file = folder.0.join("body.json");
        let prompt = json!({"model": "scripted", "prompt": "Never stop.", "max_tokens": 1}).to_string();
        std::fs::write(&file, prompt + &" ".repeat(mib << 20)).expect("written");
        let sent = ["--header", "Content-Type: application/json", "--data-binary"];
        let from = format!("@{}", text(&file));
        let (status, body) = nginx.ask(port, "/v1/completions", &[&sent[..], &[&from]].concat());
        assert_eq!(status, expected, "{mib} MiB: {body}");
    }

    // Everything that is generated comes through at once: the engine stands still, and its last token is there.
    let (mut stream, so_far) = held_stream(&server, &nginx);
    stream.until(so_far);
    direct(&server, "POST", "/resume");
    stream.until(TOKENS);
    drop(stream);

    // A client that leaves ends its request.
    drop(held_stream(&server, &nginx));
    let lines = server.until_logged("client_left=true", 1);
    assert!(
        lines[0].contains("/v1/chat/completions") && lines[0].contains("client=127.0.0.1"),
        "{lines:?}"
    );

    // What a client says of its address is not believed.
    nginx.ask(
        port,
        "/v1/models",
        &[
            "--header",
            "X-Forwarded-For: 203.0.113.9",
            "--header",
            "X-Request-Id: forged",
        ],
    );
    let lines = server.until_logged("id=forged", 1);
    assert!(
        lines[0].contains("client=127.0.0.1") && !lines[0].contains("203.0.113.9"),
        "{lines:?}"
    );

    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(nginx.ask(port, "/v1/models", &[]).0, 502, "while the server is down");
}
