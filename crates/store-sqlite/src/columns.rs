//! Rows of lists as JSON arrays. A statement finds a value by its place in the row, which costs less
//! than to look for its name among all others.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

/// What is written as an array of the values of its columns.
pub(crate) trait Columns {
    /// The columns in the order of their places, which count from 0.
    #[cfg(test)]
    fn names() -> Vec<&'static str>;

    /// Adds the values of all columns, in this order.
    fn write<S: SerializeSeq>(&self, values: &mut S) -> Result<(), S::Error>;
}

/// A [`Columns`] as the element of a list.
pub(crate) struct Places<T>(pub(crate) T);

impl<T: Columns> Serialize for Places<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut values = serializer.serialize_seq(None)?;
        self.0.write(&mut values)?;
        values.end()
    }
}

/// The columns of the first, and after them those of the second.
impl<A: Columns, B: Columns> Columns for (A, B) {
    #[cfg(test)]
    fn names() -> Vec<&'static str> {
        [A::names(), B::names()].concat()
    }

    fn write<S: SerializeSeq>(&self, values: &mut S) -> Result<(), S::Error> {
        self.0.write(values)?;
        self.1.write(values)
    }
}

/// A struct each of whose members is a column, in the order in which they stand.
macro_rules! columns {
    ($(#[$about:meta])* struct $name:ident $(<$life:lifetime>)? {
        $($(#[$of:meta])* $column:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        struct $name $(<$life>)? {
            $($(#[$of])* $column: $type,)*
        }

        impl $(<$life>)? crate::columns::Columns for $name $(<$life>)? {
            #[cfg(test)]
            fn names() -> Vec<&'static str> {
                vec![$(stringify!($column)),*]
            }

            fn write<S: serde::ser::SerializeSeq>(&self, values: &mut S) -> Result<(), S::Error> {
                $(values.serialize_element(&self.$column)?;)*
                Ok(())
            }
        }
    };
}

pub(crate) use columns;
