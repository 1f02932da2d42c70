//! The build script of `attune-core`, which has the bugs that can be planted, and of the program:
//! `ATTUNE_PLANTS=1 cargo build` makes programs to which `ATTUNE_PLANT=NAME` gives one of them when
//! they run. It is a variable and no feature, so that no ordinary way of building, `--all-features`
//! neither, can plant anything. `scripts/plants` and `scripts/chaos --plant` build into a folder of
//! their own, once for all bugs.

fn main() {
    println!("cargo::rerun-if-env-changed=ATTUNE_PLANTS");
    println!("cargo::rustc-check-cfg=cfg(attune_plants)");
    if std::env::var_os("ATTUNE_PLANTS").is_some_and(|value| !value.is_empty()) {
        println!("cargo::rustc-cfg=attune_plants");
    }
    let fact = |name: &str| std::env::var(name).expect("cargo names it to every build script");
    println!(
        "cargo::rustc-env=VERSION_BUILT={} ({} build for {})",
        fact("CARGO_PKG_VERSION"),
        fact("PROFILE"),
        fact("TARGET"),
    );
}
