//! Events as they cross the control socket.
//!
//! Invariant: all that an event tells is kept, in its order.

use serde::{Deserialize, Serialize};

/// A value of an event, by the data types of nvlists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventValue {
    /// It is there.
    Boolean,
    /// True or false.
    BooleanValue(bool),
    /// A whole number: its size in bits, and its bits.
    Number(u8, u64),
    /// A number with a sign.
    Signed(i64),
    /// Numbers: their size in bits, and their bits.
    Numbers(u8, Vec<u64>),
    /// Numbers with signs.
    SignedNumbers(Vec<i64>),
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// A list.
    List(Vec<(String, EventValue)>),
}

/// Something that happened to a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its number in the life of the pool's process.
    pub number: u64,
    /// When, in seconds since 1970.
    pub seconds: i64,
    /// The rest of that, in nanoseconds.
    pub nanoseconds: u32,
    /// Its class, as `sysevent.fs.zfs.scrub_finish`.
    pub class: String,
    /// Everything about it, in order.
    pub members: Vec<(String, EventValue)>,
}

impl EventRecord {
    /// The member of this name.
    pub fn get(&self, name: &str) -> Option<&EventValue> {
        self.members.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// The text of this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(EventValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The number of this name.
    pub fn number_of(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(EventValue::Number(_, number)) => Some(*number),
            _ => None,
        }
    }

    /// What comes behind `fs.zfs.` in its class; the whole class if nothing does.
    pub fn subclass(&self) -> &str {
        let after = self.class.split_once("fs.zfs.").map(|(_, after)| after);
        after.filter(|after| !after.is_empty()).unwrap_or(&self.class)
    }
}

/// An event of the life of a pool's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Tells this life from others.
    pub life: u64,
    /// The number of the event.
    pub number: u64,
}

/// Which events are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsAsked {
    /// Those after this one; of another life, all.
    pub after: Option<Position>,
    /// Those to come, too, until the pool is closed. Meanwhile a part comes every two seconds, if only an
    /// empty one.
    pub follow: bool,
}

/// Some events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsPart {
    /// Of this life.
    pub life: u64,
    /// How many before them are lost.
    pub dropped: u64,
    /// In order.
    pub events: Vec<EventRecord>,
}

#[cfg(test)]
pub(crate) mod samples {
    use super::{EventRecord, EventValue};

    /// An event that has members of most kinds, with this state and context.
    pub(crate) fn statechange(state: u64, context: i64) -> EventRecord {
        let text = |text: &str| EventValue::Text(text.to_owned());
        let detector = vec![("scheme".to_owned(), text("zfs"))];
        EventRecord {
            number: 3,
            seconds: 1_795_198_769,
            nanoseconds: 5,
            class: "resource.fs.zfs.statechange".to_owned(),
            members: vec![
                ("detector".to_owned(), EventValue::List(detector)),
                ("pool".to_owned(), text("tank")),
                ("vdev_state".to_owned(), EventValue::Number(64, state)),
                ("pool_context".to_owned(), EventValue::Signed(context)),
                ("time".to_owned(), EventValue::SignedNumbers(vec![1_795_198_769, 5])),
            ],
        }
    }
}
