//! Ids are types, so that an action cannot be passed where an execution is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! integer_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let number = text.parse().map(Self);
                number.map_err(|_| format!("{text:?} is not a number, as ids are"))
            }
        }
    };
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh id that sorts by the time at which it was made (UUID version 7).
            pub fn fresh() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

integer_id! {
    /// An action, numbered by the database when it is first applied.
    ActionId(i64)
}
integer_id! {
    /// One execution of an action. See [`ExecutionId::new`] for how it is made.
    ExecutionId(i64)
}
integer_id! {
    /// A share of the actions that one executor owns at a time.
    PartitionId(u16)
}
integer_id! {
    /// Rises by one whenever a partition changes hands; every write of an owner checks it.
    Epoch(i64)
}
integer_id! {
    /// The place of an execution in the order of its partition.
    Seq(i64)
}
integer_id! {
    /// How often an execution has been granted a slot; 0 means never. A slot is
    /// held by `(execution, attempt)`, and so is a fencing token for what the action touches.
    Attempt(i32)
}
uuid_id! {
    /// One executor process; fresh at every start, so that an old one can never match.
    OwnerId
}
uuid_id! {
    /// One worker process; fresh at every start.
    WorkerId
}
uuid_id! {
    /// Names a submission, so that repeating it within 24 hours gives the same execution.
    RequestId
}

/// Two ids between which no request is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestGap {
    /// The request below the gap; `None` when none is stored there.
    pub above: Option<RequestId>,
    /// The request above it.
    pub below: Option<RequestId>,
}

impl PartitionId {
    /// The most partitions a cluster can have: the id of an execution holds its partition in 8 bits.
    pub const MAX_COUNT: u16 = 256;

    /// The partition of an action: CRC-32 (IEEE, as in zlib) of its ref, modulo `count`.
    ///
    /// # Panics
    /// When `count` is 0; settings refuse that before anything starts.
    pub fn of(action_ref: &str, count: u16) -> Self {
        assert!(count > 0, "a cluster has at least one partition");
        let hash = crc32fast::hash(action_ref.as_bytes());
        Self(u16::try_from(hash % u32::from(count)).expect("a remainder is below its divisor"))
    }
}

impl Epoch {
    /// The highest epoch: above it, an execution id would no longer fit into 63 bits.
    pub const MAX: Self = Self((1 << 23) - 1);
}

impl Seq {
    /// `epoch × 2³² + n`: needs no look-up at takeover and always rises.
    pub fn new(epoch: Epoch, n: u32) -> Self {
        Self(epoch.0 << 32 | i64::from(n))
    }

    /// The epoch in which this place was given out.
    pub fn epoch(self) -> Epoch {
        Epoch(self.0 >> 32)
    }
}

impl ExecutionId {
    /// The id of the execution at `seq` of `partition`: unique in the cluster because the
    /// epoch in `seq` is, without a sequence in the database that every owner would share.
    pub fn new(partition: PartitionId, seq: Seq) -> Self {
        Self(seq.0 << 8 | i64::from(partition.0))
    }

    /// The partition that the id was made in.
    pub fn partition(self) -> PartitionId {
        PartitionId((self.0 & 0xff) as u16)
    }

    /// The place in the order of its partition.
    pub fn seq(self) -> Seq {
        Seq(self.0 >> 8)
    }
}

impl Attempt {
    /// The attempt that follows this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl RequestId {
    /// Not above any other.
    pub const LOWEST: Self = Self(Uuid::nil());
    /// Not below any other.
    pub const HIGHEST: Self = Self(Uuid::max());

    /// Not above any id that was made at this time, in milliseconds since 1970, or later (UUID version 7);
    /// above every one that was made earlier.
    pub fn first_of(time: i64) -> Self {
        Self(Uuid::from_u128(
            u128::from(time.max(0).unsigned_abs()) << 80,
        ))
    }

    /// When it was made, in milliseconds since 1970, where it says so: of UUID version 7.
    pub fn made_at(self) -> Option<i64> {
        let is_timed = self.0.get_version_num() == 7;
        is_timed.then(|| i64::try_from(self.0.as_u128() >> 80).unwrap_or(i64::MAX))
    }

    /// The id of item `index` of a message: a batch has one message id, but each item
    /// must be told apart, and a redelivered batch must give the same ids again.
    #[must_use]
    pub fn of_item(self, index: usize) -> Self {
        if index == 0 {
            return self;
        }
        Self(Uuid::new_v5(&self.0, index.to_string().as_bytes()))
    }

    /// The id under which an ended execution is run again, once, however often that is asked for. No
    /// client's key leads to it by accident.
    #[must_use]
    pub fn of_rerun(id: ExecutionId) -> Self {
        Self(Uuid::new_v5(&AGAIN, id.to_string().as_bytes()))
    }

    /// The id under which the request of this name is known to the system. Two clients who name their requests
    /// alike mean two requests.
    ///
    /// An id that begins with its time keeps that: requests that come one after the other stand side by side in
    /// the index, which costs the database a fifth less than ids that lie anywhere. The other 74 bits are a hash
    /// of id and name.
    #[must_use]
    pub fn of_principal(self, name: &str) -> Self {
        let mut text = self.0.as_bytes().to_vec();
        text.extend_from_slice(name.as_bytes());
        let mut id = Uuid::new_v5(&OF_PRINCIPAL, &text).into_bytes();
        if self.0.get_version_num() == 7 {
            id[..TIME_BYTES].copy_from_slice(&self.0.as_bytes()[..TIME_BYTES]);
            // The version; below it is hash.
            id[TIME_BYTES] = 0x70 | (id[TIME_BYTES] & 0x0f);
        }
        Self(Uuid::from_bytes(id))
    }

    /// The id for a client's free-form key: the key itself where it is a UUID, else a hash of it.
    pub fn from_key(key: &str) -> Self {
        Self(Uuid::parse_str(key).unwrap_or_else(|_| Uuid::new_v5(&NAMESPACE, key.as_bytes())))
    }
}

/// How many bytes at the front of a UUID of version 7 are its time.
const TIME_BYTES: usize = 6;
/// The name space of request ids for what is run again.
const AGAIN: Uuid = Uuid::from_u128(0x0c3b_7d52_94e1_4f0e_8a6b_2f57_d1c9_03a8);
/// The name space of request ids of clients that have shown who they are.
const OF_PRINCIPAL: Uuid = Uuid::from_u128(0x8d0e_94c7_1b52_4c6f_a3d1_5e27_90bf_64ac);
/// The name space of request ids that are made from clients' own keys.
const NAMESPACE: Uuid = Uuid::from_u128(0x5f1d_6c0e_37a4_4b7b_9d52_61c1_0a77_5e0d);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_is_the_zlib_crc() {
        // zlib.crc32(b"core.echo") in Python
        assert_eq!(
            crc32fast::hash(b"core.echo") % 16,
            u32::from(PartitionId::of("core.echo", 16).0)
        );
        assert_eq!(
            PartitionId::of("123456789", 256),
            PartitionId((0xcbf4_3926_u32 % 256) as u16)
        );
    }

    #[test]
    fn an_execution_id_holds_partition_and_seq() {
        for (partition, epoch, n) in [(0, 1, 0), (255, 8_388_607, u32::MAX), (7, 3, 41)] {
            let seq = Seq::new(Epoch(epoch), n);
            let id = ExecutionId::new(PartitionId(partition), seq);
            assert!(id.0 > 0);
            assert_eq!(
                (id.partition(), id.seq(), seq.epoch()),
                (PartitionId(partition), seq, Epoch(epoch))
            );
        }
    }

    #[test]
    fn seq_rises_over_epochs() {
        assert!(Seq::new(Epoch(1), u32::MAX) < Seq::new(Epoch(2), 0));
    }

    #[test]
    fn requests_of_two_clients_differ_and_keep_their_time() {
        for given in [RequestId(Uuid::now_v7()), RequestId(Uuid::new_v4())] {
            let [ann, bob] = ["ann", "bob"].map(|name| given.of_principal(name));
            assert_eq!(ann, given.of_principal("ann"));
            assert!(ann != bob && ann != given);
            assert_eq!(ann.0.get_variant(), uuid::Variant::RFC4122);
            assert_eq!(ann.made_at(), given.made_at());
        }
    }

    #[test]
    fn request_ids_of_items_repeat_and_differ() {
        let id = RequestId::fresh();
        assert_eq!(id.of_item(0), id);
        assert_eq!(id.of_item(3), id.of_item(3));
        assert_ne!(id.of_item(3), id.of_item(4));
        assert_eq!(
            RequestId::from_key("order-7"),
            RequestId::from_key("order-7")
        );
    }
}
