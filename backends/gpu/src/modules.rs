//! Compiled kernel files: one image per file, definitions, device and compiler, kept in memory and on disk.

use halyard_kernels_gpu::Source;
use halyard_platform_api::{Error, Result};

use crate::driver::{Driver, Function};

/// The compiled files of one device.
#[derive(Default)]
pub struct Modules {}

impl Modules {
    /// Entry point `name` of `source` specialised by `defines`.
    ///
    /// # Errors
    /// What compiler and loader report.
    pub fn function(
        &self,
        driver: &dyn Driver,
        source: Source,
        defines: &[(&str, &str)],
        name: &str,
        shared_bytes: u32,
    ) -> Result<Function> {
        let _ = (driver, defines, name, shared_bytes);
        Err(Error::unsupported(format!("{} is not compiled yet", source.name)))
    }
}
