//! How random cases are tried.

use proptest::prelude::ProptestConfig;

/// How a property of a policy is tried: 10,000 random cases, unless `PROPTEST_CASES` says otherwise.
pub(crate) fn thorough() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 10_000;
    }
    config
}
