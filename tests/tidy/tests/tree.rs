//! This tree keeps its invariants. Every failure lists file, line and what to do.

use halyard_tidy::{Finding, arrows, circles, documents, rules, test_files, tree};

/// Fails with all findings at once.
#[track_caller]
fn assert_none(rule: &str, findings: &[Finding]) {
    let list: Vec<String> = findings.iter().map(|finding| format!("  {finding}")).collect();
    assert!(
        findings.is_empty(),
        "{rule}: {} found\n{}",
        findings.len(),
        list.join("\n")
    );
}

fn assert_kept(rule: &str) {
    let files = tree::text_files(&tree::root()).expect("the repository can be read");
    assert!(
        files.iter().any(|file| file.path == "tests/tidy/tests/tree.rs"),
        "the listing misses this very file"
    );
    let (_, check) = rules::RULES
        .iter()
        .find(|(name, _)| *name == rule)
        .expect("a rule of the list");
    let findings: Vec<Finding> = files.iter().flat_map(|file| check(&file.path, &file.text)).collect();
    assert_none(rule, &findings);
}

#[test]
fn packages_use_each_other_as_the_map_says() {
    let metadata = tree::metadata(&tree::root()).expect("cargo describes the workspace");
    let packages = arrows::packages(&metadata).expect("metadata is as documented");
    assert!(
        packages.iter().any(|package| package.folder == "platform-api"),
        "the map's packages are there"
    );
    assert_none("arrows", &arrows::check(&packages));
}

#[test]
fn runtime_and_server_name_no_vendor() {
    assert_kept("vendor words");
}

#[test]
fn unsafe_stands_only_in_its_places() {
    assert_kept("unsafe");
}

#[test]
fn only_the_plugin_host_opens_libraries() {
    assert_kept("libraries are opened in one place");
}

#[test]
fn only_the_server_reads_the_environment() {
    assert_kept("environment");
}

#[test]
fn the_scheduler_is_pure() {
    assert_kept("purity of the scheduler");
}

#[test]
fn no_registry_host_or_machine_path_is_written_down() {
    assert_kept("hosts and machine paths");
}

#[test]
fn files_of_code_are_short_enough_to_read() {
    assert_kept("length");
}

#[test]
fn every_rust_file_says_its_idea_first() {
    assert_kept("header");
}

#[test]
fn nothing_is_unfinished_or_ignored() {
    assert_kept("stubs");
}

#[test]
fn every_package_inherits_the_lints() {
    assert_kept("lints");
}

#[test]
fn modules_form_no_circles() {
    let files = tree::text_files(&tree::root()).expect("the repository can be read");
    assert_none("circles", &circles::check(&files));
}

#[test]
fn every_file_of_tests_runs() {
    let files = tree::text_files(&tree::root()).expect("the repository can be read");
    assert_none("test files", &test_files::check(&files));
}

#[test]
fn documents_are_narrow_enough_to_read() {
    assert_kept("width of documents");
}

#[test]
fn code_is_narrow_enough_to_read() {
    assert_kept("width of code");
}

/// Largest picture in bytes: every clone of the repository has all of them.
const MAX_PICTURE_BYTES: u64 = 200_000;

#[test]
fn pictures_are_small() {
    let files = tree::text_files(&tree::root()).expect("the repository can be read");
    let pictures = files.iter().filter(|file| file.path.ends_with(".png"));
    for picture in pictures {
        let bytes = std::fs::metadata(tree::root().join(&picture.path)).map_or(0, |facts| facts.len());
        assert!(
            bytes <= MAX_PICTURE_BYTES,
            "{} has {bytes} bytes, more than {MAX_PICTURE_BYTES}",
            picture.path
        );
    }
}

#[test]
fn links_lead_somewhere_and_decisions_are_numbered_once() {
    let files = tree::text_files(&tree::root()).expect("the repository can be read");
    assert_none("links", &documents::links(&files));
    assert_none("decisions", &documents::decisions(&files));
}

#[test]
fn quoted_errors_are_said_and_the_site_has_every_page() {
    let files = tree::text_files(&tree::root()).expect("the repository can be read");
    assert_none("quoted errors", &documents::quoted_errors(&files));
    assert_none("the site's pages", &documents::summary(&files));
}
