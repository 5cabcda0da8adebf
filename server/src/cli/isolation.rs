//! `--hook-isolation`: which hooks run in a process of their own.

use std::str::FromStr;

use crate::error::ServerError;
use crate::hooks::LINKED;
use crate::isolation::IsolationMode;

/// One value of `--hook-isolation`: for all hooks, or for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookIsolation {
    /// The hook; all of them without a name.
    pub hook: Option<String>,
    /// Where it runs.
    pub mode: IsolationMode,
}

impl FromStr for HookIsolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (hook, mode) = match text.split_once('=') {
            Some((hook, mode)) => (Some(hook), mode),
            None => (None, text),
        };
        if hook == Some("") {
            return Err(format!(
                "{text:?} has no name before `=`; write NAME=process, or process for all"
            ));
        }
        let mode = match mode {
            "none" => IsolationMode::None,
            "process" => IsolationMode::Process,
            other => return Err(format!("{other:?} is neither `none` nor `process`")),
        };
        Ok(HookIsolation {
            hook: hook.map(str::to_owned),
            mode,
        })
    }
}

/// Where hook `name` runs: what was said last for it by name, or else for all.
pub fn mode_of(choices: &[HookIsolation], name: &str) -> IsolationMode {
    let last = |of: Option<&str>| choices.iter().rev().find(|choice| choice.hook.as_deref() == of);
    last(Some(name))
        .or_else(|| last(None))
        .map_or(IsolationMode::default(), |choice| choice.mode)
}

/// Refuses a choice for a hook that is not used, or that is part of this program: it would run elsewhere than its
/// operator thinks.
///
/// # Errors
/// [`ServerError::Option`].
pub fn check_names(choices: &[HookIsolation], used: &[&str]) -> Result<(), ServerError> {
    let refused = |message: String| {
        Err(ServerError::Option {
            option: "--hook-isolation",
            message,
        })
    };
    for choice in choices {
        let Some(hook) = choice.hook.as_deref() else {
            continue;
        };
        if choice.mode == IsolationMode::Process && LINKED.contains(&hook) {
            return refused(format!(
                "{hook} is part of this program and runs in it; leave the name out"
            ));
        }
        if !used.contains(&hook) && !LINKED.contains(&hook) {
            let used = if used.is_empty() {
                "there is none".to_owned()
            } else {
                used.join(", ")
            };
            return refused(format!(
                "{hook}: no --stat-logger of this name is used ({used}); correct the name, or leave it out"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{HookIsolation, check_names, mode_of};
    use crate::isolation::IsolationMode;

    fn choices(texts: &[&str]) -> Vec<HookIsolation> {
        texts.iter().map(|text| text.parse().expect("a choice")).collect()
    }

    #[test]
    fn a_name_is_stronger_than_all_and_later_than_earlier() {
        let of = |texts: &[&str]| mode_of(&choices(texts), "csv");
        assert_eq!(of(&[]), IsolationMode::None);
        assert_eq!(of(&["process"]), IsolationMode::Process);
        assert_eq!(of(&["other=process"]), IsolationMode::None);
        assert_eq!(of(&["csv=none", "process"]), IsolationMode::None);
        assert_eq!(of(&["csv=none", "process", "csv=process"]), IsolationMode::Process);
    }

    #[test]
    fn wrong_choices_are_told() {
        let refused = |text: &str| text.parse::<HookIsolation>().expect_err("refused");
        assert!(refused("procces").contains("neither `none` nor `process`"));
        assert!(refused("csv=thread").contains("\"thread\""));
        assert!(refused("=process").contains("no name"));
    }

    #[test]
    fn a_misspelt_hook_is_refused() {
        let used = ["csv", "otlp"];
        assert!(
            check_names(
                &choices(&["process", "otlp=none", "csv=process", "log-line=none"]),
                &used
            )
            .is_ok()
        );
        let linked = check_names(&choices(&["prometheus=process"]), &used).expect_err("it is no library");
        assert!(linked.to_string().contains("part of this program"), "{linked}");
        let error = check_names(&choices(&["cvs=process"]), &used).expect_err("misspelt");
        assert!(
            error
                .to_string()
                .contains("cvs: no --stat-logger of this name is used (csv, otlp)"),
            "{error}"
        );
    }
}
