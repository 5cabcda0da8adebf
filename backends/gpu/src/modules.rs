//! Compiled kernel files: one image per file, definitions and device, kept in memory. What was compiled ahead is not
//! compiled here; what is, is kept on disk where a folder is given, one file for each compiler too. A file on disk is
//! believed only when its length and hash are right.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Instant;

use halyard_kernels_gpu::Source;
use halyard_platform_api::{Result, log};
use sha2::{Digest, Sha256};

use crate::cache::write_whole;
use crate::driver::{Driver, Function, Module};
use crate::prebuilt::{KernelKey, PrebuiltKernels, kernel_key};

/// First bytes of a cached image; the number changes with the layout.
const MAGIC: &[u8; 16] = b"halyard image 1\n";
const HASH_BYTES: usize = 32;

/// One kernel file under one set of definitions.
#[derive(Default)]
struct Compiled {
    module: Option<Module>,
    /// By entry point, with the dynamic shared memory that it was made ready for.
    functions: HashMap<String, (Function, u32)>,
}

/// Each by itself, so that several files are compiled at once.
type Known = HashMap<String, Arc<Mutex<Compiled>>>;

/// The results of self-tests of functions.
type Tested = Mutex<HashMap<Function, bool>>;

/// Most files that are compiled at once: a compiler takes some hundred MB for each.
const MAX_COMPILERS: usize = 16;

/// The compiled files of one device.
pub struct Modules {
    prebuilt: Option<PrebuiltKernels>,
    folder: Option<PathBuf>,
    known: Mutex<Known>,
    tested: Tested,
    /// Files that may yet be compiled beside those that are.
    compilers: Mutex<usize>,
    compiled: Condvar,
}

/// The right to compile a file, given back at its end.
struct Compiler<'a>(&'a Modules);

impl Drop for Compiler<'_> {
    fn drop(&mut self) {
        *lock(&self.0.compilers) += 1;
        self.0.compiled.notify_one();
    }
}

impl Default for Modules {
    fn default() -> Modules {
        Modules::with_folder(None)
    }
}

impl Modules {
    /// With images kept in `folder` too.
    pub fn with_folder(folder: Option<PathBuf>) -> Modules {
        Modules::new(None, folder)
    }

    /// The same with what was compiled ahead.
    pub fn new(prebuilt: Option<PrebuiltKernels>, folder: Option<PathBuf>) -> Modules {
        let compilers = available_parallelism().map_or(1, |n| n.get().min(MAX_COMPILERS));
        Modules {
            prebuilt,
            folder,
            known: Mutex::default(),
            tested: Mutex::default(),
            compilers: Mutex::new(compilers),
            compiled: Condvar::new(),
        }
    }

    /// Entry point `name` of `source` specialised by `defines`, ready to launch with `shared_bytes` of dynamic shared
    /// memory.
    ///
    /// # Errors
    /// Errors of compiler and loader.
    pub fn function(
        &self,
        driver: &dyn Driver,
        source: Source,
        defines: &[(&str, &str)],
        name: &str,
        shared_bytes: u32,
    ) -> Result<Function> {
        let mut options: Vec<String> = defines.iter().map(|(key, value)| format!("-D{key}={value}")).collect();
        if driver.policy().separate_entries {
            options.push(format!("-DENTRY_{name}"));
        }
        let asked = format!("{} {}", source.name, options.join(" "));
        let compiled = lock(&self.known).entry(asked).or_default().clone();
        // Held throughout: a file that two ops ask for at once is compiled once.
        let mut compiled = lock(&compiled);
        if let Some(&(function, ready)) = compiled.functions.get(name)
            && ready >= shared_bytes
        {
            return Ok(function);
        }
        let module = match compiled.module {
            Some(module) => module,
            None => *compiled.module.insert(self.module(driver, source, &options)?),
        };
        let function = driver.function(module, name, shared_bytes)?;
        compiled.functions.insert(name.to_string(), (function, shared_bytes));
        Ok(function)
    }

    /// What `test` of a function says, which is run once a function. Two ops that ask at once wait for one test.
    pub(crate) fn self_test(&self, function: Function, test: impl FnOnce() -> bool) -> bool {
        let mut tested = lock(&self.tested);
        *tested.entry(function).or_insert_with(test)
    }

    /// Waits until few enough files are being compiled.
    fn compiler(&self) -> Compiler<'_> {
        let free = lock(&self.compilers);
        let free = self.compiled.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Compiler(self)
    }

    fn module(&self, driver: &dyn Driver, source: Source, options: &[String]) -> Result<Module> {
        let begun = Instant::now();
        let text = driver.kernel_text(source)?;
        let key = kernel_key(source.name, text, options, &driver.facts().arch);
        let say = |how: &str, bytes: usize| {
            let (options, ms) = (options.join(" "), begun.elapsed().as_millis());
            log::debug(
                "gpu",
                &format!("{} {options}: {how} after {ms} ms, {bytes} bytes", source.name),
            );
        };
        // An image that is whole and does not load, as of a compiler that is newer than the driver, is no reason to
        // stop either.
        let loads = |image: Vec<u8>| Some((driver.load(&image).ok()?, image.len()));
        if let Some((module, bytes)) = self.prebuilt_image(&key).and_then(loads) {
            say("loaded, compiled ahead", bytes);
            return Ok(module);
        }
        let path = match &self.folder {
            Some(folder) => Some(folder.join(file_name(&key, &driver.compiler()?))),
            None => None,
        };
        if let Some((module, bytes)) = path.as_deref().and_then(read_image).and_then(loads) {
            say("loaded from the cache", bytes);
            return Ok(module);
        }
        let compiler = self.compiler();
        let image = driver.compile(source.name, text, options)?;
        drop(compiler);
        say("compiled", image.len());
        let module = driver.load(&image)?;
        say("loaded", image.len());
        if let Some(path) = path {
            write_image(&path, &image);
        }
        Ok(module)
    }

    fn prebuilt_image(&self, key: &KernelKey) -> Option<Vec<u8>> {
        let read = self.prebuilt.as_ref()?.image(key);
        read.unwrap_or_else(|error| {
            log::warn(
                "gpu",
                &format!("kernels that were compiled ahead: {error}; compiling instead"),
            );
            None
        })
    }
}

fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cache file of a kernel by one compiler.
fn file_name(key: &KernelKey, compiler: &str) -> String {
    let hash = Sha256::new().chain_update(key).chain_update(compiler).finalize();
    let hex: String = hash[..20].iter().map(|byte| format!("{byte:02x}")).collect();
    hex + ".image"
}

/// The image in a cache file; `None` when there is none or it is not whole.
fn read_image(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let rest = bytes.strip_prefix(&MAGIC[..])?;
    let (length, rest) = rest.split_at_checked(8)?;
    let (hash, image) = rest.split_at_checked(HASH_BYTES)?;
    let whole = length == (image.len() as u64).to_le_bytes() && !image.is_empty() && Sha256::digest(image)[..] == *hash;
    whole.then(|| image.to_vec())
}

/// Keeps an image: see [`write_whole`].
fn write_image(path: &Path, image: &[u8]) {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(image.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&Sha256::digest(image));
    bytes.extend_from_slice(image);
    write_whole(path, &bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_tested_once() {
        let modules = Modules::default();
        assert!(!modules.self_test(Function(1), || false));
        assert!(modules.self_test(Function(2), || true));
        assert!(!modules.self_test(Function(1), || unreachable!("its test has been run")));
    }

    #[test]
    fn a_kept_image_comes_back_and_a_damaged_one_does_not() {
        let folder = std::env::temp_dir().join(format!("halyard-images-{}", std::process::id()));
        let path = folder.join("deeper").join("a.image");
        assert_eq!(read_image(&path), None);
        let image: Vec<u8> = (0..300u32).map(|i| (i * 7) as u8).collect();
        write_image(&path, &image);
        assert_eq!(read_image(&path), Some(image));
        let whole = std::fs::read(&path).expect("written");
        for at in [0, 20, 30, 60, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, damaged).expect("written");
            assert_eq!(read_image(&path), None, "byte {at} is another");
            std::fs::write(&path, &whole[..at]).expect("written");
            assert_eq!(read_image(&path), None, "cut at {at}");
        }
        let longer = [&whole[..], b"x"].concat();
        std::fs::write(&path, longer).expect("written");
        assert_eq!(read_image(&path), None, "a byte too many");
        let left: Vec<_> = std::fs::read_dir(folder.join("deeper"))
            .expect("there")
            .flatten()
            .collect();
        assert_eq!(left.len(), 1, "no parts are left over: {left:?}");
        std::fs::remove_dir_all(folder).expect("ours");
    }
}
