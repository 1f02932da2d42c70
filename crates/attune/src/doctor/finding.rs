//! What was found.

use serde::Serialize;

use super::pages::CONFIGURATION;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// It could not be looked at, for a reason that is no fault.
    Skipped,
    /// It works, and somebody should look.
    Warning,
    /// It does not work, or what was accepted may be lost.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// What, in one or two words.
    pub(super) name: &'static str,
    pub(super) state: State,
    /// What was seen.
    pub(super) says: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
    /// Where more is written, below the root of the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) docs: Option<&'static str>,
}

/// What was found in one area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) area: &'static str,
    pub(super) checks: Vec<Check>,
    /// Whoever is asked has not answered in time: nothing more is asked, or it would be waited for again and again.
    silent: bool,
}

/// Why something is not asked any more.
pub(super) const SILENT: &str = "it has stopped answering";

/// What to do, and where more is written.
pub(super) type Advice<'a> = (&'a str, &'static str);

impl Findings {
    pub(super) fn of(area: &'static str) -> Self {
        Self {
            area,
            checks: Vec::new(),
            silent: false,
        }
    }

    /// Of an area that has not answered.
    pub(super) fn silent(area: &'static str, who: &str) -> Self {
        let mut found = Self::of(area);
        let says = format!(
            "{who} does not answer within {} s",
            super::PATIENCE.as_secs()
        );
        let advice = "find out what it waits for: a disk or a network file system that hangs";
        found.problem("reachable", says, (advice, CONFIGURATION));
        found
    }

    /// Of an area that depends on another.
    pub(super) fn unreached(area: &'static str, why: &str) -> Self {
        let mut found = Self::of(area);
        found.skip("everything", why);
        found
    }

    /// Whether nothing more is to be asked.
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Notes that nobody answers, in words.
    pub(super) fn fell_silent(&mut self) -> String {
        self.silent = true;
        format!("no answer within {} s", super::PATIENCE.as_secs())
    }

    pub(super) fn worst(&self) -> State {
        let states = self.checks.iter().map(|check| check.state);
        states.max().unwrap_or(State::Ok)
    }

    /// It is as it should be.
    pub(super) fn ok(&mut self, name: &'static str, says: impl Into<String>) {
        self.add(name, State::Ok, says.into(), None);
    }

    /// It could not be looked at.
    pub(super) fn skip(&mut self, name: &'static str, why: impl Into<String>) {
        self.add(name, State::Skipped, why.into(), None);
    }

    /// Somebody should look.
    pub(super) fn warn(&mut self, name: &'static str, says: impl Into<String>, advice: Advice<'_>) {
        self.add(name, State::Warning, says.into(), Some(advice));
    }

    /// It does not work.
    pub(super) fn problem(
        &mut self,
        name: &'static str,
        says: impl Into<String>,
        advice: Advice<'_>,
    ) {
        self.add(name, State::Problem, says.into(), Some(advice));
    }

    /// The first of these that holds, else that all is well.
    pub(super) fn first<const N: usize>(
        &mut self,
        name: &'static str,
        faults: [(bool, State, String, Advice<'_>); N],
        well: impl FnOnce() -> String,
    ) {
        match faults.into_iter().find(|(holds, ..)| *holds) {
            Some((_, state, says, advice)) => self.add(name, state, says, Some(advice)),
            None => self.ok(name, well()),
        }
    }

    /// With what the loader of the settings has noticed.
    pub(super) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        for says in warnings {
            let advice = "write it with two underscores, or take it away";
            self.warn("variables", says, (advice, CONFIGURATION));
        }
        self
    }

    fn add(&mut self, name: &'static str, state: State, says: String, advice: Option<Advice<'_>>) {
        // It may quote what somebody else wrote, and URLs.
        let plain = |text: &str| {
            let text = attune_config::redact_urls(text);
            attune_core::foreign::shown(&text).to_string()
        };
        self.checks.push(Check {
            name,
            state,
            says: plain(&says),
            advice: advice.map(|(words, _)| plain(words)),
            docs: advice.map(|(_, page)| page),
        });
    }
}
