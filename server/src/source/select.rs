//! Which files of a repository make a model. Pure: names in, names out, or the reason with what there is to choose
//! from.

use halyard_models::LoadFormat;

use super::SourceError;

/// Quantisations to take when none was asked, best first: the balance that most repositories recommend.
const PREFERRED: [&str; 8] = ["Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_1", "Q4_0", "Q8_0", "BF16", "F16"];
/// Files that a model folder may need besides the weights.
const SIDE_FILES: [&str; 8] = [
    "config.json",
    "params.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The files to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Names at the repository's root.
    pub files: Vec<String>,
    /// The one file that is the model; `None`: the folder is.
    pub model_file: Option<String>,
}

/// Chooses among a repository's root files.
///
/// # Errors
/// [`SourceError::Selection`].
pub fn select(
    repo: &str,
    files: &[String],
    quantization: Option<&str>,
    format: LoadFormat,
) -> Result<Selection, SourceError> {
    let refuse = |reason: String| {
        Err(SourceError::Selection {
            repo: repo.to_owned(),
            reason,
        })
    };
    let ends = |suffix: &'static str| move |name: &&String| name.to_ascii_lowercase().ends_with(suffix);
    let ggufs: Vec<&String> = files
        .iter()
        .filter(ends(".gguf"))
        .filter(|name| !is_projector(name))
        .collect();
    let has = |name: &str| files.iter().any(|file| file == name);
    // Mistral publishes its own files beside Hugging Face's, or alone.
    let is_own = |name: &String| name.starts_with("consolidated");
    let own = !has("config.json") && has("params.json");
    let weights: Vec<&String> = files
        .iter()
        .filter(ends(".safetensors"))
        .filter(|name| is_own(name) == own)
        .collect();
    let folder = (has("config.json") || own) && (!weights.is_empty() || format == LoadFormat::Dummy);
    let wants_gguf = quantization.is_some() || format == LoadFormat::Gguf || (!folder && !ggufs.is_empty());
    if wants_gguf && format != LoadFormat::Safetensors {
        let name = match select_gguf(&ggufs, quantization) {
            Ok(name) => name,
            Err(reason) => return refuse(reason),
        };
        return Ok(Selection {
            files: vec![name.clone()],
            model_file: Some(name),
        });
    }
    if quantization.is_some() {
        return refuse(
            "a quantisation names a GGUF file, but --load-format safetensors was given; drop one of them".to_owned(),
        );
    }
    if !folder {
        let found = if files.is_empty() {
            "no files".to_owned()
        } else {
            files.join(", ")
        };
        return refuse(format!(
            "no config.json with *.safetensors and no *.gguf at its root; found: {found}"
        ));
    }
    let index = match own {
        true => "consolidated.safetensors.index.json",
        false => "model.safetensors.index.json",
    };
    let tokenizer = match has("tokenizer.json") {
        true => None,
        false => Some("tekken.json"),
    };
    let config = if own { "config.json" } else { "params.json" };
    let sides = SIDE_FILES.into_iter().filter(|&side| side != config);
    let wanted = sides.chain(tokenizer).chain([index]).filter(|name| has(name));
    let mut chosen: Vec<String> = wanted.map(str::to_owned).collect();
    if format != LoadFormat::Dummy {
        chosen.extend(weights.into_iter().cloned());
    }
    Ok(Selection {
        files: chosen,
        model_file: None,
    })
}

/// The tokenizer of a repository and the files that belong to it.
///
/// # Errors
/// [`SourceError::Selection`].
pub fn select_tokenizer(repo: &str, files: &[String]) -> Result<Selection, SourceError> {
    const FILES: [&str; 5] = [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
    ];
    if !files.iter().any(|name| name == FILES[0]) {
        return Err(SourceError::Selection {
            repo: repo.to_owned(),
            reason: "--tokenizer: it holds no tokenizer.json at its root".to_owned(),
        });
    }
    let there = |name: &&str| files.iter().any(|file| file == name);
    Ok(Selection {
        files: FILES
            .iter()
            .filter(|name| there(name))
            .map(|&name| name.to_owned())
            .collect(),
        model_file: None,
    })
}

fn is_projector(name: &str) -> bool {
    name.to_ascii_lowercase().contains("mmproj")
}

fn select_gguf(ggufs: &[&String], quantization: Option<&str>) -> Result<String, String> {
    let there = || ggufs.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    if ggufs.is_empty() {
        return Err("it holds no *.gguf file at its root".to_owned());
    }
    let matching = |quantization: &str| -> Vec<&String> {
        ggufs
            .iter()
            .copied()
            .filter(|name| has_word(name, quantization))
            .collect()
    };
    let found = match quantization {
        Some(asked) => matching(asked),
        None if ggufs.len() == 1 => ggufs.to_vec(),
        None => PREFERRED
            .iter()
            .map(|name| matching(name))
            .find(|found| !found.is_empty())
            .unwrap_or_default(),
    };
    match (found.as_slice(), quantization) {
        ([one], _) => Ok((*one).clone()),
        ([], Some(asked)) => Err(format!("no GGUF file of quantisation {asked}; there are: {}", there())),
        ([], None) => Err(format!(
            "name a quantisation, as in org/repo:Q4_K_M; there are: {}",
            there()
        )),
        (several, _) if several.iter().any(|name| name.contains("-of-")) => {
            Err("its GGUF file is split, which is not supported; merge the parts and give --model PATH".to_owned())
        }
        (several, _) => {
            let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(format!(
                "several files match: {}; download one and give --model PATH",
                names.join(", ")
            ))
        }
    }
}

/// Whether `name` contains `word` as a whole word: `Q4_K` must not match `Q4_K_M`.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let inside = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    name.match_indices(&word).any(|(start, _)| {
        let bytes = name.as_bytes();
        let before = start.checked_sub(1).and_then(|index| bytes.get(index));
        !inside(before) && !inside(bytes.get(start + word.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_folder_takes_weights_and_what_describes_them() {
        let files = names(&[
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
        ]);
        let chosen = select("org/m", &files, None, LoadFormat::Auto).expect("a model");
        assert_eq!(
            chosen,
            Selection {
                files: names(&["config.json", "tokenizer.json", "model.safetensors"]),
                model_file: None
            }
        );
        let dummy = select("org/m", &files, None, LoadFormat::Dummy).expect("a description");
        assert!(!dummy.files.contains(&"model.safetensors".to_owned()));
    }

    #[test]
    fn mistral_s_own_files_count_where_there_are_no_others() {
        let own = ["params.json", "tekken.json", "consolidated.safetensors", "README.md"];
        let chosen = select("org/m", &names(&own), None, LoadFormat::Auto).expect("a model");
        assert_eq!(chosen.files, names(&own[..3]));
        let both = names(&[
            "config.json",
            "model.safetensors",
            "params.json",
            "tekken.json",
            "consolidated.safetensors",
        ]);
        let chosen = select("org/m", &both, None, LoadFormat::Auto).expect("a model");
        assert_eq!(
            chosen.files,
            names(&["config.json", "tekken.json", "model.safetensors"])
        );
        let with_tokenizer = names(&["config.json", "model.safetensors", "tekken.json", "tokenizer.json"]);
        let chosen = select("org/m", &with_tokenizer, None, LoadFormat::Auto).expect("a model");
        assert_eq!(
            chosen.files,
            names(&["config.json", "tokenizer.json", "model.safetensors"])
        );
    }

    #[test]
    fn a_quantisation_is_matched_as_a_word() {
        let files = names(&["m.Q4_K.gguf", "m-Q4_K_M.gguf", "m-q8_0.gguf", "mmproj-m-Q8_0.gguf"]);
        let choose =
            |quantization| select("org/m", &files, quantization, LoadFormat::Auto).map(|chosen| chosen.model_file);
        assert_eq!(choose(Some("Q4_K")).expect("one"), Some("m.Q4_K.gguf".to_owned()));
        assert_eq!(choose(Some("Q8_0")).expect("one"), Some("m-q8_0.gguf".to_owned()));
        assert_eq!(
            choose(None).expect("the preferred one"),
            Some("m-Q4_K_M.gguf".to_owned())
        );
        let error = choose(Some("Q2_K")).expect_err("not there").to_string();
        assert!(error.contains("Q2_K") && error.contains("m-Q4_K_M.gguf"), "{error}");
    }

    #[test]
    fn what_cannot_be_served_says_what_is_there() {
        let refuse = |list: &[&str], quantization| {
            select("org/m", &names(list), quantization, LoadFormat::Auto)
                .expect_err("refused")
                .to_string()
        };
        assert!(refuse(&["model.onnx"], None).contains("model.onnx"));
        assert!(refuse(&["config.json", "model.safetensors"], Some("Q4_0")).contains("no *.gguf"));
        assert!(
            refuse(
                &["a-Q4_0-00001-of-00002.gguf", "a-Q4_0-00002-of-00002.gguf"],
                Some("Q4_0")
            )
            .contains("split")
        );
    }
}
