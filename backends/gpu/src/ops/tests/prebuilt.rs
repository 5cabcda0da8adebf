//! What was compiled ahead is loaded and not compiled; all else is compiled as ever.

use std::collections::BTreeMap;

use halyard_kernels_gpu::{LOGITS, SAMPLE};

use super::devices;
use super::recorder::Recorder;
use crate::driver::Driver;
use crate::modules::Modules;
use crate::prebuilt::{PrebuiltKernels, kernel_key, prebuilt_file};

#[test]
fn a_kernel_of_the_file_is_not_compiled_and_others_are() {
    let recorder = Recorder::new(devices::all().swap_remove(0));
    let driver: &dyn Driver = &recorder;
    let text = driver.kernel_text(SAMPLE).expect("a text");
    let (options, arch) = (["-DBLOCK=256".to_string()], &driver.facts().arch);
    let key = kernel_key(SAMPLE.name, text, &options, arch);
    let images = BTreeMap::from([(key, b"from the file".to_vec())]);
    let path = std::env::temp_dir().join(format!("halyard-prebuilt-{}", std::process::id()));
    std::fs::write(&path, prebuilt_file(&images).expect("small")).expect("a temporary file");
    let modules = Modules::new(PrebuiltKernels::open(&path), None);
    std::fs::remove_file(&path).expect("ours");
    let asked = |source, defines: &[(&str, &str)]| {
        let function = modules
            .function(driver, source, defines, "entry", 0)
            .expect("a function");
        recorder.asked(function.0)
    };
    assert_eq!(asked(SAMPLE, &[("BLOCK", "256")]), "entry 0 of from the file");
    // Another set of definitions and another file are not in it.
    assert_eq!(asked(SAMPLE, &[("BLOCK", "128")]), "entry 0 of sample -DBLOCK=128");
    assert_eq!(asked(LOGITS, &[]), "entry 0 of logits ");
}
