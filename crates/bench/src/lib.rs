//! Load generator and scenarios behind the bench command.
