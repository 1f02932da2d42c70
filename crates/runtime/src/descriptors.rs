//! How many descriptors (files, sockets) the process may have open: what `ulimit -n` says.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many this process may have open now.
#[must_use]
pub fn limit() -> usize {
    let soft = getrlimit(Resource::Nofile).current;
    // None is without a limit.
    soft.map_or(usize::MAX, |soft| {
        usize::try_from(soft).unwrap_or(usize::MAX)
    })
}

/// Raises the limit as far as the process may do that itself.
///
/// Programs that a process starts inherit its limit, and some cannot live with a high one: those that
/// wait with `select()`, or close whatever could be open. So this is for processes that start none.
///
/// # Errors
/// When the system refuses it; then the limit is what it was.
pub fn raise_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

/// How many of `limit` are left for connections of clients when so many are kept for everything
/// else. Of a limit that is too small for that clients get a quarter.
#[must_use]
pub fn room(limit: usize, reserve: usize) -> usize {
    limit.saturating_sub(reserve).max(limit / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_is_left() {
        assert_eq!(room(1024, 256), 768);
        assert_eq!(room(usize::MAX, 256), usize::MAX - 256);
        assert_eq!(room(300, 256), 75);
        assert_eq!(room(64, 256), 16);
    }

    #[test]
    fn the_limit_is_raised_to_what_the_process_may_have() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: Some(256),
            maximum,
        };
        setrlimit(Resource::Nofile, low).unwrap();
        assert_eq!(limit(), 256);
        raise_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
