//! The GPU kernels as text, in three languages: CUDA C++ that is HIP too (`cuda/`), GLSL (`glsl/`) and OpenCL C 1.2
//! (`opencl/`). Each has one op a file in `ops/` and what its ops share in `include/`. [`SOURCES`] is the one list of
//! ops, with a reason for every language that lacks one. Formulas that are the same text in all of them stand in
//! `shared/`. Holds text only: no compiler, no driver, no launch.
//!
//! **What is the same in all languages**: files, entry points, definitions, parameters, launch sizes, and the
//! algorithm. The same code in `backends/gpu/src/ops` launches them, and one suite judges them. A file that several
//! languages have says the revision of its algorithm (`// revision: 1`); `revisions.txt` records it with a digest of
//! each language's code, and `tests/revisions.rs` fails when they part (decision 0052).
//!
//! A file is specialised by `-D` definitions that its first comment lists, with the sets that tests compile
//! (`// check:`).
//!
//! **CUDA and HIP**: entry points are `extern "C"`. Every kernel calls `wait_for_previous()` before it touches memory
//! that earlier work writes, because launches overlap with the end of their predecessor.
//!
//! **GLSL** has one `main`: the definition `ENTRY_<name>` says which entry point it is. Parameters are push constants
//! in their order, each at its natural alignment; where they take more than 128 bytes the only push constant is the
//! address of such a block. Specialisation constants: 0 is the workgroup's size, 1 the 32-bit words of shared memory
//! that the launch asks for (at least 1). With `SUBGROUP` defined (32 or 64; 8 on processors) the kernel needs full
//! subgroups of that size; without it, it runs on subgroups of any size.
//!
//! **OpenCL C**: a kernel whose CUDA twin takes dynamic shared memory may have one more, last parameter, a `__local`
//! pointer of the launch's shared bytes. A driver of a processor compiles with `-DHALYARD_CPU`. `linear_tiled` and
//! `attention_tiles` run on matrix units where `DPAS` is defined (`matrix.h`).

mod expand;
mod headers;
mod list;

pub use expand::expanded;
pub use list::*;

/// A language of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// CUDA C++, of the words that HIP shares (`hip.cuh`).
    Cuda,
    /// GLSL for Vulkan.
    Glsl,
    /// OpenCL C 1.2.
    OpenCl,
}

impl Language {
    /// All of them, in the order of a source's texts.
    pub const ALL: [Language; 3] = [Language::Cuda, Language::Glsl, Language::OpenCl];

    /// Its folder in this package, and the extension of its ops' files.
    #[must_use]
    pub const fn place(self) -> (&'static str, &'static str) {
        match self {
            Language::Cuda => ("cuda", "cu"),
            Language::Glsl => ("glsl", "comp"),
            Language::OpenCl => ("opencl", "cl"),
        }
    }

    /// Headers by the name that `#include` gives, with their text.
    #[must_use]
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Language::Cuda => headers::CUDA,
            Language::Glsl => headers::GLSL,
            Language::OpenCl => headers::OPENCL,
        }
    }
}

/// A kernel file in the languages that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// File name without extension.
    pub name: &'static str,
    /// Its texts, in the order of [`Language::ALL`].
    pub texts: [Option<&'static str>; 3],
    /// Why a language lacks it; empty where none does.
    pub lacking: &'static str,
}

impl Source {
    /// Its text in a language.
    #[must_use]
    pub const fn text(&self, language: Language) -> Option<&'static str> {
        self.texts[language as usize]
    }

    /// The file of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Source> {
        SOURCES.iter().find(|source| source.name == name)
    }
}

/// The files that a language has, by name, with their text.
pub fn files(language: Language) -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES
        .iter()
        .filter_map(move |source| Some((source.name, source.text(language)?)))
}
