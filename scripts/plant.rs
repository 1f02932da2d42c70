//! The build script of `attune-core`, which has the bugs that can be planted, and of the program:
//! `ATTUNE_PLANTS=1 cargo build` makes programs to which `ATTUNE_PLANT=NAME` gives one of them when
//! they run. It is a variable and no feature, so that no ordinary way of building, `--all-features`
//! neither, can plant anything. `scripts/plants` and `scripts/chaos --plant` build into a folder of
//! their own, once for all bugs.
//!
//! `ATTUNE_NEXT=1` likewise makes the program that a next release could be: it adds a migration to both stores, and
//! says of itself in the messages between processes that it is newer. `scripts/try-upgrade` builds it, into a folder
//! of its own as well.

fn main() {
    println!("cargo::rerun-if-env-changed=ATTUNE_PLANTS");
    println!("cargo::rustc-check-cfg=cfg(attune_plants)");
    if std::env::var_os("ATTUNE_PLANTS").is_some_and(|value| !value.is_empty()) {
        println!("cargo::rustc-cfg=attune_plants");
    }
    println!("cargo::rerun-if-env-changed=ATTUNE_NEXT");
    println!("cargo::rustc-check-cfg=cfg(attune_next)");
    let is_next = std::env::var_os("ATTUNE_NEXT").is_some_and(|value| !value.is_empty());
    if is_next {
        println!("cargo::rustc-cfg=attune_next");
    }
    let fact = |name: &str| std::env::var(name).expect("cargo names it to every build script");
    println!(
        "cargo::rustc-env=VERSION_BUILT={}{} ({} build for {})",
        fact("CARGO_PKG_VERSION"),
        if is_next { "+next" } else { "" },
        fact("PROFILE"),
        fact("TARGET"),
    );
}
