//! What Attune promises, as the checkers name it.

use std::fmt;

use serde::Serialize;

/// A promise; the design says what each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[expect(missing_docs, reason = "the numbers are their names")]
pub enum Promise {
    I1,
    I2,
    I3,
    I4,
    I5,
    I6,
    I7,
    I8,
    I9,
    I10,
    I11,
    I12,
}

impl Promise {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::I1,
        Self::I2,
        Self::I3,
        Self::I4,
        Self::I5,
        Self::I6,
        Self::I7,
        Self::I8,
        Self::I9,
        Self::I10,
        Self::I11,
        Self::I12,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::I1 => "I1",
            Self::I2 => "I2",
            Self::I3 => "I3",
            Self::I4 => "I4",
            Self::I5 => "I5",
            Self::I6 => "I6",
            Self::I7 => "I7",
            Self::I8 => "I8",
            Self::I9 => "I9",
            Self::I10 => "I10",
            Self::I11 => "I11",
            Self::I12 => "I12",
        }
    }

    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::I1 => "nothing accepted is lost",
            Self::I2 => "no limit is exceeded",
            Self::I3 => "the order is kept",
            Self::I4 => "every slot is released",
            Self::I5 => "one outcome per attempt",
            Self::I6 => "a freed slot is granted at once",
            Self::I7 => "the counts add up",
            Self::I8 => "no rate and no quota is exceeded",
            Self::I9 => "nobody waits beside room, and who waits holds nothing",
            Self::I10 => "nobody overtakes out of turn",
            Self::I11 => "an operation is done once to each, and counted",
            Self::I12 => "each round is decided under one version of the policy set",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
