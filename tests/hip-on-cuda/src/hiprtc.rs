//! hiprtc over NVRTC: the same calls and codes; options are translated, and kernels compile as CUDA in their portable
//! words.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use halyard_gpu::{Library, symbol};

use crate::cuda::{named, usual};
use crate::{Code, api};

/// What the architecture's name begins with; the compute capability follows.
pub(crate) const ARCH: &str = "gfx-on-sm_";

/// The compiler is missing: the library's own code for what went wrong inside.
const INTERNAL_ERROR: Code = 11;

static LIBRARY: Library = Library::new("nvrtc", &[".13", ".12", ""], "install NVRTC");

/// A function of NVRTC by name, as whatever type it has.
fn nvrtc(name: &CStr) -> Option<*mut c_void> {
    static HANDLE: OnceLock<Option<usize>> = OnceLock::new();
    let library = (*HANDLE.get_or_init(|| LIBRARY.open(named, usual).ok()))?;
    symbol(library, name).ok()
}

type Texts = *const *const c_char;

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) = $nvrtc:literal;)*) => {
        api! {
            $( fn $name($($arg: $ty),*) -> Code {
                match nvrtc($nvrtc) {
                    // SAFETY: NVRTC's function of this name has this type.
                    Some(found) => std::mem::transmute::<*mut c_void,
                        unsafe extern "C" fn($($ty),*) -> Code>(found)($($arg),*),
                    None => INTERNAL_ERROR,
                }
            } )*
        }
    };
}

forward! {
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) = c"nvrtcVersion";
    fn hiprtcCreateProgram(program: *mut usize, text: *const c_char, name: *const c_char, count: c_int, headers: Texts,
        names: Texts) = c"nvrtcCreateProgram";
    fn hiprtcDestroyProgram(program: *mut usize) = c"nvrtcDestroyProgram";
    fn hiprtcGetProgramLogSize(program: usize, bytes: *mut usize) = c"nvrtcGetProgramLogSize";
    fn hiprtcGetProgramLog(program: usize, log: *mut c_char) = c"nvrtcGetProgramLog";
    fn hiprtcGetCodeSize(program: usize, bytes: *mut usize) = c"nvrtcGetCUBINSize";
    fn hiprtcGetCode(program: usize, code: *mut c_char) = c"nvrtcGetCUBIN";
}

/// An option in NVRTC's words; `None`: it has none.
fn translated(option: &str) -> Option<String> {
    match option {
        "-O3" => None,
        "-std=c++17" => Some("--std=c++17".to_string()),
        _ => match option
            .strip_prefix("--offload-arch=")
            .and_then(|arch| arch.strip_prefix(ARCH))
        {
            Some(capability) => Some(format!("--gpu-architecture=sm_{capability}")),
            // Definitions are the same; NVRTC names what it does not know.
            None => Some(option.to_string()),
        },
    }
}

api! {
    fn hiprtcCompileProgram(program: usize, count: c_int, options: Texts) -> Code {
        let Some(compile) = nvrtc(c"nvrtcCompileProgram") else { return INTERNAL_ERROR };
        let given = (0..count as usize).map(|i| CStr::from_ptr(*options.add(i)).to_string_lossy());
        let all = given.filter_map(|option| translated(&option)).chain(["-DPORTABLE".to_string()]);
        let all: Vec<CString> = all.filter_map(|option| CString::new(option).ok()).collect();
        let pointers: Vec<*const c_char> = all.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: NVRTC's function of this name has this type; the options outlive the call.
        let compile = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, c_int, Texts) -> Code>(compile);
        compile(program, pointers.len() as c_int, pointers.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::translated;

    #[test]
    fn options_become_the_other_compilers() {
        let sm = translated("--offload-arch=gfx-on-sm_90");
        assert_eq!(sm.as_deref(), Some("--gpu-architecture=sm_90"));
        assert_eq!(translated("-O3"), None);
        assert_eq!(translated("-DACT=bf16").as_deref(), Some("-DACT=bf16"));
        // Another architecture is left for NVRTC to refuse.
        assert_eq!(
            translated("--offload-arch=gfx942").as_deref(),
            Some("--offload-arch=gfx942")
        );
    }
}
