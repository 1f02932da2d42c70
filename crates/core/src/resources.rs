//! What a run may take of its machine.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::reject::Reject;

/// So many bytes, as people write it: `512Mi`, `2G` or a plain number. At least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// What may stand behind the number, from the largest on, and how many bytes it means.
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];
/// What is larger is a slip.
const MAX_BYTES: u64 = 1 << 50;

impl Size {
    /// How many bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Size {
    type Error = String;

    fn try_from(bytes: u64) -> Result<Self, String> {
        if (1..=MAX_BYTES).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(format!("{bytes} bytes are none, or more than 1024Ti"))
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
        let (number, factor) = match unit {
            Some((unit, factor)) => (text.strip_suffix(unit).unwrap_or(text), *factor),
            None => (text, 1),
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = number.parse().ok().filter(|_| is_number);
        let bytes = bytes.and_then(|number: u64| number.checked_mul(factor));
        bytes
            .ok_or_else(|| {
                let shown: String = text.chars().take(32).collect();
                format!("{shown:?} is no size, such as 512Mi, 2Gi or 1000000")
            })?
            .try_into()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS[..4]
            .iter()
            .find(|(_, unit)| self.0.is_multiple_of(*unit))
        {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => self.0.fmt(f),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text such as \"512Mi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Reader)
    }
}

/// So much of the machine's processors: `1.5` is one and a half. Kept in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(u32);

impl Cpu {
    /// How many processors.
    pub fn count(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// How many thousandths of one.
    pub const fn thousandths(self) -> u32 {
        self.0
    }
}

impl TryFrom<f64> for Cpu {
    type Error = String;

    fn try_from(count: f64) -> Result<Self, String> {
        if !(0.01..=1024.0).contains(&count) {
            return Err(format!("{count} is not from 0.01 to 1024 processors"));
        }
        // Within a million, so that nothing is lost.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(Self((count * 1000.0).round() as u32))
    }
}

impl Serialize for Cpu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 1000 {
            0 => serializer.serialize_u32(self.0 / 1000),
            _ => serializer.serialize_f64(self.count()),
        }
    }
}

impl<'de> Deserialize<'de> for Cpu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(f64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// What a run of an action may take of its machine, at most. What is not set is as its worker has
/// it (`worker.limits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Memory of all its processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Processors, on average over a tenth of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

/// So many processes no Linux has.
const MAX_PIDS: u32 = 4_194_304;
/// With less memory no program starts.
const MIN_MEMORY: u64 = 1 << 20;

impl Resources {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These, and `others` where nothing is said here.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory: self.memory.or(others.memory),
            cpu: self.cpu.or(others.cpu),
            pids: self.pids.or(others.pids),
        }
    }

    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// A [`Reject`] that names the field, its problem and what would be right.
    pub fn check(&self) -> Result<(), Reject> {
        if let Some(memory) = self.memory.filter(|memory| memory.bytes() < MIN_MEMORY) {
            return Err(Reject::field(
                "resources.memory",
                format!(
                    "`resources.memory` is {memory}; a program needs 1Mi at least, as in 512Mi"
                ),
            ));
        }
        match self.pids {
            Some(pids) if !(1..=MAX_PIDS).contains(&pids) => Err(Reject::field(
                "resources.pids",
                format!("`resources.pids` is {pids}; it takes 1 to {MAX_PIDS}, as in 256"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them_and_written_back() {
        for (text, bytes, shown) in [
            ("512Mi", 512 << 20, "512Mi"),
            ("1024Mi", 1 << 30, "1Gi"),
            ("2G", 2_000_000_000, "1953125Ki"),
            ("1000", 1000, "1000"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown));
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for bad in [
            "",
            "Mi",
            "-1",
            "1.5Gi",
            "12 Mi",
            "0",
            "99999999Ti",
            "+5",
            "5MiMi",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn resources_are_read_checked_and_written_back() {
        let text = r#"{"memory":"512Mi","cpu":1.5,"pids":256}"#;
        let resources: Resources = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&resources).unwrap(), text);
        assert_eq!(resources.check(), Ok(()));
        let number: Resources = serde_json::from_str(r#"{"memory":"1048576","cpu":2}"#).unwrap();
        let written = serde_json::to_string(&number).unwrap();
        assert_eq!(written, r#"{"memory":"1Mi","cpu":2}"#);
        for (bad, field) in [
            (r#"{"memory":"4Ki"}"#, "resources.memory"),
            (r#"{"pids":0}"#, "resources.pids"),
        ] {
            let bad: Resources = serde_json::from_str(bad).unwrap();
            assert_eq!(bad.check().unwrap_err().field.as_deref(), Some(field));
        }
        for bad in [
            r#"{"cpu":0}"#,
            r#"{"disk":"1Gi"}"#,
            r#"{"memory":"much"}"#,
            r#"{"memory":1048576}"#,
        ] {
            assert!(serde_json::from_str::<Resources>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_an_action_does_not_say_is_as_the_worker_has_it() {
        let own = Resources {
            pids: Some(5),
            ..Resources::default()
        };
        let default = Resources {
            pids: Some(9),
            cpu: Some(Cpu(500)),
            memory: None,
        };
        let both = own.or(default);
        assert_eq!(
            (both.pids, both.cpu, both.memory),
            (Some(5), Some(Cpu(500)), None)
        );
    }
}
