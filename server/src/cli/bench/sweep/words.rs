//! Commands as words, and errors of options.

use crate::error::ServerError;

/// The words of a command, as a shell reads them.
///
/// # Errors
/// A quote that is not closed, or no word.
pub(super) fn words(option: &'static str, command: &str) -> Result<Vec<String>, ServerError> {
    match shlex::split(command) {
        Some(words) if !words.is_empty() => Ok(words),
        Some(_) => Err(wrong(option, "it is empty")),
        None => Err(wrong(option, format!("`{command}` has a quote that is not closed"))),
    }
}

/// A command as a shell would take it.
pub(super) fn shown(command: &[String]) -> String {
    shlex::try_join(command.iter().map(String::as_str)).unwrap_or_else(|_| command.join(" "))
}

/// The error of an option.
pub(super) fn wrong(option: &'static str, message: impl Into<String>) -> ServerError {
    ServerError::Option {
        option,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_a_shell_does() {
        assert_eq!(words("--serve-cmd", "a 'b c' d").expect("words"), ["a", "b c", "d"]);
        assert!(
            words("--serve-cmd", "a 'b")
                .expect_err("a quote")
                .to_string()
                .contains("quote")
        );
        assert!(
            words("--serve-cmd", " ")
                .expect_err("nothing")
                .to_string()
                .contains("empty")
        );
    }
}
