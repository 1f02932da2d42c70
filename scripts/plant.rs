//! The build script of every crate that a bug can be planted in: `ATTUNE_PLANT=NAME cargo build`
//! compiles the code under `#[cfg(attune_plant = "NAME")]`. It is a variable and no feature, so
//! that no ordinary way of building, `--all-features` neither, can plant anything, and only the
//! crates with this script are compiled anew. `scripts/plants` and `scripts/chaos --plant` build
//! into a folder of their own.

/// Every bug that can be planted by building; see `scripts/plants`.
const PLANTS: [&str; 10] = [
    "ack-first",
    "cancel-db",
    "counter",
    "no-claim",
    "no-fence",
    "refused-loop",
    "reload-storm",
    "requeue",
    "stop-the-world",
    "wall-clock",
];

fn main() {
    println!("cargo::rerun-if-env-changed=ATTUNE_PLANT");
    let names = PLANTS.map(|name| format!("{name:?}")).join(", ");
    println!("cargo::rustc-check-cfg=cfg(attune_plant, values({names}))");
    let fact = |name: &str| std::env::var(name).expect("cargo names it to every build script");
    let version = fact("CARGO_PKG_VERSION");
    let built = format!("({} build for {})", fact("PROFILE"), fact("TARGET"));
    let plant = std::env::var("ATTUNE_PLANT").unwrap_or_default();
    if plant.is_empty() {
        println!("cargo::rustc-env=ATTUNE_VERSION={version} {built}");
        return;
    }
    assert!(
        PLANTS.contains(&plant.as_str()),
        "ATTUNE_PLANT={plant}: there is no such bug to plant; there are {names}"
    );
    println!("cargo::rustc-cfg=attune_plant={plant:?}");
    println!("cargo::rustc-env=ATTUNE_VERSION={version} with the planted bug {plant} {built}");
}
