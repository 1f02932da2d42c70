//! The manual pages and what completes the command line, made from the command line itself.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

/// What a shell reads to complete `attune`.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "attune", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `attune.1`, and `attune-COMMAND.1` for each command that is not hidden, with those below it.
pub(crate) fn write_pages(folder: &Path) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("the pages cannot be written into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_every_command_that_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(folder.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name));
        let main = page("attune.1").unwrap();
        assert!(main.contains("attune\\-executor(1)"), "{main}");
        assert!(page("attune-submit.1").unwrap().contains("SYNOPSIS"));
        assert!(page("attune-queues.1").is_ok());
        assert!(page("attune-guard.1").is_err() && page("attune-man.1").is_err());
        assert!(write_pages(&folder.path().join("missing")).is_err());
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(
                completions(shell).contains("completion-listener"),
                "{shell}"
            );
        }
    }
}
