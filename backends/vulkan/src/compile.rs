//! GLSL to SPIR-V with the compiler that is linked into this library: headers are pasted in, definitions stand behind
//! the version line.

use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage, SpirvVersion,
    Target, VulkanVersion,
};
use halyard_gpu::KernelText;
use halyard_platform_api::{Error, Result};

/// Name and version of the compiler; the crate holds its sources, and is pinned by the lock file.
pub(crate) const COMPILER: &str = "glslang 16 (crate glslang-sys 0.9.2), SPIR-V 1.5";
/// An extension that the compiler wants newer words for; devices that have it know them.
const WIDE_MATRICES: &str = "GL_NV_cooperative_matrix2";
/// Longest part of a compiler's log in an error.
const MAX_LOG: usize = 4000;
/// Headers within headers; more are a circle.
const MAX_DEPTH: u32 = 16;

/// Compiles the text with `options` (`-DNAME=value`) to the words of a SPIR-V module whose entry point is `main`.
///
/// # Errors
/// `Unsupported` with the compiler's log.
pub(crate) fn compile(name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
    let source = expand(name, text, options)?;
    let fail = |log: String| {
        Error::unsupported(format!(
            "{name}.comp ({}) does not compile with {COMPILER}:\n{}",
            options.join(" "),
            shorten(&log)
        ))
    };
    let compiler = Compiler::acquire().ok_or_else(|| Error::unsupported(format!("{COMPILER} does not start")))?;
    if source.contains('\0') {
        return Err(Error::invalid(format!("{name}.comp: a kernel text with a zero byte")));
    }
    let source = ShaderSource::from(source);
    let settings = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: match text.text.contains(WIDE_MATRICES) {
            true => Target::Vulkan {
                version: VulkanVersion::Vulkan1_3,
                spirv_version: SpirvVersion::SPIRV1_6,
            },
            false => Target::Vulkan {
                version: VulkanVersion::Vulkan1_2,
                spirv_version: SpirvVersion::SPIRV1_5,
            },
        },
        version_profile: None,
        messages: ShaderMessage::SPV_RULES | ShaderMessage::VULKAN_RULES,
    };
    let no_definitions: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&source, ShaderStage::Compute, &settings, no_definitions, None);
    let shader = input.and_then(|input| compiler.create_shader(input));
    let words = shader
        .and_then(|shader| shader.compile())
        .map_err(|e| fail(e.to_string()))?;
    if words.is_empty() {
        return Err(fail("no code came out".to_string()));
    }
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// The file with its headers in place and the definitions behind its first line.
fn expand(name: &str, text: KernelText, options: &[String]) -> Result<String> {
    let Some((version, rest)) = text
        .text
        .split_once('\n')
        .filter(|(line, _)| line.starts_with("#version"))
    else {
        return Err(Error::unsupported(format!(
            "{name}.comp: the first line must be #version"
        )));
    };
    let mut out = format!("{version}\n");
    for option in options {
        let Some(definition) = option.strip_prefix("-D") else {
            return Err(Error::unsupported(format!("{name}.comp: {option} is no definition")));
        };
        let (key, value) = definition.split_once('=').unwrap_or((definition, "1"));
        out.push_str(&format!("#define {key} {value}\n"));
    }
    paste(name, rest, text.headers, MAX_DEPTH, &mut out)?;
    Ok(out)
}

/// Appends `text` with the headers that it names, wherever it names them: which of them counts is up to the
/// preprocessor.
fn paste(file: &str, text: &str, headers: &[(&str, &str)], depth: u32, out: &mut String) -> Result<()> {
    for line in text.lines() {
        let Some(wanted) = line.trim_start().strip_prefix("#include") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let wanted = wanted.trim().trim_matches('"');
        let header = headers.iter().find(|(name, _)| *name == wanted);
        match header {
            Some((name, header)) if depth > 0 => paste(name, header, headers, depth - 1, out)?,
            Some(_) => return Err(Error::unsupported(format!("{file} includes {wanted} in a circle"))),
            None => {
                return Err(Error::unsupported(format!(
                    "{file} includes {wanted}, which is no header"
                )));
            }
        }
    }
    Ok(())
}

fn shorten(log: &str) -> &str {
    let log = log.trim();
    log.char_indices().nth(MAX_LOG).map_or(log, |(end, _)| &log[..end])
}

#[cfg(test)]
mod tests {
    use halyard_kernels_gpu::{Language, files};

    use super::*;

    const HEADERS: &[(&str, &str)] = &[
        (
            "outer.glsl",
            "#include \"inner.glsl\"\nint outer() { return inner() + VALUE; }",
        ),
        (
            "inner.glsl",
            "#ifndef INNER\n#define INNER\nint inner() { return 1; }\n#endif",
        ),
        ("circle.glsl", "#include \"circle.glsl\""),
    ];
    const TEXT: KernelText = KernelText {
        text: "#version 460\n#include \"inner.glsl\"\n#include \"outer.glsl\"\n#ifdef \
            ENTRY_run\nlayout(local_size_x_id = 0) in;\nshared int \
               out_value;\nvoid main() { out_value = outer(); }\n#endif\n",
        headers: HEADERS,
    };

    #[test]
    fn headers_are_pasted_and_definitions_apply() {
        let options = ["-DVALUE=3".to_string(), "-DENTRY_run".to_string()];
        let expanded = expand("k", TEXT, &options).expect("all headers are there");
        assert!(
            expanded.starts_with("#version 460\n#define VALUE 3\n#define ENTRY_run 1\n"),
            "{expanded}"
        );
        assert_eq!(
            expanded.matches("int inner()").count(),
            2,
            "guards choose, not the pasting"
        );
        let spirv = compile("k", TEXT, &options).expect("it compiles");
        assert_eq!(spirv[..4], 0x0723_0203u32.to_le_bytes());
    }

    #[test]
    fn what_does_not_compile_says_so_with_the_log() {
        let entry = "-DENTRY_run".to_string();
        let error = compile("k", TEXT, std::slice::from_ref(&entry)).expect_err("VALUE is not defined");
        assert!(error.message.contains("VALUE"), "{}", error.message);
        let error = compile("k", TEXT, &["-DVALUE=1".to_string()]).expect_err("there is no main");
        assert!(error.message.contains("k.comp"), "{}", error.message);
        for (text, word) in [
            ("#version 460\n#include \"none.glsl\"\n", "none.glsl"),
            ("#version 460\n#include \"circle.glsl\"\n", "circle"),
            ("void main() {}", "#version"),
        ] {
            let text = KernelText { text, headers: HEADERS };
            let error = compile("k", text, &[]).expect_err("no code");
            assert!(error.message.contains(word), "{}", error.message);
        }
    }

    /// The system's compiler, which kernels/gpu's own test asks, is often older than matrices of bfloat16.
    #[test]
    fn every_kernel_compiles_with_the_compiler_that_is_linked() {
        let mut entries = 0;
        for (name, text) in files(Language::Glsl) {
            let headers = Language::Glsl.headers();
            let text = KernelText { text, headers };
            let lines = text.text.lines().filter_map(|line| line.strip_prefix("// check:"));
            for (at, line) in lines.enumerate() {
                let (definitions, names): (Vec<&str>, Vec<&str>) =
                    line.split_whitespace().partition(|word| word.starts_with("-D"));
                for (which, entry) in names.into_iter().enumerate() {
                    let mut options: Vec<String> = definitions.iter().map(|&text| text.to_string()).collect();
                    options.push(format!("-DENTRY_{entry}"));
                    // Every entry for one of the two kinds of subgroups, turn about; the other test has them all.
                    if (at + which) % 2 == 0 && !definitions.iter().any(|text| text.starts_with("-DSUBGROUP")) {
                        options.push("-DSUBGROUP=32".to_string());
                    }
                    compile(name, text, &options).unwrap_or_else(|e| panic!("{e}"));
                    entries += 1;
                }
            }
        }
        assert!(entries > 200, "{entries} entries");
    }
}
