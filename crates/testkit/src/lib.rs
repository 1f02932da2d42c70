//! Test helpers of Attune.
