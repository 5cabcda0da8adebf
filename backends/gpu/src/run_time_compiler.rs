//! NVRTC and hiprtc: kernel text to machine code. Both have the same functions and codes under their own prefix, so one
//! table serves them.

use std::ffi::{CString, c_char, c_int, c_void};

use halyard_platform_api::{Error, Result, Status};

use crate::driver::KernelText;
use crate::libraries::symbol;

/// Longest part of a compiler's log in an error.
const MAX_LOG: usize = 4000;

const SUCCESS: c_int = 0;
const INVALID_OPTION: c_int = 5;
const COMPILATION: c_int = 6;
const BUILTIN_OPERATION_FAILURE: c_int = 7;

type Handle = *mut c_void;
type Texts = *const *const c_char;
type CreateFn = unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int;
type SizeFn = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type BytesFn = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// An open compiler.
pub struct RunTimeCompiler {
    prefix: &'static str,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: CreateFn,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, Texts) -> c_int,
    log_size: SizeFn,
    log: BytesFn,
    code_size: SizeFn,
    code: BytesFn,
}

/// A program that is destroyed when it goes.
struct Program<'a>(&'a RunTimeCompiler, Handle);

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the compiler's `CreateProgram`, destroyed once.
        unsafe { (self.0.destroy)(&mut self.1) };
    }
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("a kernel text or option with a zero byte"))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

impl RunTimeCompiler {
    /// The compiler in an open library whose functions begin with `prefix`; `code` is what it calls machine code
    /// (`Code`, `CUBIN`).
    ///
    /// # Errors
    /// `Unavailable` naming a function that it lacks.
    pub fn in_library(library: usize, prefix: &'static str, code: &str) -> Result<RunTimeCompiler> {
        let find = |name: &str| symbol(library, &c_text(&format!("{prefix}{name}"))?);
        let (code_size, code) = (format!("Get{code}Size"), format!("Get{code}"));
        // SAFETY: in every version of either library the functions of these names have these types.
        unsafe {
            use std::mem::transmute as typed;
            Ok(RunTimeCompiler {
                prefix,
                version: typed::<Handle, unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(find("Version")?),
                create: typed::<Handle, CreateFn>(find("CreateProgram")?),
                destroy: typed::<Handle, unsafe extern "C" fn(*mut Handle) -> c_int>(find("DestroyProgram")?),
                compile: typed::<Handle, unsafe extern "C" fn(Handle, c_int, Texts) -> c_int>(find("CompileProgram")?),
                log_size: typed::<Handle, SizeFn>(find("GetProgramLogSize")?),
                log: typed::<Handle, BytesFn>(find("GetProgramLog")?),
                code_size: typed::<Handle, SizeFn>(find(&code_size)?),
                code: typed::<Handle, BytesFn>(find(&code)?),
            })
        }
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        let prefix = self.prefix;
        match code {
            SUCCESS => Ok(()),
            BUILTIN_OPERATION_FAILURE => Err(Error::new(
                Status::Unavailable,
                format!(
                    "{prefix}{call} answered {code}: lib{prefix}-builtins of the same version was not found in the \
                     folder of lib{prefix}; install both from one package"
                ),
            )),
            _ => Err(Error::new(Status::Internal, format!("{prefix}{call} answered {code}"))),
        }
    }

    /// Name and version.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn version(&self) -> Result<String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both outputs are live.
        self.check("Version", unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok(format!("{} {major}.{minor}", self.prefix))
    }

    /// Compiles a text for `arch`: `own` options are this compiler's way of saying so, `defines` those of the op.
    ///
    /// # Errors
    /// `Unsupported` with the compiler's log.
    pub fn compile(
        &self,
        arch: &str,
        name: &str,
        KernelText { text, headers }: KernelText,
        own: &[&str],
        defines: &[String],
    ) -> Result<Vec<u8>> {
        let file = c_text(&format!("{name}.cu"))?;
        let text = c_text(text)?;
        let names: Vec<CString> = headers.iter().map(|(name, _)| c_text(name)).collect::<Result<_>>()?;
        let texts: Vec<CString> = headers.iter().map(|(_, text)| c_text(text)).collect::<Result<_>>()?;
        let options = own.iter().copied().chain(defines.iter().map(String::as_str));
        let options: Vec<CString> = options.map(c_text).collect::<Result<_>>()?;
        let mut program = Program(self, std::ptr::null_mut());
        let (names, texts, options) = (pointers(&names), pointers(&texts), pointers(&options));
        // SAFETY: all texts end in 0 and outlive the calls; the arrays have the lengths given.
        unsafe {
            let code = (self.create)(
                &mut program.1,
                text.as_ptr(),
                file.as_ptr(),
                headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            );
            self.check("CreateProgram", code)?;
            let code = (self.compile)(program.1, options.len() as c_int, options.as_ptr());
            if matches!(code, COMPILATION | INVALID_OPTION) {
                return Err(Error::unsupported(format!(
                    "{name}.cu ({}) does not compile for {arch} with {}:\n{}",
                    defines.join(" "),
                    self.version()?,
                    self.log(&program)
                )));
            }
            self.check("CompileProgram", code)?;
            let mut bytes = 0;
            self.check("GetCodeSize", (self.code_size)(program.1, &mut bytes))?;
            let mut image = vec![0u8; bytes];
            self.check("GetCode", (self.code)(program.1, image.as_mut_ptr().cast()))?;
            Ok(image)
        }
    }

    /// What the compiler said, cut to a readable length.
    fn log(&self, program: &Program<'_>) -> String {
        let mut bytes = 0;
        let mut log = Vec::new();
        // SAFETY: a live program, and a buffer of the size that the library asks for.
        unsafe {
            if (self.log_size)(program.1, &mut bytes) == SUCCESS {
                log.resize(bytes, 0u8);
                (self.log)(program.1, log.as_mut_ptr().cast());
            }
        }
        let text = String::from_utf8_lossy(&log);
        let text = text.trim_end_matches('\0').trim();
        match text.char_indices().nth(MAX_LOG) {
            Some((end, _)) => format!("{} …", &text[..end]),
            None => text.to_string(),
        }
    }
}
