//! How much work the patterns of a schema can be for given parameters, told before they are checked.
//!
//! At the worst an engine takes, for each byte of a text, a step for each state of a pattern, so a
//! hundred patterns and one long text are many minutes. What a pattern can meet is told by where it
//! stands: one of the property `name` meets that text alone, and not the long one beside it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use attune_core::Reject;
use attune_core::foreign::cut;
use jsonschema::{PatternOptions, ValidationOptions};
use serde_json::{Value, json};

/// How large a compiled pattern may be, in bytes.
pub(crate) const PATTERN_BYTES: usize = 128 * 1024;
/// What the engine may remember of a pattern while it reads texts, in bytes. It is kept with the
/// schema, for each thread that uses it.
const PATTERN_CACHE_BYTES: usize = 256 * 1024;
/// What the smallest pattern counts as, in bytes.
const SMALLEST: usize = 1024;
/// Bytes of compiled patterns times bytes of the texts that they meet in one check. Measured, it is
/// two seconds of a core at the worst, and twice that where the field is looked for afterwards. The
/// largest pattern may meet 128 KiB.
const MAX_WORK: u64 = 1 << 34;
/// The same for a check that is done at once: at the worst some milliseconds.
const LIGHT_WORK: u64 = 1 << 23;
/// A schema that comes to one value in several ways again and again is checked again for each, until
/// the library remembers the outcome. Measured, that is less than so often times the square of the
/// ways: 26 times with two, 64 with four, 356 with eight.
const AGAIN: u64 = 16;
/// How many places are told apart.
const MAX_PLACES: usize = 256;

/// A step from a value to those in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    /// The member of this name.
    Member(Arc<str>),
    /// Every item or member.
    Each,
    /// The names of its members.
    Names,
    /// Anything below, names too.
    Below,
}

/// Where patterns stand in an unfolded schema.
#[derive(Debug, Default)]
pub(crate) struct Places {
    found: HashMap<(Vec<Step>, Arc<str>), u64>,
    /// Each text once: what is referred to often has long names often.
    texts: HashSet<Arc<str>>,
    /// How many references lead back to where they stand, or may do so, by the member through which
    /// they do; without one it may be any.
    loops: HashMap<Option<Arc<str>>, u64>,
}

impl Places {
    /// The step to the member of this name.
    pub(crate) fn member(&mut self, name: &str) -> Step {
        Step::Member(self.text(name))
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = Arc::from(text);
        self.texts.insert(Arc::clone(&text));
        text
    }

    /// Notes a pattern that meets what is at the end of `path`.
    pub(crate) fn note(&mut self, path: &[Step], pattern: &str) {
        let pattern = self.text(pattern);
        *self.found.entry((path.to_vec(), pattern)).or_default() += 1;
    }

    /// Notes a reference that leads back to a schema from what is at the end of `path` below it.
    pub(crate) fn note_loop(&mut self, path: &[Step]) {
        let first = match path.first() {
            Some(Step::Member(name)) => Some(Arc::clone(name)),
            _ => None,
        };
        *self.loops.entry(first).or_default() += 1;
    }

    /// How many references can lead from one value to the same one below it.
    fn loops_to_one(&self) -> u64 {
        let any = self.loops.get(&None).copied().unwrap_or(0);
        let named = self.loops.iter().filter(|(name, _)| name.is_some());
        any + named.map(|(_, many)| *many).max().unwrap_or(0)
    }

    /// Weighs the patterns, all of which can be compiled.
    pub(crate) fn weigh(self) -> Matching {
        let loops = self.loops_to_one();
        let mut weights: HashMap<Arc<str>, u64> = HashMap::new();
        let mut places: HashMap<Vec<Step>, u64> = HashMap::new();
        for ((path, pattern), times) in self.found {
            let weight = *weights
                .entry(pattern)
                .or_insert_with_key(|pattern| weight_of(pattern));
            *places.entry(path).or_default() += weight * times;
        }
        let mut all: u64 = places.values().sum();
        if loops > 1 {
            all = all.saturating_mul(AGAIN * loops * loops);
        }
        // What refers to itself can meet anything.
        if all > 0 && (loops > 0 || places.len() > MAX_PLACES) {
            places = HashMap::from([(vec![Step::Below], all)]);
        }
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_unstable();
        Matching { places, all }
    }
}

/// How patterns are compiled: by the engine that reads a text once. The other one goes back over a
/// text, which can take minutes, and no bound on its steps holds inside a look-behind.
pub(crate) fn options(pattern_bytes: usize) -> ValidationOptions<'static> {
    jsonschema::options().with_pattern_options(
        PatternOptions::regex()
            .size_limit(pattern_bytes)
            .dfa_size_limit(PATTERN_CACHE_BYTES),
    )
}

/// How large a pattern is when it is compiled, to the next power of two: nobody tells, but it can
/// be tried.
fn weight_of(pattern: &str) -> u64 {
    let schema = json!({"pattern": pattern});
    let fits = |bytes: usize| options(bytes).build(&schema).is_ok();
    let mut sizes = std::iter::successors(Some(SMALLEST), |size| Some(size * 2));
    let size = sizes.find(|size| *size >= PATTERN_BYTES || fits(*size));
    size.unwrap_or(PATTERN_BYTES) as u64
}

/// The work of the patterns of a schema.
#[derive(Debug)]
pub(crate) struct Matching {
    /// How much all patterns that meet what is at the end of a path weigh.
    places: Vec<(Vec<Step>, u64)>,
    /// The sum of that.
    all: u64,
}

impl Matching {
    /// Whether they are no work for parameters of so many bytes, whatever they are.
    pub(crate) fn is_light_for(&self, bytes: usize) -> bool {
        self.all.saturating_mul(bytes as u64) <= LIGHT_WORK
    }

    /// Refuses parameters for which the patterns could be too much work.
    ///
    /// # Errors
    /// A [`Reject`] that names the first place where it is too much.
    pub(crate) fn check(&self, parameters: &Value) -> Result<(), Reject> {
        let mut left = MAX_WORK;
        for (path, weight) in &self.places {
            if !spend(&mut left, *weight, path, parameters) {
                let place = name_of(path);
                return Err(Reject::field(
                    &*place,
                    format!(
                        "`{place}` has more text than the patterns of the action's schema can be \
                         matched with: their compiled sizes times the bytes of the texts that they \
                         meet may be {MAX_WORK} in all; send less text, or give the action smaller \
                         patterns (counted repetitions such as `{{1,255}}` make them large: \
                         `maxLength` does not) or fewer"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Takes what the texts at the end of a path cost, and the way to them; whether there was so much.
fn spend(left: &mut u64, weight: u64, path: &[Step], value: &Value) -> bool {
    let take = |left: &mut u64, bytes: usize| {
        // A text without a byte is some work, too.
        let cost = weight.saturating_mul(bytes as u64 + 1);
        let rest = left.checked_sub(cost);
        *left = rest.unwrap_or(0);
        rest.is_some()
    };
    let Some((step, rest)) = path.split_first() else {
        return match value {
            Value::String(text) => take(left, text.len()),
            _ => true,
        };
    };
    match (step, value) {
        (Step::Member(name), Value::Object(members)) => members
            .get(&**name)
            .is_none_or(|member| spend(left, weight, rest, member)),
        (Step::Each, Value::Object(members)) => members
            .values()
            .all(|member| take(left, 0) && spend(left, weight, rest, member)),
        (Step::Each, Value::Array(items)) => items
            .iter()
            .all(|item| take(left, 0) && spend(left, weight, rest, item)),
        (Step::Names, Value::Object(members)) => members.keys().all(|name| take(left, name.len())),
        (Step::Below, Value::String(text)) => take(left, text.len()),
        (Step::Below, Value::Object(members)) => members
            .iter()
            .all(|(name, member)| take(left, name.len()) && spend(left, weight, path, member)),
        (Step::Below, Value::Array(items)) => items
            .iter()
            .all(|item| take(left, 0) && spend(left, weight, path, item)),
        _ => true,
    }
}

/// The part of a path that is the same for all texts, as fields are named.
fn name_of(path: &[Step]) -> String {
    let mut name = "parameters".to_owned();
    for step in path {
        let Step::Member(member) = step else { break };
        name.push('.');
        name.push_str(member);
    }
    cut(&name, 200).into_owned()
}
