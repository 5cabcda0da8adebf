//! Hostile chat templates, in the process in which the server renders them: those that once ended or hung a server, and
//! random ones. Each must end in an answer or an error, and the next prompt must be rendered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use halyard_models::SplitMix64;
use halyard_server::low_priority;
use halyard_server::templates::{TemplateLimits, TemplateProcesses};
use halyard_text::{CancelFlag, ChatInput, ChatTemplate, SpecialTokens, TemplateHost, TextError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn host() -> Arc<dyn TemplateHost> {
    let limits = TemplateLimits {
        cpu: Duration::from_millis(100),
        memory_mib: 256,
        // Only for a hang, which would be a fault.
        deadline: Duration::from_secs(120),
    };
    Arc::new(TemplateProcesses::new(
        PathBuf::from(env!("CARGO_BIN_EXE_halyard")),
        limits,
    ))
}

/// With time for a template that runs out of memory.
fn roomy() -> Arc<dyn TemplateHost> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_halyard"));
    let limits = TemplateLimits {
        cpu: Duration::from_secs(60),
        memory_mib: 256,
        ..TemplateLimits::default()
    };
    Arc::new(TemplateProcesses::new(program, limits))
}

/// With the limits of a server, for what is to be rendered.
fn ordinary() -> Arc<dyn TemplateHost> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_halyard"));
    Arc::new(TemplateProcesses::new(program, TemplateLimits::default()))
}

fn open(host: &Arc<dyn TemplateHost>, source: &str) -> Result<ChatTemplate, TextError> {
    ChatTemplate::on(Arc::clone(host), source, &SpecialTokens::default())
}

fn render(template: &ChatTemplate, content: &str) -> Result<String, TextError> {
    let messages = [json!({"role": "user", "content": content})];
    template.render(&ChatInput {
        messages: &messages,
        ..ChatInput::default()
    })
}

/// A template that behaves until a message says otherwise, as one would that is to be found out late.
fn late(hostile: &str) -> String {
    format!("{{% if messages[0].content == 'now' %}}{hostile}{{% else %}}{{{{ messages[0].content }}}}{{% endif %}}")
}

/// The outcome of a hostile template for a prompt.
fn outcome(host: &Arc<dyn TemplateHost>, hostile: &str) -> Result<String, TextError> {
    let template = open(host, &late(hostile))?;
    let result = render(&template, "now");
    // The next prompt is rendered as usual; a busy system may charge it for more processor time than it took.
    let is_over_cpu = |error: &TextError| error.to_string().contains("processor time");
    let mut tries = (0..3).map(|_| render(&template, "hello"));
    let next = tries.find(|next| !next.as_ref().is_err_and(is_over_cpu));
    assert_eq!(next.expect("not three times").expect("renders"), "hello");
    result
}

/// The cases of the review of November 2026 (F2), all of which ended or hung the server.
fn cases() -> Vec<(&'static str, String)> {
    let looped = |times: usize, body: &str, after: &str| {
        format!("{{% set ns = namespace(x=[]) %}}{{% for i in range({times}) %}}{body}{{% endfor %}}{after}")
    };
    let nest = "{% set ns.x = [ns.x] %}";
    let chain = |open: &str, link: &str, count: usize, end: &str| format!("{open}{}{end}", link.repeat(count));
    vec![
        ("not chain", chain("{{ ", "not ", 200_000, "1 }}")),
        ("minus chain", chain("{{ ", "-", 200_000, "1 }}")),
        ("filter chain", chain("{{ 1", "|string", 100_000, " }}")),
        ("attribute chain", chain("{{ a", ".a", 100_000, " }}")),
        ("concatenation chain", chain("{{ ", "'a'~", 100_000, "'a' }}")),
        ("sum chain", chain("{{ ", "1+", 100_000, "1 }}")),
        (
            "cyclic namespaces compared",
            "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = a %}{% set b.x = b %}{{ a == b }}"
                .to_owned(),
        ),
        ("nested list printed", looped(90_000, nest, "{{ ns.x }}")),
        ("nested list as JSON", looped(90_000, nest, "{{ ns.x|tojson }}")),
        (
            "nested lists compared",
            looped(
                90_000,
                "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}",
                "{{ ns.x == ns.y }}",
            ),
        ),
        ("nested list dropped", looped(90_000, nest, "")),
        (
            "doubled list",
            looped(64, "{% set ns.x = (ns.x + [i]) * 2 %}", "{{ ns.x|list|length }}"),
        ),
        (
            "replace bomb",
            "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(16) %}{% set ns.x = ns.x|replace('a', \
             'aaaaaaaaaaaaaaaa') %}{% endfor %}{{ ns.x|length }}"
                .to_owned(),
        ),
        ("slice", "{{ [1,2]|slice(1000000000) }}".to_owned()),
        ("batch", "{{ [1]|batch(1000000000,'x') }}".to_owned()),
        ("join", "{{ range(100000)|join('a'*100000) }}".to_owned()),
        ("count of nothing", "{{ 'abc'.count('') }}".to_owned()),
        ("indent", "{{ 'a\\nb'|indent(2000000000) }}".to_owned()),
        (
            "doubled string",
            "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ \
             ns.x|length }}"
                .to_owned(),
        ),
        (
            "searched list",
            "{% set l = range(100000)|list %}{% for i in range(100000) %}{{ -1 in l }}{% endfor %}".to_owned(),
        ),
        (
            "upper case of a long string",
            "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% set t = s|upper %}{% endfor %}".to_owned(),
        ),
        (
            "search in a long string",
            "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}".to_owned(),
        ),
        (
            "nested loops",
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".to_owned(),
        ),
        ("30 MB of text", "x".repeat(30 << 20)),
    ]
}

#[test]
fn the_cases_of_the_review_end_in_an_answer_or_an_error() {
    let host = host();
    let cases = cases();
    assert_eq!(cases.len(), 24);
    for (name, hostile) in cases {
        let start = Instant::now();
        let outcome_text = match outcome(&host, &hostile) {
            Ok(text) => format!("{} bytes", text.len()),
            Err(error @ (TextError::TemplateBound { .. } | TextError::TemplateRender { .. })) => error.to_string(),
            Err(error) => panic!("{name}: {error:?}"),
        };
        println!("{name}: {outcome_text} ({:.2} s)", start.elapsed().as_secs_f64());
    }
}

#[test]
fn a_template_that_is_hostile_from_the_start_is_refused_when_it_is_opened() {
    let host = host();
    for (name, hostile) in cases() {
        match open(&host, &hostile) {
            Ok(template) => drop(render(&template, "hello")),
            Err(TextError::TemplateBound { .. } | TextError::TemplateSyntax { .. }) => {}
            Err(error) => panic!("{name}: {error:?}"),
        }
    }
    let error = open(
        &roomy(),
        "{{ 'a' * 90000000 ~ 'a' * 90000000 ~ 'a' * 90000000 ~ 'a' * 90000000 }}",
    )
    .expect_err("too much");
    assert!(error.to_string().contains("256 MiB of memory"), "{error}");
}

/// Templates at random.
struct Random(SplitMix64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    fn number(&mut self) -> String {
        let of = [
            "0",
            "1",
            "2",
            "-1",
            "7",
            "100",
            "9999",
            "100000",
            "99999999",
            "9223372036854775807",
        ];
        self.of(&of).to_owned()
    }

    /// An expression that grows, nests or takes long.
    fn expression(&mut self, depth: usize) -> String {
        if depth == 0 {
            return match self.below(6) {
                0 => self.number(),
                1 => self
                    .of(&[
                        "'a'",
                        "''",
                        "'a\\n'",
                        "'\\u00e9'",
                        "none",
                        "true",
                        "messages",
                        "undefined_name",
                    ])
                    .to_owned(),
                _ => self.of(&["s", "l", "m", "ns.x", "ns.s"]).to_owned(),
            };
        }
        let inner = self.expression(depth - 1);
        let other = self.expression(depth / 2);
        let number = self.number();
        match self.below(12) {
            0 => format!("({inner} ~ {other})"),
            1 => format!("({inner} + {other})"),
            2 => format!("({inner} * {number})"),
            3 => format!(
                "({inner} {} {other})",
                self.of(&["in", "==", "<", "and", "or", "not in", "//", "%", "**", "-"])
            ),
            4 => {
                let filter = self.of(&[
                    "upper",
                    "list",
                    "string",
                    "tojson",
                    "tojson(indent=2)",
                    "length",
                    "sort",
                    "unique",
                    "reverse",
                    "title",
                    "trim",
                    "items",
                    "join(s)",
                    "first",
                    "last",
                    "max",
                    "sum",
                    "map('string')|list",
                    "select|list",
                    "groupby('a')",
                    "escape",
                    "urlencode",
                    "int",
                    "float",
                    "abs",
                    "round(300)",
                    "dictsort",
                    "pprint",
                    "bool",
                    "split('')",
                    "lines",
                ]);
                format!("({inner}|{filter})")
            }
            5 => {
                let filter = self.of(&["batch", "slice", "indent", "truncate", "round", "center", "default"]);
                format!("({inner}|{filter}({number}))")
            }
            6 => format!("({inner}|replace({other}, s))"),
            7 => {
                let method = self.of(&[
                    "count('')",
                    "split('')",
                    "split()",
                    "upper()",
                    "replace('a', 'aaaaaaaa')",
                    "join(l)",
                    "format(1)",
                    "strip()",
                    "splitlines()",
                    "find('')",
                    "items()",
                    "keys()",
                    "title()",
                    "rsplit('a')",
                    "partition('')",
                    "removeprefix('')",
                    "startswith('')",
                    "get('a')",
                    "index('')",
                    "encode()",
                ]);
                format!("({inner}).{method}")
            }
            8 => format!("[{inner}, {other}, {inner}]"),
            9 => format!("{{'a': {inner}, 'b': {other}}}"),
            10 => format!("({inner})[{number}:{number}]"),
            _ => format!("range({number})|list"),
        }
    }

    fn template(&mut self) -> String {
        let mut text = String::from(
            "{% set s = 'a\\n' * 1000 %}{% set l = range(1000)|list %}{% set m = {'a': s, 'b': l} %}{% set ns = \
             namespace(x=[], s='ab') %}",
        );
        for _ in 0..1 + self.below(3) {
            let depth = 1 + self.below(4);
            let value = self.expression(depth);
            let times = self.of(&["3", "40", "1000", "100000"]).to_owned();
            text.push_str(&match self.below(8) {
                0 => format!("{{{{ {value} }}}}"),
                1 => format!(
                    "{{% for i in range({times}) %}}{{% set ns.x = [ns.x, {value}] %}}{{% endfor %}}{{{{ \
                    ns.x }}}}"
                ),
                2 => format!(
                    "{{% for i in range({times}) %}}{{% set ns.s = ns.s ~ ns.s %}}{{% endfor %}}{{{{ {value} \
                    }}}}"
                ),
                3 => format!("{{% macro f(x) %}}{{{{ f([x, {value}]) }}}}{{% endmacro %}}{{{{ f(1) }}}}"),
                4 => format!("{{% set ns.x = ns %}}{{{{ {value} }}}}{{{{ ns.x == ns }}}}"),
                5 => format!(
                    "{{% for a in l %}}{{% for b in l %}}{{% for c in l %}}{{% if {value} %}}{{% endif \
                    %}}{{% endfor %}}{{% endfor %}}{{% endfor %}}"
                ),
                6 => format!(
                    "{{% set big %}}{{% for i in range({times}) %}}{{{{ {value} }}}}{{% endfor %}}{{% endset \
                    %}}{{{{ big|length }}}}"
                ),
                _ => {
                    let link = self.of(&["not ", "-", "(", "[", "1+", "'a'~", "{'a':"]).to_owned();
                    format!(
                        "{{{{ {}{value} }}}}",
                        link.repeat([10, 140, 3000, 50_000][self.below(4)])
                    )
                }
            });
        }
        text
    }
}

#[test]
fn random_hostile_templates_end_in_an_answer_or_an_error() {
    let host = host();
    let mut random = Random(SplitMix64(0x2545_F491_4F6C_DD1D));
    let (mut texts, mut refused, mut bounds) = (0, 0, 0);
    for round in 0..500 {
        let template = random.template();
        match outcome(&host, &template) {
            Ok(_) => texts += 1,
            Err(TextError::TemplateBound { .. }) => bounds += 1,
            Err(TextError::TemplateRender { .. } | TextError::TemplateSyntax { .. }) => refused += 1,
            Err(error) => panic!("{round}: {error:?}\n{template}"),
        }
    }
    println!("{texts} rendered, {refused} failed, {bounds} stopped at a bound");
    assert!(
        texts > 20 && refused > 50 && bounds > 50,
        "{texts} {refused} {bounds}: not that hostile"
    );
}

#[test]
fn many_prompts_at_once_have_their_own_answers() {
    let host = ordinary();
    let template = open(&host, &late("{{ 1 }}")).expect("compiles");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let template = &template;
            scope.spawn(move || {
                for index in 0..50 {
                    let content = format!("{thread} {index} {}", "x".repeat(index * 3000));
                    assert_eq!(render(template, &content).expect("renders"), content);
                }
            });
        }
    });
}

#[test]
fn a_process_renders_what_this_one_renders() {
    let host = ordinary();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/text/tests/golden/chat.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON");
    let special = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    };
    let mut compared = 0;
    for template in golden["templates"].as_array().expect("templates") {
        let source = template["source"].as_str().expect("a source");
        let here = ChatTemplate::new(source, &special).expect("parses");
        let there = ChatTemplate::on(Arc::clone(&host), source, &special).expect("parses");
        assert_eq!(here.reads_parts(), there.reads_parts());
        for case in template["cases"].as_array().expect("cases") {
            let input = ChatInput {
                messages: case["messages"].as_array().expect("messages"),
                tools: case.get("tools").filter(|tools| !tools.is_null()),
                add_generation_prompt: case["add_generation_prompt"] == true,
                extra: case["extra"].as_object(),
                ..ChatInput::default()
            };
            let in_words = |result: Result<String, TextError>| result.map_err(|error| error.to_string());
            assert_eq!(
                in_words(there.render(&input)),
                in_words(here.render(&input)),
                "{}",
                case["name"]
            );
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
    let error = open(&host, "{% if %}").expect_err("no template");
    assert!(matches!(error, TextError::TemplateSyntax { .. }), "{error:?}");
}

#[test]
fn a_process_of_low_priority_is_not_kept() {
    let (processes, template) = kept_process(339);
    let low = Arc::clone(&template);
    let low = std::thread::spawn(move || {
        low_priority::take().expect("allowed");
        render(&low, "large").expect("renders")
    });
    assert_eq!(low.join().expect("no panic"), "large");
    assert_eq!(processes.kept(), 1, "the one that others use was left to them");
    assert_eq!(render(&template, "small").expect("renders"), "small");
    assert_eq!(processes.kept(), 1);
}

#[test]
fn a_prompt_whose_process_is_killed_from_outside_gets_another_one_once() {
    let memory_mib = 337;
    let (processes, template) = kept_process(memory_mib);
    // Stops the process that is kept, hands it a prompt and kills it.
    let kill = || {
        let pid = stopped_process(memory_mib);
        let template = Arc::clone(&template);
        let rendering = std::thread::spawn(move || render(&template, "hello"));
        until(|| processes.kept() == 0);
        kill_process(pid, Signal::KILL).expect("a process");
        rendering
    };
    assert_eq!(kill().join().expect("no panic").expect("renders"), "hello");
    // The next one is killed too, as soon as it is there.
    let rendering = kill();
    until(|| {
        processes.kept() == 1 || rendering.is_finished() || {
            if let Some(pid) = find_template_process(memory_mib) {
                // It may be gone by now.
                let _ = kill_process(pid, Signal::KILL);
            }
            false
        }
    });
    match rendering.join().expect("no panic") {
        Err(TextError::TemplateUnavailable { reason }) => assert!(reason.contains("killed"), "{reason}"),
        // It was quicker than this test.
        Ok(text) => assert_eq!(text, "hello"),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn a_prompt_that_is_given_up_ends_its_process() {
    let memory_mib = 338;
    let (processes, template) = kept_process(memory_mib);
    stopped_process(memory_mib);
    let cancel = CancelFlag::default();
    let rendering = std::thread::spawn({
        let (template, cancel) = (Arc::clone(&template), cancel.clone());
        move || {
            template.render(&ChatInput {
                messages: &[json!({"role": "user", "content": "hello"})],
                cancel: Some(&cancel),
                ..ChatInput::default()
            })
        }
    });
    until(|| processes.kept() == 0);
    assert!(!rendering.is_finished());
    cancel.cancel();
    let result = rendering.join().expect("no panic");
    assert!(matches!(result, Err(TextError::Cancelled)), "{result:?}");
    assert_eq!(find_template_process(memory_mib), None);
    assert_eq!(render(&template, "next").expect("renders"), "next");
}

/// Processes of which one is kept, and its template. `memory_mib`: a limit that no other test has, by which the process
/// is found.
fn kept_process(memory_mib: u64) -> (Arc<TemplateProcesses>, Arc<ChatTemplate>) {
    let limits = TemplateLimits {
        memory_mib,
        // Only for a hang, which would be a fault.
        deadline: Duration::from_secs(120),
        ..TemplateLimits::default()
    };
    let program = PathBuf::from(env!("CARGO_BIN_EXE_halyard"));
    let processes = Arc::new(TemplateProcesses::new(program, limits));
    let host: Arc<dyn TemplateHost> = processes.clone();
    let template = open(&host, "{{ messages[0].content }}").expect("a template");
    assert_eq!(processes.kept(), 1);
    (processes, Arc::new(template))
}

fn until(is_so: impl Fn() -> bool) {
    let late = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < late, "not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops the process with this limit of memory.
fn stopped_process(memory_mib: u64) -> Pid {
    let pid = find_template_process(memory_mib).expect("a template process");
    kill_process(pid, Signal::STOP).expect("a process");
    // Its threads stop one after the other.
    let is_stopped = |task: std::fs::DirEntry| stat_field(&task.path(), 0).as_deref() == Some("T");
    until(|| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
        tasks.expect("a process").flatten().all(is_stopped)
    });
    pid
}

/// A field of `stat` behind the name (proc(5)): 0 is the state, 1 the parent. `None`: the thread or process has gone.
fn stat_field(of: &Path, field: usize) -> Option<String> {
    let stat = std::fs::read_to_string(of.join("stat")).ok()?;
    // The name may hold anything, up to the last parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(field).map(str::to_owned)
}

/// The living process of this one with this limit of memory.
fn find_template_process(memory_mib: u64) -> Option<Pid> {
    let end = format!("\0{memory_mib}\0");
    let own = std::process::id().to_string();
    let is_it = |id: &i32| {
        let process = PathBuf::from(format!("/proc/{id}"));
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        stat_field(&process, 1).as_ref() == Some(&own) && line.ends_with(end.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(is_it).and_then(Pid::from_raw)
}

#[test]
fn a_program_that_is_none_is_told() {
    let host: Arc<dyn TemplateHost> = Arc::new(TemplateProcesses::new(
        PathBuf::from("/nonexistent"),
        TemplateLimits::default(),
    ));
    let error = open(&host, "x").expect_err("no program");
    assert!(matches!(error, TextError::TemplateUnavailable { .. }), "{error:?}");
    let host: Arc<dyn TemplateHost> = Arc::new(TemplateProcesses::new(
        PathBuf::from("/bin/false"),
        TemplateLimits::default(),
    ));
    let error = open(&host, "x").expect_err("a program that ends").to_string();
    assert!(
        error.contains("exited with status 1") || error.contains("Broken pipe"),
        "{error}"
    );
}
