//! The tests in Python that specify the kernel, tried with the kernel of this tree.
//!
//! `cargo mutants` calls this for mutants that the tests in Rust let live: see
//! `devtools/mutants/README.md`. `REPRISE_TESTS` is the command, which is called in `REPRISE_ROOT`
//! and is told the built module by `REPRISE_KERNEL`.

use std::env;
use std::path::Path;
use std::process::Command;

#[test]
fn the_kernel_is_what_its_tests_in_python_say() {
    let native = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--package", "reprise-kernel"]).current_dir(native);
    assert!(build.status().expect("cargo").success(), "the kernel was not built");

    let program = env::current_exe().expect("this test's file, in target/debug/deps");
    let target = program.ancestors().nth(2).expect("target/debug");
    let mut tests = Command::new("sh");
    tests
        .args(["-c", &env::var("REPRISE_TESTS").expect("REPRISE_TESTS")])
        .current_dir(env::var("REPRISE_ROOT").expect("REPRISE_ROOT"))
        .env("REPRISE_KERNEL", target.join("lib_native.so"));
    assert!(tests.status().expect("sh").success(), "a test in Python failed");
}
