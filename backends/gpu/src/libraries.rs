//! Libraries found at run time: a vendor's driver, compiler and mathematics, none of which is linked. They stay open
//! for the process's life.

use std::ffi::{CStr, CString, OsStr, OsString, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use halyard_platform_api::{Error, Result, Status};

/// The path of `file` in the folder of the library that this code is in; `None` where the loader does not know it.
pub fn beside_this_library(file: &str) -> Option<PathBuf> {
    let here: *const c_void = std::ptr::from_ref(&MARK).cast();
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the output is live. Where the loader finds the address it fills it in, and the name lives as long as the
    // library is loaded, which it is while this runs.
    let path = unsafe {
        if libc::dladdr(here, found.as_mut_ptr()) == 0 || found.assume_init_ref().dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(found.assume_init_ref().dli_fname)
    };
    let path = Path::new(OsStr::from_bytes(path.to_bytes())).canonicalize().ok()?;
    Some(path.parent()?.join(file))
}

/// A place in this library.
static MARK: u8 = 0;

/// A library by the names that it may have.
pub struct Library {
    /// As in `lib<name>.so`.
    name: &'static str,
    /// Versions it may end in, the preferred first.
    endings: &'static [&'static str],
    /// What to do where it is missing, after "lib<name>.so was not found: ".
    remedy: &'static str,
    found: OnceLock<Option<usize>>,
}

impl Library {
    /// Not looked for yet.
    pub const fn new(name: &'static str, endings: &'static [&'static str], remedy: &'static str) -> Library {
        Library {
            name,
            endings,
            remedy,
            found: OnceLock::new(),
        }
    }

    /// The loader's handle: of the first file in the folders that the operator names, by the loader's own search, or in
    /// the usual folders.
    ///
    /// # Errors
    /// `Unavailable` with the remedy.
    pub fn open(&self, named: fn() -> Vec<PathBuf>, usual: fn() -> Vec<PathBuf>) -> Result<usize> {
        let found = *self.found.get_or_init(|| {
            self.open_in(&named())
                .or_else(|| self.files(Path::new("")).find_map(|file| open(&file)))
                .or_else(|| self.open_in(&usual()))
        });
        found.ok_or_else(|| {
            let (name, ending) = (self.name, self.endings.first().unwrap_or(&""));
            let message = format!("lib{name}.so{ending} was not found: {}", self.remedy);
            Error::new(Status::Unavailable, message)
        })
    }

    fn files<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let name = move |ending: &&str| folder.join(format!("lib{}.so{ending}", self.name));
        self.endings.iter().map(name)
    }

    /// Opens it by path. Its parts that it opens later by name (a compiler's builtins) are opened first, so that they
    /// are found then.
    fn open_in(&self, folders: &[PathBuf]) -> Option<usize> {
        let files = folders.iter().flat_map(|folder| self.files(folder));
        files.filter(|file| file.is_file()).find_map(|file| {
            for part in self.parts_beside(&file) {
                open(&part);
            }
            open(&file)
        })
    }

    /// `lib<name>-builtins.so…` in the library's folder.
    fn parts_beside(&self, file: &Path) -> Vec<PathBuf> {
        let prefix = format!("lib{}-builtins.so", self.name);
        let listing = file.parent().and_then(|folder| std::fs::read_dir(folder).ok());
        let files = listing.into_iter().flatten().flatten().map(|entry| entry.path());
        let is_part = |part: &PathBuf| {
            let name = part.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(&prefix)
        };
        files.filter(is_part).collect()
    }
}

/// Opens a library.
fn open(file: &Path) -> Option<usize> {
    let path = CString::new(file.as_os_str().as_bytes()).ok()?;
    // SAFETY: a path that ends in 0; initialisers of vendors' libraries have no preconditions.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    (!handle.is_null()).then_some(handle as usize)
}

/// A function of an open library, if it has it.
pub fn find_symbol(library: usize, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle that the loader gave, and a name that ends in 0.
    let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of an open library.
///
/// # Errors
/// `Unavailable` naming it: the library is too old.
pub fn symbol(library: usize, name: &CStr) -> Result<*mut c_void> {
    find_symbol(library, name).ok_or_else(|| {
        let name = name.to_string_lossy();
        let message = format!("a library lacks {name}: it is too old; install a newer one");
        Error::new(Status::Unavailable, message)
    })
}

/// The folders of a list such as a variable holds, empty entries left out.
pub fn folders_of(list: Option<OsString>) -> Vec<PathBuf> {
    let list = list.unwrap_or_default();
    let folders = std::env::split_paths(&list);
    folders.filter(|folder| !folder.as_os_str().is_empty()).collect()
}

/// What lies in `folder` and begins with `prefix`, in name order; nothing where there is no such folder.
pub fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let listing = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = listing
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Vec<PathBuf> {
        Vec::new()
    }

    #[test]
    fn a_file_beside_the_library_is_beside_the_program_that_it_is_linked_into() {
        let program = std::env::current_exe()
            .and_then(|path| path.canonicalize())
            .expect("a path");
        assert_eq!(beside_this_library("a file"), Some(program.with_file_name("a file")));
    }

    #[test]
    fn a_list_of_folders_may_have_empty_entries() {
        let folders = |list: &str| folders_of(Some(list.into()));
        assert_eq!(folders("/a::/b c:"), ["/a", "/b c"].map(PathBuf::from));
        assert_eq!(folders(""), Vec::<PathBuf>::new());
        assert_eq!(folders_of(None), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        static MISSING: Library = Library::new("halyard_no_such", &[".9", ""], "write it");
        let error = MISSING.open(nowhere, nowhere).unwrap_err();
        assert_eq!(error.status, Status::Unavailable);
        assert_eq!(error.message, "libhalyard_no_such.so.9 was not found: write it");
    }

    #[test]
    fn the_loader_finds_what_no_folder_holds_and_symbols_are_told_apart() {
        static C: Library = Library::new("c", &[".no-such-version", ".6"], "install it");
        let handle = C.open(nowhere, nowhere).expect("every process has a C library");
        assert!(symbol(handle, c"strlen").is_ok());
        let error = symbol(handle, c"halyard_no_such").unwrap_err();
        assert!(error.message.contains("halyard_no_such"), "{error}");
    }
}
