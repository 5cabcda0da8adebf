//! Every kind of damaged library file is refused at its stage with a reason, and the process lives on.

mod support;

use std::path::Path;

use halyard_plugin_host::{Kind, PluginError, Stage, inspect, select_platform};
use support::{assert_stage, build, build_with, catalog_of, folder};

/// What selecting a platform from this library alone fails with.
#[track_caller]
fn refusal(library: &Path) -> PluginError {
    match select_platform(&catalog_of(library), Some("minimal")) {
        Ok(_) => panic!("{} loaded", library.display()),
        Err(error) => error,
    }
}

#[track_caller]
fn refused(name: &str, macros: &[&str], stage: Stage, words: &[&str]) {
    let library = build(&folder(name), "lib.so", macros);
    assert_stage(&refusal(&library), stage, words);
}

#[test]
fn a_newer_major_version_is_refused_before_its_code_runs() {
    refused(
        "newer_major",
        &["ABI=\"9.0\""],
        Stage::Manifest,
        &["ABI 0.2", "ABI 9.0", "minimal", "install"],
    );
}

#[test]
fn an_entry_that_answers_another_version_than_its_manifest_is_refused() {
    refused(
        "lying_major",
        &["BROKEN_ANSWERS_MAJOR"],
        Stage::Negotiated,
        &["answered ABI 9.2"],
    );
}

#[test]
fn a_plugin_may_refuse_the_host_with_words() {
    refused(
        "refuses_host",
        &["BROKEN_REFUSES_HOST"],
        Stage::Negotiated,
        &["wants a host of ABI 0.7", "vendor code 42"],
    );
}

#[test]
fn an_entry_that_fails_is_told_with_the_vendors_words() {
    refused(
        "entry_error",
        &["BROKEN_ENTRY_ERROR"],
        Stage::Started,
        &["licence server", "Unavailable"],
    );
}

#[test]
fn a_missing_required_function_is_named() {
    refused(
        "null_slot",
        &["BROKEN_NULL_SLOT"],
        Stage::Negotiated,
        &["interface device", "wait"],
    );
}

#[test]
fn a_table_that_ends_too_early_lacks_its_last_functions() {
    let words = ["interface device", "encode, encoder_finish, command_drop"];
    refused("smaller_table", &["BROKEN_SMALLER_TABLE"], Stage::Negotiated, &words);
}

#[test]
fn a_missing_required_interface_is_named() {
    refused("no_ops", &["BROKEN_NO_OPS"], Stage::Negotiated, &["interface ops"]);
}

#[test]
fn null_tables_and_functions_are_refused() {
    refused(
        "null_tables",
        &["BROKEN_NULL_TABLES"],
        Stage::Negotiated,
        &["null table"],
    );
    refused(
        "null_interface",
        &["BROKEN_NULL_INTERFACE"],
        Stage::Negotiated,
        &["found null"],
    );
}

#[test]
fn an_entry_that_answers_another_name_is_refused() {
    refused(
        "other_name",
        &["BROKEN_OTHER_NAME"],
        Stage::Negotiated,
        &["`maximal`", "`minimal`"],
    );
}

#[test]
fn a_missing_entry_symbol_is_named() {
    refused(
        "no_entry",
        &["ENTRY=\"nowhere_entry\""],
        Stage::Entry,
        &["nowhere_entry"],
    );
}

#[test]
fn a_missing_or_broken_manifest_is_refused() {
    refused(
        "no_manifest",
        &["BROKEN_NO_MANIFEST"],
        Stage::Manifest,
        &[".halyard.manifest"],
    );
    refused(
        "text_manifest",
        &["BROKEN_MANIFEST_TEXT"],
        Stage::Manifest,
        &["object 0 is not a manifest"],
    );
}

#[test]
fn processor_features_that_lack_are_named() {
    let macros = ["FEATURES=\"fictional_9\""];
    refused("features", &macros, Stage::Architecture, &["without fictional_9"]);
}

#[test]
fn a_missing_needed_library_is_named() {
    let folder = folder("needed");
    let other = build(&folder, "libfictional_driver.so", &["BROKEN_NO_MANIFEST"]);
    let at = folder.to_str().expect("the scratch folder's path is UTF-8");
    let flags = ["-Wl,--no-as-needed", "-L", at, "-lfictional_driver"];
    let library = build_with(&folder, "lib.so", &[], &flags);
    std::fs::remove_file(other).expect("the library is there");
    assert_stage(
        &refusal(&library),
        Stage::Libraries,
        &["the library libfictional_driver.so", "loader path"],
    );
    let report = inspect(&library).expect("inspecting runs nothing");
    assert!(
        report.needed.iter().any(|n| n == "libfictional_driver.so"),
        "{:?}",
        report.needed
    );
}

#[test]
fn an_undefined_symbol_is_refused_by_the_systems_loader() {
    let folder = folder("undefined");
    let source = "int fictional(void); int call(void) { return fictional(); }\n";
    std::fs::write(folder.join("call.c"), source).expect("the scratch folder is writable");
    let call = folder.join("call.c");
    let library = build_with(&folder, "lib.so", &[], &[call.to_str().expect("UTF-8")]);
    assert_stage(&refusal(&library), Stage::Opened, &["fictional"]);
}

#[test]
fn a_text_file_is_not_a_library() {
    let path = folder("text").join("lib.so");
    std::fs::write(&path, "hello, I am not a library\n").expect("the scratch folder is writable");
    assert_stage(&refusal(&path), Stage::Found, &["not an ELF file", "hello"]);
    assert!(inspect(&path).is_err());
}

#[test]
fn inspecting_a_pipe_is_refused_and_does_not_wait_for_a_writer() {
    let pipe = folder("pipe").join("lib.so");
    let _ = std::fs::remove_file(&pipe);
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let error = inspect(&pipe).expect_err("no library");
    assert!(error.to_string().contains("no regular file"), "{error}");
}

#[test]
fn an_empty_missing_or_directory_path_is_refused() {
    let folder = folder("nothing");
    let empty = folder.join("empty.so");
    std::fs::write(&empty, "").expect("the scratch folder is writable");
    assert_stage(&refusal(&empty), Stage::Found, &["not an ELF file"]);
    assert_stage(
        &refusal(&folder.join("absent.so")),
        Stage::Found,
        &["absent.so", "No such file"],
    );
    assert_stage(&refusal(&folder), Stage::Found, &["not a file"]);
}

#[test]
fn another_machines_library_is_refused_before_its_code_runs() {
    let library = build(&folder("machine"), "lib.so", &[]);
    let mut bytes = std::fs::read(&library).expect("the library was built");
    // e_machine, 16 bits at 18: RISC-V.
    bytes[18..20].copy_from_slice(&243u16.to_le_bytes());
    std::fs::write(&library, bytes).expect("the library is writable");
    assert_stage(
        &refusal(&library),
        Stage::Architecture,
        &["riscv, 64-bit", std::env::consts::ARCH],
    );
    let report = inspect(&library).expect("inspecting works for any machine");
    assert!(!report.runs_here);
    assert_eq!(report.manifests[0].name, "minimal");
}

#[test]
fn a_library_cut_anywhere_is_refused_and_never_crashes() {
    let folder = folder("truncated");
    let library = build(&folder, "whole.so", &[]);
    let bytes = std::fs::read(&library).expect("the library was built");
    let cut = folder.join("cut.so");
    let step = (bytes.len() / 97).max(1);
    for len in (0..bytes.len())
        .step_by(step)
        .chain([4, 5, 16, 63, 64, bytes.len() - 1])
    {
        std::fs::write(&cut, &bytes[..len]).expect("the scratch folder is writable");
        let error = refusal(&cut);
        let PluginError::Stage(failure) = &error else {
            panic!("{len} bytes: {error}");
        };
        assert!(failure.stage <= Stage::Manifest, "{len} bytes: {error}");
    }
}

#[test]
fn a_segment_past_the_files_end_is_refused() {
    let library = build(&folder("segment"), "lib.so", &[]);
    let mut bytes = std::fs::read(&library).expect("the library was built");
    let at = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes")) as usize;
    // ELF64: the program headers' offset stands at 32; of each header's 56 bytes, the size in the file at 32.
    let headers = at(32);
    let first_load = (0..)
        .map(|i| headers + 56 * i)
        .find(|&h| bytes[h..h + 4] == [1, 0, 0, 0])
        .expect("a segment");
    bytes[first_load + 32..first_load + 40].copy_from_slice(&0x10_0000u64.to_le_bytes());
    std::fs::write(&library, bytes).expect("the library is writable");
    assert_stage(&refusal(&library), Stage::Found, &["a segment ends at byte 1048576"]);
}

#[test]
fn a_device_less_platform_gives_its_reason() {
    refused(
        "no_device",
        &["BROKEN_NO_DEVICE"],
        Stage::Devices,
        &["no minimal chip", "driver"],
    );
}

#[test]
fn a_broken_explicit_library_stops_every_selection() {
    let path = folder("explicit").join("broken.so");
    std::fs::write(&path, "text").expect("the scratch folder is writable");
    let catalog = catalog_of(&path);
    let error = select_platform(&catalog, None).err().expect("nothing may start");
    assert_stage(&error, Stage::Found, &["broken.so"]);
    assert!(catalog.find(Kind::Platform, "minimal").is_err());
    let why = catalog.why("broken").expect("it answers to its file name");
    assert!(!why[0].passed && why[0].stage == Stage::Found);
    // A name that no plugin and no file has: what there is instead, of whatever kind.
    let error = catalog.why("borken").expect_err("there is no such plugin").to_string();
    for part in [
        "`borken`",
        "did you mean `broken.so`?",
        "found: broken.so (not usable)",
        "searched",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
