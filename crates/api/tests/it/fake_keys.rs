//! Keys in memory.

use async_trait::async_trait;
use attune_core::Asker;
use attune_identity::{Grants, Key, KeyId};
use attune_store::{
    Actor, KeyOutcome, KeyRecord, KeyRotation, KeyStanding, KeyStore, NewKey, StoreError,
};
use chrono::Utc;

use crate::fakes::Fake;

impl Fake {
    /// Makes a key and gives it as its owner has it.
    pub(crate) fn add_key(&self, name: &str, grants: Grants) -> String {
        let key = Key::fresh().unwrap();
        let new = NewKey {
            id: key.id().clone(),
            hash: key.hash(),
            name: name.to_owned(),
            grants,
            lifetime: None,
            who: "test".into(),
        };
        self.with(|state| state.keys.push(record(&new)));
        key.expose()
    }
}

fn record(new: &NewKey) -> KeyRecord {
    KeyRecord {
        id: new.id.clone(),
        hash: new.hash,
        name: new.name.clone(),
        grants: new.grants.clone(),
        standing: KeyStanding::Good(new.lifetime),
        created: Utc::now(),
        created_by: new.who.name.clone(),
        expires: None,
        revoked: None,
        revoked_by: None,
        last_used: None,
        last_ip: None,
    }
}

#[async_trait]
impl KeyStore for Fake {
    async fn create_key(&self, key: &NewKey, _first: bool) -> Result<KeyOutcome, StoreError> {
        self.store(|state| {
            let is_good = |it: &&KeyRecord| matches!(it.standing, KeyStanding::Good(_));
            if state
                .keys
                .iter()
                .filter(is_good)
                .any(|it| it.name == key.name)
            {
                return KeyOutcome::Taken;
            }
            state.keys.push(record(key));
            KeyOutcome::Stored
        })
    }

    async fn rotate_key(&self, rotation: &KeyRotation) -> Result<KeyOutcome, StoreError> {
        self.store(|state| {
            let Some(old) = state.keys.iter_mut().find(|it| it.id == rotation.old) else {
                return KeyOutcome::Unknown;
            };
            if !matches!(old.standing, KeyStanding::Good(_)) {
                return KeyOutcome::Over;
            }
            old.standing = KeyStanding::Good(Some(rotation.overlap));
            let mut new = old.clone();
            (new.id, new.hash) = (rotation.id.clone(), rotation.hash);
            new.standing = KeyStanding::Good(rotation.lifetime);
            state.keys.push(new);
            KeyOutcome::Stored
        })
    }

    async fn revoke_key(&self, id: &KeyId, who: &Actor) -> Result<KeyOutcome, StoreError> {
        self.store(|state| {
            let Some(key) = state.keys.iter_mut().find(|it| it.id == *id) else {
                return KeyOutcome::Unknown;
            };
            key.standing = KeyStanding::Revoked;
            key.revoked = Some(Utc::now());
            key.revoked_by = Some(who.name.clone());
            KeyOutcome::Stored
        })
    }

    async fn find_key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.store(|state| {
            state.key_reads += 1;
            state.keys.iter().find(|it| it.id == *id).cloned()
        })
    }

    async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.store(|state| state.keys.clone())
    }

    async fn note_key_use(&self, id: &KeyId, ip: Option<&str>) -> Result<(), StoreError> {
        self.store(|state| {
            for key in state.keys.iter_mut().filter(|it| it.id == *id) {
                key.last_used = Some(Utc::now());
                key.last_ip = ip.map(str::to_owned);
            }
        })
    }

    async fn count_waiting(&self, _asker: Asker) -> Result<u32, StoreError> {
        self.store(|state| state.waiting)
    }
}
