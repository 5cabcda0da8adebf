//! NVRTC: kernel text to machine code of one GPU.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::sys::{self as nvrtc, nvrtcResult};
use halyard_gpu::KernelText;
use halyard_platform_api::{Error, Result, Status};

use crate::libraries::NVRTC;

/// Longest part of a compiler's log in an error.
const MAX_LOG: usize = 4000;

fn check(call: &str, code: nvrtcResult) -> Result<()> {
    match code {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => Err(Error::new(
            Status::Unavailable,
            format!(
                "{call} answered {code:?}: libnvrtc-builtins of the same version was not found beside libnvrtc; install both from \
                 one package"
            ),
        )),
        _ => Err(Error::new(Status::Internal, format!("{call} answered {code:?}"))),
    }
}

/// Name and version of the compiler.
pub(crate) fn version() -> Result<String> {
    NVRTC.require()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there, and both outputs are live integers.
    check("nvrtcVersion", unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) })?;
    Ok(format!("nvrtc {major}.{minor}"))
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("a kernel text or option with a zero byte"))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// A program that is destroyed when it goes.
struct Program(nvrtc::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram`, destroyed once.
        unsafe { nvrtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Compiles the text for `arch`.
pub(crate) fn compile(
    arch: &str,
    name: &str,
    KernelText { text, headers }: KernelText,
    options: &[String],
) -> Result<Vec<u8>> {
    NVRTC.require()?;
    let file = c_text(&format!("{name}.cu"))?;
    let text = c_text(text)?;
    let names: Vec<CString> = headers.iter().map(|(name, _)| c_text(name)).collect::<Result<_>>()?;
    let texts: Vec<CString> = headers.iter().map(|(_, text)| c_text(text)).collect::<Result<_>>()?;
    let mut all = vec![c_text(&format!("--gpu-architecture={arch}"))?, c_text("--std=c++17")?];
    for option in options {
        all.push(c_text(option)?);
    }
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all texts end in 0 and outlive the calls; the arrays have the lengths given.
    unsafe {
        let (names, texts) = (pointers(&names), pointers(&texts));
        check(
            "nvrtcCreateProgram",
            nvrtc::nvrtcCreateProgram(
                &mut program.0,
                text.as_ptr(),
                file.as_ptr(),
                headers.len() as i32,
                texts.as_ptr(),
                names.as_ptr(),
            ),
        )?;
        let arguments = pointers(&all);
        let code = nvrtc::nvrtcCompileProgram(program.0, arguments.len() as i32, arguments.as_ptr());
        if matches!(
            code,
            nvrtcResult::NVRTC_ERROR_COMPILATION | nvrtcResult::NVRTC_ERROR_INVALID_OPTION
        ) {
            return Err(Error::unsupported(format!(
                "{name}.cu ({}) does not compile for {arch} with {}:\n{}",
                options.join(" "),
                version()?,
                log(&program)
            )));
        }
        check("nvrtcCompileProgram", code)?;
        let mut bytes = 0;
        check("nvrtcGetCUBINSize", nvrtc::nvrtcGetCUBINSize(program.0, &mut bytes))?;
        let mut image = vec![0u8; bytes];
        check(
            "nvrtcGetCUBIN",
            nvrtc::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()),
        )?;
        Ok(image)
    }
}

/// What the compiler said, cut to a readable length.
fn log(program: &Program) -> String {
    let mut bytes = 0;
    let mut log = Vec::new();
    // SAFETY: a live program, and a buffer of the size that the library asks for.
    unsafe {
        if nvrtc::nvrtcGetProgramLogSize(program.0, &mut bytes) == nvrtcResult::NVRTC_SUCCESS {
            log.resize(bytes, 0u8);
            nvrtc::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast());
        }
    }
    let text = String::from_utf8_lossy(&log);
    let text = text.trim_end_matches('\0').trim();
    match text.char_indices().nth(MAX_LOG) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_string(),
    }
}
