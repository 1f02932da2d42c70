//! What is secret and comes unsealed is sealed before anything of it is decided or written.

use attune_core::{RawValue, RejectCode, RequestId, Submission};
use attune_secrets::{Keyring, new_key};
use serde_json::json;

use super::test_world::{World, action, submitted};
use super::*;

const CANARY: &str = "canary-9d2e";

fn world(keys: &Keyring) -> World {
    let mut world = World::new(Some(1), 100);
    world.partition.secrets = keys.clone();
    let mut marking = action(Some(1));
    marking.version = 2;
    marking.spec.parameters = Some(json!({"properties": {"p": {"secret": true}}}));
    world.step(Event::ActionKnown(Box::new(marking)));
    world
}

fn firing(request: RequestId, secret: &str) -> Event {
    let parameters = json!({"p": secret, "q": 1}).to_string();
    let submission = Submission {
        parameters: RawValue::from_string(parameters).unwrap(),
        ..Submission::new("core.noop")
    };
    submitted(request, submission, OnReject::Record)
}

fn stored(effects: &[Effect]) -> String {
    let inserted = effects.iter().find_map(|effect| match effect {
        Effect::Insert(new) => Some(new.submission.parameters.get().to_owned()),
        _ => None,
    });
    inserted.unwrap()
}

#[test]
fn a_firing_is_sealed_when_it_is_accepted_and_known_again() {
    for keys in [
        Keyring::default(),
        Keyring::parse(&new_key("k").unwrap()).unwrap(),
    ] {
        let mut world = world(&keys);
        let request = RequestId::fresh();
        let parameters = stored(&world.step(firing(request, CANARY)));
        assert!(!parameters.contains(CANARY), "{parameters}");
        let raw = RawValue::from_string(parameters).unwrap();
        let opened = keys.open("core.noop", &raw).unwrap().unwrap();
        assert!(opened.parameters.get().contains(CANARY));

        world.step(firing(request, CANARY));
        assert_eq!(world.stored.totals.enqueued, 1, "the same request");
        let other = world.step(firing(request, "another-canary"));
        let letter = other.iter().find_map(|effect| match effect {
            Effect::DeadLetter(letter) => Some(letter.clone()),
            _ => None,
        });
        let letter = letter.unwrap();
        assert_eq!(letter.reject.code, RejectCode::Conflict);
        assert!(!letter.submission.parameters.get().contains("canary"));
    }
}

#[test]
fn what_is_refused_for_its_secret_is_recorded_without_it() {
    let mut world = world(&Keyring::default());
    let long = CANARY.repeat(attune_secrets::MAX_BYTES / CANARY.len() + 1);
    let effects = world.step(firing(RequestId::fresh(), &long));
    assert_eq!(stored(&effects), r#"{"p":"********","q":1}"#);
    assert_eq!(world.stored.totals.enqueued, 0);
}
