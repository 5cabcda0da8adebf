//! What is made from the command line's own description: completions of shells, and man pages.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use crate::error::ServerError;

/// `halyard completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// `halyard man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages (halyard.1, halyard-serve.1, …); it is made where it is missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// The command line without the commands that only a server starts, which scripts would offer.
fn shown() -> Command {
    let whole = Cli::command();
    let commands = whole.get_subcommands().filter(|command| !command.is_hide_set());
    Command::new("halyard")
        .args(whole.get_arguments().cloned())
        .subcommands(commands.cloned())
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "halyard", &mut script);
    script
}

pub(super) fn run_completions(args: &CompletionsArgs) -> Result<(), ServerError> {
    let script = script(args.shell);
    // A reader that has gone is no error, as everywhere.
    let _ = std::io::stdout().write_all(&script);
    Ok(())
}

pub(super) fn run_man(args: &ManArgs) -> Result<(), ServerError> {
    let doing = "writing man pages";
    std::fs::create_dir_all(&args.folder).map_err(ServerError::io(doing))?;
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(ServerError::io(doing))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// The long flags of `serve`.
    fn flags() -> Vec<String> {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("a command");
        let longs = serve.get_arguments().filter(|arg| !arg.is_hide_set());
        longs.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    }

    #[test]
    fn every_shell_completes_every_flag() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).expect("text");
            for flag in flags() {
                assert!(script.contains(&flag), "{shell}: --{flag}");
            }
            assert!(
                !script.contains("hook-child"),
                "{shell}: a command that only a server starts"
            );
        }
    }

    #[test]
    fn bash_reads_its_completions() {
        let folder = std::env::temp_dir().join(format!("halyard-completions-{}", std::process::id()));
        std::fs::write(&folder, script(Shell::Bash)).expect("written");
        let read = std::process::Command::new("bash").arg("-n").arg(&folder).status();
        let _ = std::fs::remove_file(&folder);
        assert!(read.expect("bash").success());
    }

    /// Every command that is shown, with the commands around it: `plugins-new`.
    fn pages(command: &Command, name: &str) -> Vec<String> {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let below = shown.flat_map(|command| pages(command, &format!("{name}-{}", command.get_name())));
        [name.to_owned()].into_iter().chain(below).collect()
    }

    /// What reads man pages, where there is one: its name, and flags that make it complain.
    const READERS: [(&str, &[&str]); 2] = [
        ("groff", &["-Kutf8", "-man", "-Tutf8", "-ww", "-z"]),
        ("mandoc", &["-T", "lint", "-W", "error"]),
    ];

    #[test]
    fn every_command_has_a_page_that_can_be_read() {
        let folder = std::env::temp_dir().join(format!("halyard-pages-{}", std::process::id()));
        run_man(&ManArgs { folder: folder.clone() }).expect("written");
        let names = pages(&Cli::command(), "halyard");
        assert!(names.len() > 10, "{names:?}");
        for name in &names {
            let file = folder.join(format!("{name}.1"));
            let page = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
            for heading in [".TH ", ".SH NAME", ".SH SYNOPSIS"] {
                assert!(page.contains(heading), "{name}: no {heading}");
            }
            for (reader, flags) in READERS {
                // Neither is on every machine.
                let Ok(read) = std::process::Command::new(reader).args(flags).arg(&file).output() else {
                    continue;
                };
                let said = [read.stdout, read.stderr].concat();
                let said = String::from_utf8_lossy(&said);
                assert!(read.status.success() && said.is_empty(), "{reader} {name}: {said}");
            }
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn there_is_a_page_for_each_command_that_is_shown() {
        let folder = std::env::temp_dir().join(format!("halyard-man-{}", std::process::id()));
        let args = ManArgs { folder: folder.clone() };
        run_man(&args).expect("written");
        let page = |name: &str| std::fs::read_to_string(folder.join(name));
        let serve = page("halyard-serve.1").expect("a page");
        // Hyphens are escaped in pages.
        assert!(flags().iter().all(|flag| serve.contains(&flag.replace('-', "\\-"))));
        assert!(page("halyard.1").is_ok() && page("halyard-plugins-new.1").is_ok());
        assert!(
            page("halyard-hook-child.1").is_err(),
            "a command that only a server starts"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
