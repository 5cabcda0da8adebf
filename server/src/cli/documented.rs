//! The documents agree with the program: every `halyard` line in them parses, docs/flags.md is written from the flags,
//! docs/routes.md names every route, and docs/from-llama-cpp.md every flag of llama.cpp's server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command, CommandFactory, Parser};

use super::{Cli, command_line};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README and the pages of docs/ and docs/backends/, with their paths.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = [root().join("docs"), root().join("docs/backends")];
    let files = folders.iter().flat_map(|folder| {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path())
    });
    let mut pages: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.push(root().join("README.md"));
    pages.sort();
    let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).expect("text"));
    pages.into_iter().map(read).collect()
}

/// The lines of blocks without a language or with a shell's, those that end in `\` joined with the next.
fn shell_lines(page: &str) -> Vec<String> {
    let (mut lines, mut language, mut joined) = (Vec::new(), None, String::new());
    for line in page.lines() {
        if let Some(name) = line.trim_start().strip_prefix("```") {
            language = match language {
                None => Some(name.trim().to_owned()),
                Some(_) => None,
            };
            continue;
        }
        if !language
            .as_deref()
            .is_some_and(|name| ["", "sh", "bash", "console"].contains(&name))
        {
            continue;
        }
        joined.push_str(line);
        if joined.ends_with('\\') {
            joined.pop();
            continue;
        }
        lines.push(std::mem::take(&mut joined));
    }
    lines
}

/// The words of each command of a line, as a shell reads them: quotes hold words together, `#` begins a comment.
/// Quotes that end on a later line take the rest.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut quote): (Option<String>, Option<char>) = (None, None);
    for c in line.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == '#' && word.is_none() => break,
            None if "|&;><".contains(c) => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
                // What follows a redirection is a file.
                if c == '>' || c == '<' {
                    words.push(String::from("file"));
                }
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    commands.push(words);
    commands
}

/// The arguments of a command that starts the program, its own name first.
fn of_halyard(words: &[String]) -> Option<Vec<String>> {
    let is_variable = |word: &&String| {
        word.split_once('=').is_some_and(|(name, _)| {
            let mut letters = name.chars();
            letters.next().is_some_and(|c| c.is_ascii_uppercase())
                && letters.all(|c| c.is_ascii_uppercase() || c == '_')
        })
    };
    let mut words = words.iter().skip_while(is_variable);
    let program = words.next()?;
    let rest: Vec<String> = words.cloned().collect();
    match program.as_str() {
        "halyard" | "target/release/halyard" => Some([vec!["halyard".into()], rest].concat()),
        "server/run" => Some([vec!["halyard".into(), "serve".into()], rest].concat()),
        _ => None,
    }
}

fn parses(words: &[String]) -> Result<(), String> {
    let mut root = Cli::command();
    root.build();
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    let line = command_line::read(args, &root).map_err(|e| e.to_string())?;
    match Cli::try_parse_from(&line.args) {
        Ok(_) => Ok(()),
        Err(e) if !e.use_stderr() => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn commands_in_documents_parse() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, page) in pages() {
        for line in shell_lines(&page) {
            for words in commands(&line) {
                let Some(words) = of_halyard(&words) else { continue };
                checked += 1;
                if let Err(why) = parses(&words) {
                    wrong.push(format!("{}: {line}\n    {why}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 40, "{checked} commands were found");
}

#[test]
fn lines_are_read_as_a_shell_does() {
    let line = "A=1 halyard serve --model 'a b' # why\\";
    assert_eq!(commands(line), [["A=1", "halyard", "serve", "--model", "a b"]]);
    assert_eq!(
        commands("a && b | c")[2..],
        [vec!["b".to_owned()], vec!["c".to_owned()]]
    );
    let words = |line: &str| of_halyard(&commands(line)[0]);
    assert_eq!(words("A=1 halyard x").expect("ours"), ["halyard", "x"]);
    assert_eq!(words("server/run -q").expect("ours"), ["halyard", "serve", "-q"]);
    assert!(words("curl halyard").is_none());
    assert!(parses(&["halyard", "serve", "--modell", "x"].map(str::to_owned)).is_err());
}

const PREFACE: &str = "# Flags

Written by a test from the program's own flags (`HALYARD_BLESS=1 cargo test -p halyard --lib documented`).
`halyard COMMAND --help` prints the same. A flag on the command line goes before its variable, and that before the
default. vLLM's flags one by one: [the table](vllm-flags.md).
";

fn flags_page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = PREFACE.to_owned();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        section(command, "halyard", &mut page);
    }
    page
}

fn section(command: &Command, parent: &str, page: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    page.push_str(&format!(
        "\n## {name}\n\n{}",
        wrapped(&format!("{}.", about.trim_end_matches('.')))
    ));
    let flags: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
        .collect();
    let mut headings: Vec<&str> = Vec::new();
    for arg in &flags {
        let heading = arg.get_help_heading().unwrap_or("");
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        if !heading.is_empty() {
            page.push_str(&format!("\n### {heading}, of {name}\n"));
        }
        page.push_str("\n| flag | variable | default | |\n|---|---|---|---|\n");
        let own = flags
            .iter()
            .filter(|arg| arg.get_help_heading().unwrap_or("") == heading);
        own.for_each(|arg| page.push_str(&row(arg)));
    }
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        section(child, &name, page);
    }
}

/// A paragraph in lines of at most 120 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("one at least");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 120 {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn row(arg: &Arg) -> String {
    let values = || {
        let names = arg.get_value_names().unwrap_or_default().iter();
        names.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let mut spelling = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => String::new(),
    };
    if takes_value {
        let space = if spelling.is_empty() { "" } else { " " };
        spelling = format!("{spelling}{space}{}", values());
    }
    let variable = arg
        .get_env()
        .map(|name| format!("`{}`", name.to_string_lossy()))
        .unwrap_or_default();
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let default = match takes_value {
        true => defaults.map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" "),
        false => String::new(),
    };
    let help = arg
        .get_long_help()
        .or(arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let cell = |text: &str| text.replace('|', "\\|");
    let plain = cell(&help).replace('<', "&lt;").replace('[', "\\[");
    format!(
        "| `{}` | {variable} | {} | {plain} |\n",
        cell(&spelling),
        cell(&default)
    )
}

#[test]
fn the_page_of_flags_is_the_program_s() {
    let path = root().join("docs/flags.md");
    if std::env::var_os("HALYARD_BLESS").is_some() {
        std::fs::write(&path, flags_page()).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == flags_page(),
        "docs/flags.md is not what the flags say; write it anew: HALYARD_BLESS=1 cargo test -p halyard --lib \
         documented"
    );
}

#[test]
fn the_page_of_routes_names_them_all() {
    let page = std::fs::read_to_string(root().join("docs/routes.md")).expect("the page");
    let source = include_str!("../http/routes.rs");
    let given = source.split(".route(").skip(1).filter_map(|rest| {
        let rest = rest.trim_start().strip_prefix('"')?;
        rest.split_once('"').map(|(path, _)| path)
    });
    let routes: Vec<&str> = given
        .chain(crate::openai::apis::APIS.into_iter().map(|api| api.path))
        .collect();
    assert!(routes.len() > 30, "{routes:?}");
    let missing: Vec<&&str> = routes
        .iter()
        .filter(|path| !page.contains(&format!("`{path}`")))
        .collect();
    assert!(missing.is_empty(), "docs/routes.md lacks {missing:?}");
}

/// Words in backticks that begin with a dash, up to the first space.
fn quoted_flags(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let words = quoted.filter_map(|code| code.split(' ').next());
    words.filter(|word| word.starts_with('-'))
}

#[test]
fn the_page_for_llama_cpp_names_every_flag_of_its_server() {
    const LIST: &str = include_str!("../../tests/data/llama-server-flags.txt");
    let page = std::fs::read_to_string(root().join("docs/from-llama-cpp.md")).expect("the page");
    let theirs: Vec<&str> = LIST
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.split(' '))
        .collect();
    assert!(theirs.len() > 350, "{} spellings", theirs.len());
    let named: Vec<&str> = quoted_flags(&page).collect();
    // The page says so of both in one sentence.
    let in_a_sentence = |flag: &str| flag.starts_with("--spec-") || flag.ends_with("-draft") || flag.contains("-spec-");
    let missing: Vec<&&str> = theirs
        .iter()
        .filter(|flag| !named.contains(flag) && !in_a_sentence(flag))
        .collect();
    assert!(missing.is_empty(), "docs/from-llama-cpp.md lacks {missing:?}");

    // The columns on the right.
    let mut root = Cli::command();
    root.build();
    let serve = root.find_subcommand("serve").expect("a command");
    let ours: Vec<String> = serve
        .get_arguments()
        .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
        .collect();
    let rows = page.lines().filter_map(|row| row.strip_prefix("| "));
    let unknown: Vec<&str> = rows
        .filter_map(|row| row.split_once(" | "))
        .flat_map(|(_, here)| quoted_flags(here))
        .filter(|flag| !ours.iter().any(|known| known == flag))
        .collect();
    assert!(
        unknown.is_empty(),
        "docs/from-llama-cpp.md names {unknown:?}, which `halyard serve` lacks"
    );
}
