use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::action::{Builtin, Run};
use crate::policy::{Conflict, OnLimit};

fn defaults(value: Value) -> ActionDefaults {
    serde_json::from_value(value).unwrap()
}

fn spec(policy: Value) -> ActionSpec {
    let mut spec = ActionSpec::new("shop.pay".parse().unwrap(), Run::Builtin(Builtin::Noop));
    spec.policy = serde_json::from_value(policy).unwrap();
    spec.settled()
}

fn set(pack: Option<Value>, global: Option<Value>) -> PolicySet {
    PolicySet {
        version: 1,
        global: global.map(defaults),
        packs: pack
            .map(|pack| ("shop".to_owned(), defaults(pack)))
            .into_iter()
            .collect(),
        users: BTreeMap::new(),
    }
}

#[test]
fn the_nearest_says_each_field() {
    let set = set(
        Some(json!({"queue": {"max_length": 5}, "priority": {"max": "high"}})),
        Some(
            json!({"queue": {"max_length": 9, "timeout_seconds": 60}, "priority": {"max": "low"}}),
        ),
    );
    let own = spec(json!({"queue": {"timeout_seconds": 7}}));
    let whole = set.in_force(&own);
    assert_eq!(whole.policy.queue.max_length, Some(5));
    assert_eq!(whole.policy.queue.timeout_seconds, Some(7));
    assert_eq!(whole.policy.priority.max, Some(crate::Priority::High));
    let mut other = own.clone();
    other.action_ref = "other.pay".parse().unwrap();
    assert_eq!(set.in_force(&other).policy.queue.max_length, Some(9));
}

#[test]
fn rules_that_many_inherit_are_there_once() {
    let rules = json!({"priority": {"rules": [{"when": {"user": "ann"}, "then": "high"}]}});
    let set = set(Some(rules), None);
    let rules = ["shop.pay", "shop.ship"].map(|action_ref| {
        let mut spec = spec(json!({}));
        spec.action_ref = action_ref.parse().unwrap();
        set.in_force(&spec).policy.priority.rules.clone()
    });
    assert_eq!((rules[0].len(), &rules[0]), (1, &rules[1]));
    assert_eq!(rules[0].as_ptr(), rules[1].as_ptr());
}

#[test]
fn what_an_action_would_inherit_is_checked_with_it() {
    let set = set(None, Some(json!({"priority": {"default": "low"}})));
    assert_eq!(set.check(&spec(json!({}))), Ok(()));
    let fifo = spec(json!({"queue": {"ordering": "fifo"}}));
    let reject = set.check(&fifo).unwrap_err();
    assert_eq!(
        reject.field.as_deref(),
        Some("action_defaults.priority.default")
    );
    for words in [
        "`shop.pay`",
        "with `action_defaults.priority.default` of policy global the action",
        "`action_defaults.priority.default` has no meaning with `policy.queue.ordering: fifo`",
        "change the action or the document",
    ] {
        assert!(reject.message.contains(words), "{reject}");
    }
}

/// What the action says itself is never said to be what is wrong, nor that it is inherited.
#[test]
fn a_conflict_is_of_the_document_that_says_the_field() {
    let low = || json!({"priority": {"default": "low"}});
    let fifo = || json!({"queue": {"ordering": "fifo"}});
    let rules = |then: &str| json!([{"when": {"user": "ann"}, "then": then}]);
    let (pack, global) = (
        Some(PolicyTarget::Pack("shop".into())),
        Some(PolicyTarget::Global),
    );
    let both =
        "`action_defaults.priority.default` has no meaning with `action_defaults.queue.ordering";
    for (own, of_pack, of_global, from, field, words) in [
        (
            low(),
            Some(fifo()),
            None,
            pack.clone(),
            "queue.ordering",
            "`policy.priority.default` has no meaning",
        ),
        (
            low(),
            None,
            Some(fifo()),
            global.clone(),
            "queue.ordering",
            "of policy global the action `shop.pay`",
        ),
        // The action says the one field of the document itself.
        (
            low(),
            Some(json!({"priority": {"default": "high"}, "queue": {"ordering": "fifo"}})),
            None,
            pack.clone(),
            "queue.ordering",
            "`policy.priority.default` has no meaning",
        ),
        // Two documents, of which neither alone is wrong.
        (
            json!({}),
            Some(low()),
            Some(fifo()),
            pack.clone(),
            "priority.default",
            both,
        ),
        (
            json!({}),
            Some(fifo()),
            Some(low()),
            pack.clone(),
            "queue.ordering",
            "is of policy global",
        ),
        (
            json!({"priority": {"max": "low"}}),
            Some(json!({"priority": {"rules": rules("low")}})),
            Some(json!({"priority": {"default": "high"}})),
            global.clone(),
            "priority.default",
            "`policy.priority.max` low",
        ),
        (
            json!({"priority": {"max": "low"}}),
            None,
            Some(json!({"priority": {"rules": rules("high")}})),
            global.clone(),
            "priority.rules.0.then",
            "`action_defaults.priority.rules.0.then` is high",
        ),
        (
            json!({"concurrency": {"limit": 1}, "queue": {"on_full": "drop_oldest"}}),
            None,
            Some(json!({"concurrency": {"on_limit": "cancel_running"}})),
            global.clone(),
            "concurrency.on_limit",
            "`policy.queue.on_full: drop_oldest` does not go together with `action_defaults.concurrency.on_limit",
        ),
    ] {
        let (set, spec) = (set(of_pack, of_global), spec(own));
        let is_new = |target: &PolicyTarget| matches!(target, PolicyTarget::Pack(_));
        let conflict = set.conflict(&spec, is_new).unwrap();
        let Conflict { reject, from: of } = &conflict;
        assert_eq!(of, &from, "{reject}");
        assert_eq!(
            reject.field,
            Some(format!("action_defaults.{field}")),
            "{reject}"
        );
        assert!(reject.message.contains(words), "{reject}");
    }
    // What is new is wrong, whichever of the two that is.
    let set = set(Some(fifo()), Some(low()));
    let is_new = |target: &PolicyTarget| *target == PolicyTarget::Global;
    let conflict = set.conflict(&spec(json!({})), is_new).unwrap();
    assert_eq!(conflict.from, global, "{conflict:?}");
}

#[test]
fn what_happens_at_a_limit_is_inherited_by_those_that_have_one() {
    let set = set(None, Some(json!({"concurrency": {"on_limit": "reject"}})));
    for (own, expected) in [
        (json!({}), None),
        (json!({"concurrency": {"limit": 2}}), Some(OnLimit::Reject)),
        (
            json!({"concurrency": {"group_by": ["user"], "group_limit": 2}}),
            Some(OnLimit::Reject),
        ),
        (
            json!({"concurrency": {"limit": 2, "on_limit": "wait"}}),
            Some(OnLimit::Wait),
        ),
    ] {
        let own = spec(own);
        assert_eq!(set.check(&own), Ok(()), "{own:?}");
        assert_eq!(set.in_force(&own).policy.concurrency.on_limit, expected);
    }
}

#[test]
fn users_without_a_document_have_the_one_of_every_user() {
    let mut set = PolicySet::default();
    let policy = |max, tier: Option<&str>| UserPolicy {
        tier: tier.map(str::to_owned),
        max_priority: max,
    };
    set.users.insert(
        "*".into(),
        policy(Some(crate::Priority::Low), Some("bronze")),
    );
    set.users.insert("ann".into(), policy(None, None));
    assert_eq!(
        set.user(Some("ann")),
        Some(&policy(None, None)),
        "as a whole"
    );
    assert_eq!(
        set.user(Some("bob")).unwrap().tier.as_deref(),
        Some("bronze")
    );
    assert_eq!(set.user(None), None);
    let bob = set.user(Some("bob")).unwrap();
    assert_eq!(bob.lowered(crate::Priority::High), crate::Priority::Low);
    assert_eq!(
        bob.lowered(crate::Priority::Background),
        crate::Priority::Background
    );
}

#[test]
fn what_is_tried_again_is_inherited_where_nothing_else_is_said() {
    let set = set(
        None,
        Some(
            json!({"retry": {"max_attempts": 7, "on": ["failed", "worker_lost"], "backoff": {"initial_ms": 9}}}),
        ),
    );
    let of = |policy: Value, change: fn(&mut ActionSpec)| {
        let mut own: ActionSpec = spec(policy);
        change(&mut own);
        let whole = set.in_force(&own);
        assert_eq!(whole.check(), Ok(()), "{whole:?}");
        assert_eq!(whole.clone().settled(), whole);
        whole.retry()
    };
    let plain = of(json!({}), |_| ());
    assert_eq!(
        (plain.max_attempts, plain.backoff.unwrap().initial_ms),
        (7, 9)
    );
    let own = of(json!({"retry": {"max_attempts": 3}}), |_| ());
    assert_eq!(
        (own.max_attempts, own.backoff.unwrap().initial_ms),
        (3, 1_000)
    );
    assert!(own.on.contains(TryEnd::Failed) && !own.on.contains(TryEnd::TimedOut));
    let before = of(json!({}), |spec| {
        spec.max_attempts = Some(9);
        spec.on_worker_lost = Some(OnWorkerLost::Fail);
    });
    assert_eq!(before.max_attempts, 9);
    assert!(before.on.contains(TryEnd::Failed) && !before.on.contains(TryEnd::WorkerLost));
}

/// Behaviour, leaf by leaf.
const LEAVES: [&[&str]; 9] = [
    &["queue", "max_length"],
    &["queue", "timeout_seconds"],
    &["queue", "ordering"],
    &["queue", "on_full"],
    &["priority", "default"],
    &["priority", "max"],
    &["priority", "ageing_seconds"],
    &["priority", "rules"],
    &["concurrency", "on_limit"],
];

fn words() -> impl Strategy<Value = Value> {
    let rule = |user: &str| json!([{"when": {"user": user}, "then": "low"}]);
    let all: [Vec<Value>; 9] = [
        vec![json!(1), json!(2)],
        vec![json!(3), json!(4)],
        vec![json!("fifo"), json!("priority")],
        vec![json!("reject"), json!("drop_oldest")],
        vec![json!("low"), json!("high")],
        vec![json!("normal"), json!("critical")],
        vec![json!(5), json!(6)],
        vec![rule("ann"), rule("bob")],
        vec![json!("wait"), json!("reject")],
    ];
    let fields = all.map(|values| prop::option::of(prop::sample::select(values)));
    fields.prop_map(|fields| {
        let mut whole = json!({});
        for (path, value) in LEAVES.iter().zip(fields) {
            if let Some(value) = value {
                whole[path[0]][path[1]] = value;
            }
        }
        whole
    })
}

fn leaf<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, part| value.get(part))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

    /// Against a model that goes through the words of the documents.
    #[test]
    fn each_field_is_that_of_the_first_who_says_it(
        own in words(),
        pack in prop::option::of(words()),
        global in prop::option::of(words()),
        limit in prop::option::of(1..5_u32),
    ) {
        let mut written = own.clone();
        if let Some(limit) = limit {
            written["concurrency"]["limit"] = json!(limit);
        }
        let spec = spec(written);
        let set = set(pack.clone(), global.clone());
        let whole = serde_json::to_value(set.in_force(&spec).policy).unwrap();
        let layers = [Some(&own), pack.as_ref(), global.as_ref()];
        for path in LEAVES {
            let is_inherited = path[1] != "on_limit" || limit.is_some();
            let layers = &layers[..if is_inherited { 3 } else { 1 }];
            let said = layers.iter().flatten().find_map(|layer| leaf(layer, path));
            prop_assert_eq!(leaf(&whole, path), said, "{:?}", path);
        }
        let limit = limit.map(|limit| json!(limit));
        prop_assert_eq!(leaf(&whole, &["concurrency", "limit"]), limit.as_ref());
        let again = set.in_force(&set.in_force(&spec));
        prop_assert_eq!(again, set.in_force(&spec), "once is enough");
    }
}
