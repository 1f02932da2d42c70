//! Why an action cannot have what it would inherit, and which document says that.

use super::document::under_defaults;
use super::{ActionDefaults, PolicySet, PolicyTarget};
use crate::action::ActionSpec;
use crate::reject::Reject;

/// A policy that cannot be, of an action and what it would inherit.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// Names the action, the field and the document that says it.
    pub reject: Reject,
    /// That document; none where what the action says itself cannot be.
    pub from: Option<PolicyTarget>,
}

/// A field that is inherited by itself.
type Field = (
    &'static str,
    fn(&ActionDefaults, &mut ActionDefaults) -> bool,
);

/// Takes a field over; whether it says something there.
macro_rules! field {
    ($part:ident . $name:ident, $is_said:expr) => {
        (
            concat!(stringify!($part), ".", stringify!($name)),
            |from, to| {
                to.$part.$name = from.$part.$name.clone();
                $is_said(&from.$part.$name)
            },
        )
    };
    ($part:ident . $name:ident) => {
        field!($part.$name, Option::is_some)
    };
}

/// All that actions inherit.
const FIELDS: [Field; 12] = [
    field!(queue.max_length),
    field!(queue.timeout_seconds),
    field!(queue.ordering),
    field!(queue.on_full),
    field!(concurrency.on_limit),
    field!(priority.default),
    field!(priority.max),
    field!(priority.rules, |rules: &super::PriorityRules| !rules
        .is_empty()),
    field!(priority.ageing_seconds),
    field!(retry.max_attempts),
    field!(retry.on),
    field!(retry.backoff),
];

impl PolicySet {
    /// Checks what an action has with what it inherits.
    ///
    /// # Errors
    /// A [`Reject`] that names the action, the field and from where it is inherited.
    pub fn check(&self, spec: &ActionSpec) -> Result<(), Reject> {
        let conflict = self.conflict(spec, |_| false);
        conflict.map_or(Ok(()), |conflict| Err(conflict.reject))
    }

    /// What makes the policy of an action one that cannot be, with what it inherits. What `is_new` is said to be
    /// in conflict with the rest, where several documents have a part in it.
    #[must_use]
    pub fn conflict(
        &self,
        spec: &ActionSpec,
        is_new: impl Fn(&PolicyTarget) -> bool,
    ) -> Option<Conflict> {
        let whole = self.problem(spec)?;
        let mut fields = self.inherited(spec);
        fields.sort_by_key(|(_, from)| is_new(from));
        let mut part = Self::default();
        if let Some(own) = part.problem_of_own(spec) {
            return Some(own);
        }
        for (field, from) in &fields {
            part.take_over(self, field, from);
            if let Some(reject) = part.problem(spec) {
                return Some(told(spec, &reject, (field.0, from), &fields));
            }
        }
        // Every field was taken over, so this is what the whole says.
        Some(Conflict {
            reject: whole,
            from: None,
        })
    }

    /// What is wrong with an action that inherits something.
    fn problem(&self, spec: &ActionSpec) -> Option<Reject> {
        let whole = self.resolve(&spec.action_ref, &spec.behaviour())?;
        let parameters = spec.parameters.as_ref();
        // Thousands of actions may inherit the rules of one document.
        let checked = match spec.policy.priority.rules.is_empty() {
            true => whole.policy.check_inherited(parameters),
            false => whole.policy.check(parameters),
        };
        checked.err()
    }

    /// What is wrong with an action by itself: it was stored by an earlier release.
    fn problem_of_own(&self, spec: &ActionSpec) -> Option<Conflict> {
        let reject = spec.policy.check(spec.parameters.as_ref()).err()?;
        let words = format!(
            "the policy of the action `{}` cannot be by itself: {}; change the action first",
            spec.action_ref, reject.message
        );
        let reject = Reject {
            message: words,
            ..reject
        };
        Some(Conflict { reject, from: None })
    }

    /// The fields that documents say of an action, each with the nearest that says it. What the action says
    /// itself is among them and has no effect.
    fn inherited(&self, spec: &ActionSpec) -> Vec<(Field, PolicyTarget)> {
        let pack = spec.action_ref.pack();
        let of_pack = self
            .packs
            .get(pack)
            .map(|it| (it, PolicyTarget::Pack(pack.to_owned())));
        let of_all = self.global.as_ref().map(|it| (it, PolicyTarget::Global));
        let documents: Vec<_> = of_pack.into_iter().chain(of_all).collect();
        let nearest = |field: Field| {
            let mut nowhere = ActionDefaults::default();
            let mut documents = documents.iter();
            let found = documents.find(|(says, _)| field.1(says, &mut nowhere));
            found.map(|(_, from)| (field, from.clone()))
        };
        FIELDS.into_iter().filter_map(nearest).collect()
    }

    /// Takes over what a document of another set says of a field.
    fn take_over(&mut self, other: &Self, field: &Field, from: &PolicyTarget) {
        let (says, to) = match from {
            PolicyTarget::Pack(pack) => (
                other.packs.get(pack),
                self.packs.entry(pack.clone()).or_default(),
            ),
            _ => (other.global.as_ref(), self.global.get_or_insert_default()),
        };
        if let Some(says) = says {
            field.1(says, to);
        }
    }
}

/// A conflict in words. Fields that are inherited have the names there that they have in the documents.
fn told(
    spec: &ActionSpec,
    reject: &Reject,
    (name, from): (&str, &PolicyTarget),
    fields: &[(Field, PolicyTarget)],
) -> Conflict {
    let own = format!("policy.{name}");
    let named = reject
        .field
        .as_deref()
        .filter(|named| named.starts_with(&own));
    let field = under_defaults(named.unwrap_or(&own));
    let (mut problem, mut others) = (reject.message.clone(), String::new());
    for ((other, _), of) in fields
        .iter()
        .filter(|((other, _), _)| !says_itself(spec, other))
    {
        let inherited = format!("`action_defaults.{other}");
        problem = problem.replace(&format!("`policy.{other}"), &inherited);
        if *other != name && problem.contains(&inherited) {
            others.push_str(&format!("; {inherited}` is of policy {of}"));
        }
    }
    let words = format!(
        "with `{field}` of policy {from} the action `{}` would have a policy that cannot be: {problem}{others}; \
         change the action or the document",
        spec.action_ref
    );
    Conflict {
        reject: Reject::field(field, words),
        from: Some(from.clone()),
    }
}

/// Whether an action says a field itself, so that it inherits nothing there.
fn says_itself(spec: &ActionSpec, field: &str) -> bool {
    let policy = serde_json::to_value(&spec.policy).unwrap_or_default();
    let mut parts = field.split('.');
    parts
        .try_fold(&policy, |place, part| place.get(part))
        .is_some()
}
