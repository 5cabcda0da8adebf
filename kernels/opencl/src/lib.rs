//! The GPU kernels in OpenCL C 1.2, as text: the same files, entry points, definitions, parameters and launch shapes as the CUDA C++ and HIP
//! kernels, for devices that speak OpenCL. One op a file in `ops/`, what they share in `include/`. Holds text only: no compiler, no driver.
//!
//! Differences of the language that a driver must know: a kernel whose CUDA twin takes dynamic shared memory may have one more, last
//! parameter, a `__local` pointer of the launch's shared bytes; a driver of a processor compiles with `-DHALYARD_CPU`; `linear_dots` has no
//! CUDA twin; `linear_tiled` and `attention_tiles` run on matrix units where `DPAS` is defined (`matrix.h`); clusters and fused regions are not here.

macro_rules! texts {
    ($constant:ident, $folder:literal, $extension:literal, $about:literal, $($name:literal,)*) => {
        #[doc = $about]
        pub const $constant: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../", $folder, "/", $name, $extension)))),*];
    };
}

texts! { HEADERS, "include", "", "Headers by the name that `#include` gives, with their text.",
    "common.h",
    "activate.h",
    "blocks.h",
    "kv.h",
    "logits.h",
    "matrix.h",
    "product.h",
    "quantized.h",
}

texts! { SOURCES, "ops", ".cl", "Every kernel file by the name of its CUDA twin, with its text.",
    "argmax",
    "attention_plain",
    "attention_tiles",
    "copy",
    "embedding",
    "kv_write",
    "linear_dots",
    "linear_plain",
    "linear_quantized",
    "linear_scaled",
    "linear_tiled",
    "logits",
    "logprobs",
    "lora",
    "moe",
    "norm",
    "pointwise",
    "rope",
    "rows",
    "sample",
    "step",
}

/// The kernel file of that name; `None` where OpenCL has no twin.
pub fn text(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// `text` with the headers that it includes in place of their `#include` lines, each once, in order: for compilers that take one text.
///
/// # Errors
/// The name of a header that `headers` lacks.
pub fn expanded(text: &str, headers: &[(&str, &str)]) -> Result<String, String> {
    let mut seen = Vec::new();
    let mut out = String::with_capacity(text.len() + 16_384);
    expand(text, headers, &mut seen, &mut out)?;
    Ok(out)
}

fn expand(text: &str, headers: &[(&str, &str)], seen: &mut Vec<String>, out: &mut String) -> Result<(), String> {
    for line in text.lines() {
        let included = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let Some(name) = included else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        if seen.iter().any(|known| known == name) {
            continue;
        }
        seen.push(name.to_string());
        let header = headers.iter().find(|(known, _)| *known == name);
        let (_, header) = header.ok_or_else(|| format!("{name} is none of the kernels' headers"))?;
        expand(header, headers, seen, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_once_and_before_what_follows_them() {
        let headers = [("a.h", "#include \"b.h\"\nA"), ("b.h", "B")];
        let text = "#include \"b.h\"\nfirst\n#include \"a.h\"\nlast";
        assert_eq!(expanded(text, &headers), Ok("B\nfirst\nA\nlast\n".to_string()));
        let error = expanded("#include \"c.h\"", &headers).expect_err("there is no c.h");
        assert!(error.contains("c.h"), "{error}");
    }

    #[test]
    fn every_file_is_found_by_its_name_and_expands() {
        for (name, known) in SOURCES {
            assert_eq!(text(name), Some(*known));
            let expanded = expanded(known, HEADERS).expect("known headers");
            assert!(expanded.contains("__kernel"), "{name} has no kernel");
            assert!(
                !expanded.contains("#include"),
                "{name} includes in a way that expansion does not see"
            );
        }
        assert_eq!(text("no such file"), None);
    }
}
