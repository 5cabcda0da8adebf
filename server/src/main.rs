//! The `halyard` binary. Everything is in the library; this file only hands over arguments and the exit status.

fn main() -> std::process::ExitCode {
    halyard_server::cli::main()
}
