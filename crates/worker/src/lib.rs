//! Reference worker of Attune: claims executions, runs them, reports.
