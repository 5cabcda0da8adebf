//! Kernel text to the device's code: headers are put in place of their `#include` lines, since not every runtime takes
//! them by name. The image is what the runtime hands out as the program's binary, or the text itself where the runtime
//! keeps compiled code on its own.

use std::ffi::{CString, c_char};

use halyard_gpu::KernelText;
use halyard_platform_api::{Error, Result, Status};

use crate::api::{self, Api, Handle};
use crate::error::{BUILD_PROGRAM_FAILURE, INVALID_BUILD_OPTIONS, check, error};
use crate::matrix::Matrix;

/// Longest part of a compiler's log in an error.
const MAX_LOG: usize = 4000;
/// The language: what every runtime of today accepts.
const LANGUAGE: &str = "-cl-std=CL1.2";
/// The one that subgroups and integer dot products are part of.
const NEWER_LANGUAGE: &str = "-cl-std=CL3.0";
/// The kernel file that uses integer dot products where the device has them, and what tells it so.
const LINEAR_DOTS: &str = "linear_dots";
const NATIVE_DOTS: &str = "-DNATIVE_DOTS";

/// Lets kernels choose shapes for processors.
const CPU: &str = "-DHALYARD_CPU";
/// First line of an image that is text; name, options and the text follow.
const TEXT_IMAGE: &str = "opencl c";

/// Where programs are made.
#[derive(Clone, Copy)]
pub(crate) struct Compiler {
    pub(crate) api: &'static Api,
    pub(crate) context: Handle,
    pub(crate) device: Handle,
    /// Kernels are for a processor, where barriers are dear and work-items loops.
    pub(crate) for_cpu: bool,
    /// The size of subgroups to require.
    pub(crate) subgroup: Option<u32>,
    /// Products on matrix units, for the files that know them.
    pub(crate) matrix: Option<Matrix>,
    /// The language has integer dot products.
    pub(crate) native_dots: bool,
    /// Asks for correctly rounded division and square root.
    pub(crate) exact_division: bool,
    /// The runtime keeps compiled code on disk by itself, and makes it when a kernel is first launched: asking it for a
    /// binary would have it compile everything once more, for work-groups of any size.
    pub(crate) keeps_code: bool,
}

/// A program that is released when it goes.
pub(crate) struct Program {
    api: &'static Api,
    pub(crate) handle: Handle,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made once, released once.
        unsafe { (self.api.clReleaseProgram)(self.handle) };
    }
}

impl Compiler {
    /// Compiles the file `name`; where [`Compiler::keeps_code`] says so, that happens when the image is loaded.
    ///
    /// # Errors
    /// `Unsupported` with the compiler's words.
    pub(crate) fn compile(&self, name: &str, text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        let expanded = halyard_kernels_gpu::expanded(text.text, text.headers);
        let whole = expanded.map_err(|e| Error::unsupported(format!("{name}.cl: {e}")))?;
        let by_dots = self.native_dots && name == LINEAR_DOTS;
        let by_matrix = self.matrix.and_then(|matrix| matrix.options(name, options));
        let newer = by_dots || by_matrix.is_some() || self.subgroup.is_some();
        let mut all = vec![if newer { NEWER_LANGUAGE } else { LANGUAGE }];
        if by_dots {
            all.push(NATIVE_DOTS);
        }
        // Matrix units have subgroups of their own.
        let subgroup = self.subgroup.map(|size| vec![format!("-DSUBGROUP={size}")]);
        let subgroup = by_matrix.or(subgroup).unwrap_or_default();
        all.extend(subgroup.iter().map(String::as_str));
        if self.exact_division {
            all.push("-cl-fp32-correctly-rounded-divide-sqrt");
        }
        if self.for_cpu {
            all.push(CPU);
        }
        all.extend(options.iter().map(String::as_str));
        let all = all.join(" ");
        if self.keeps_code {
            return Ok([TEXT_IMAGE, name, &all, &whole].join("\n").into_bytes());
        }
        self.image(&self.program_from_text(name, &all, &whole)?)
    }

    /// A built program.
    fn program_from_text(&self, name: &str, options: &str, text: &str) -> Result<Program> {
        let text = c_text(text)?;
        let (texts, mut code) = ([text.as_ptr()], 0);
        let lengths = std::ptr::null();
        // SAFETY: one text that ends in 0.
        let handle =
            unsafe { (self.api.clCreateProgramWithSource)(self.context, 1, texts.as_ptr(), lengths, &mut code) };
        check("clCreateProgramWithSource", code)?;
        let program = Program { api: self.api, handle };
        self.build(&program, name, options)?;
        Ok(program)
    }

    fn build(&self, program: &Program, name: &str, options: &str) -> Result<()> {
        let c_options = c_text(options)?;
        let at: *const c_char = c_options.as_ptr();
        // SAFETY: a live program and device; without a callback the call returns when the build is over.
        let code =
            unsafe { (self.api.clBuildProgram)(program.handle, 1, &self.device, at, None, std::ptr::null_mut()) };
        if matches!(code, BUILD_PROGRAM_FAILURE | INVALID_BUILD_OPTIONS) {
            let log = self.api.build_log(program.handle, self.device);
            return Err(Error {
                vendor_code: i64::from(code),
                ..Error::unsupported(format!("{name}.cl does not compile with `{options}`:\n{}", cut(&log)))
            });
        }
        check("clBuildProgram", code).map_err(|e| Error {
            message: format!("{name}: {}", e.message),
            ..e
        })
    }

    /// The built program as the runtime keeps it.
    fn image(&self, program: &Program) -> Result<Vec<u8>> {
        let mut bytes = 0usize;
        let size = size_of::<usize>();
        let none = std::ptr::null_mut();
        // SAFETY: a context of one device: each answer is an array of one, a size and then a pointer to fill.
        unsafe {
            let at = (&raw mut bytes).cast();
            let code = (self.api.clGetProgramInfo)(program.handle, api::PROGRAM_BINARY_SIZES, size, at, none);
            check("clGetProgramInfo", code)?;
        }
        if bytes == 0 {
            return Err(Error::new(
                Status::Internal,
                "the runtime gives no binary of a built program",
            ));
        }
        let mut image = vec![0u8; bytes];
        let mut at = image.as_mut_ptr();
        // SAFETY: as above; the image has the size that the runtime asked for.
        let code = unsafe {
            (self.api.clGetProgramInfo)(program.handle, api::PROGRAM_BINARIES, size, (&raw mut at).cast(), none)
        };
        check("clGetProgramInfo", code)?;
        Ok(image)
    }

    /// A program from an image.
    pub(crate) fn load(&self, image: &[u8]) -> Result<Program> {
        if let Some((name, options, text)) = text_image(image) {
            return self.program_from_text(name, options, text);
        }
        let (lengths, images) = ([image.len()], [image.as_ptr()]);
        let (mut status, mut code) = (0, 0);
        // SAFETY: one device, one image of the length given; both outputs are live.
        let handle = unsafe {
            (self.api.clCreateProgramWithBinary)(
                self.context,
                1,
                &self.device,
                lengths.as_ptr(),
                images.as_ptr(),
                &mut status,
                &mut code,
            )
        };
        check("clCreateProgramWithBinary", code)?;
        let program = Program { api: self.api, handle };
        check("clCreateProgramWithBinary", status)?;
        // SAFETY: a live program and device; a binary takes no options.
        let code =
            unsafe { (self.api.clBuildProgram)(handle, 1, &self.device, c"".as_ptr(), None, std::ptr::null_mut()) };
        match code {
            BUILD_PROGRAM_FAILURE => Err(Error {
                message: format!(
                    "the image does not load: {}",
                    cut(&self.api.build_log(handle, self.device))
                ),
                ..error("clBuildProgram", code)
            }),
            code => check("clBuildProgram", code).map(|()| program),
        }
    }
}

/// Name, options and text, for an image that is text.
fn text_image(image: &[u8]) -> Option<(&str, &str, &str)> {
    let rest = image.strip_prefix(TEXT_IMAGE.as_bytes())?.strip_prefix(b"\n")?;
    let (name, rest) = std::str::from_utf8(rest).ok()?.split_once('\n')?;
    let (options, text) = rest.split_once('\n')?;
    Some((name, options, text))
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("a kernel text or option with a zero byte"))
}

/// The log, cut to a readable length.
fn cut(log: &str) -> String {
    match log.char_indices().nth(MAX_LOG) {
        Some((end, _)) => format!("{} …", &log[..end]),
        None => log.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_text_gives_its_parts_back() {
        let image = [TEXT_IMAGE, "norm", "-DA=1 -DB", "line 1\nline 2"].join("\n");
        assert_eq!(
            text_image(image.as_bytes()),
            Some(("norm", "-DA=1 -DB", "line 1\nline 2"))
        );
        assert_eq!(text_image(b"\x7fELF"), None);
        assert_eq!(text_image(b"opencl c"), None);
    }
}
