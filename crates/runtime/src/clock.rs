//! A clock for leases: `CLOCK_BOOTTIME`.
//!
//! A lease runs out in the store whatever its holder does, so the holder must measure it by a
//! clock that neither jumps nor stands still. The wall clock jumps when it is set. The monotonic
//! clock, which [`std::time::Instant`], tokio's and every timer of theirs follow, stands still
//! while the machine is suspended: after an hour's sleep a lease of a minute would seem fresh, and
//! what runs under it would go on beside its successor. This clock does neither. It is the same
//! for all processes of a machine (time namespaces aside), so that a moment can be told to another
//! one as a number.

use std::future::Future;
use std::io;
use std::ops::Add;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Between two looks at the clock where no timer can be had.
const LOOK: Duration = Duration::from_millis(250);

/// A moment of `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(seconds, nanos))
    }

    /// How long ago it was; nothing when it is still to come.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// The time from `earlier` to this moment; nothing when it was later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment as a number that every process of this machine understands.
    #[must_use]
    pub fn as_nanos(self) -> i64 {
        i64::try_from(self.0.as_nanos()).unwrap_or(i64::MAX)
    }

    /// The moment of such a number.
    #[must_use]
    pub fn from_nanos(nanos: i64) -> Self {
        Self(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or_default(),
        ))
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// A timer of that clock, as a descriptor that can be read when its moment has come: at once
/// after a suspension in which it came.
#[derive(Debug)]
pub struct BootTimer(OwnedFd);

impl BootTimer {
    /// One that is not set.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sets it anew, also when it could be read already; with nothing it never can be.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set(&self, at: Option<BootInstant>) -> io::Result<()> {
        let mut value = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if let Some(BootInstant(at)) = at {
            // All zeros would mean never; the moment of the start is over just as much as the next.
            let at = at.max(Duration::from_nanos(1));
            value.tv_sec = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
            value.tv_nsec = i64::from(at.subsec_nanos());
        }
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for BootTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until a moment of that clock. Cancel-safe.
///
/// # Panics
/// Outside a Tokio runtime.
pub async fn sleep_until(until: BootInstant) {
    if BootInstant::now() >= until {
        return;
    }
    if wait_by_timer(until).await.is_ok() {
        return;
    }
    while BootInstant::now() < until {
        let left = until.saturating_duration_since(BootInstant::now());
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

#[expect(
    deprecated,
    reason = "what replaces it is unsafe; a timer owns its descriptor and keeps it"
)]
async fn wait_by_timer(until: BootInstant) -> io::Result<()> {
    let timer = BootTimer::new()?;
    timer.set(Some(until))?;
    let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
    timer.readable().await?.retain_ready();
    Ok(())
}

/// What `work` comes to, or nothing when it takes longer than until a moment of that clock.
pub async fn timeout_at<T>(until: BootInstant, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep_until(until) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn moments_are_counted_and_told_as_numbers() {
        let (now, hour) = (BootInstant::now(), Duration::from_secs(3600));
        let later = now + hour;
        assert!(later > now && now.elapsed() < hour);
        assert_eq!(later.saturating_duration_since(now), hour);
        assert_eq!(now.saturating_duration_since(later), Duration::ZERO);
        assert_eq!(later.elapsed(), Duration::ZERO);
        assert_eq!(BootInstant::from_nanos(later.as_nanos()), later);
        assert_eq!(BootInstant::from_nanos(-1), BootInstant::from_nanos(0));
        assert_eq!((now + Duration::MAX).as_nanos(), i64::MAX);
    }

    #[tokio::test]
    async fn waiting_ends_at_its_moment() {
        let (began, span) = (Instant::now(), Duration::from_millis(50));
        let until = BootInstant::now() + span;
        sleep_until(until).await;
        assert!(BootInstant::now() >= until && began.elapsed() >= span - Duration::from_millis(5));
        // What is over, however long ago, is not waited for.
        sleep_until(until).await;
        sleep_until(BootInstant::from_nanos(0)).await;
        assert_eq!(timeout_at(until, std::future::pending::<()>()).await, None);
        let far = BootInstant::now() + Duration::from_secs(3600);
        assert_eq!(timeout_at(far, async { 7 }).await, Some(7));
    }

    #[test]
    fn a_timer_can_be_set_again_and_put_off() {
        use rustix::event::{PollFd, PollFlags, poll};
        let timer = BootTimer::new().unwrap();
        let is_due = |patience| {
            let patience = Timespec {
                tv_sec: patience,
                tv_nsec: 0,
            };
            poll(&mut [PollFd::new(&timer, PollFlags::IN)], Some(&patience)).unwrap() == 1
        };
        assert!(!is_due(0));
        timer.set(Some(BootInstant::from_nanos(0))).unwrap();
        assert!(is_due(20));
        timer
            .set(Some(BootInstant::now() + Duration::from_secs(3600)))
            .unwrap();
        assert!(!is_due(0));
        timer.set(Some(BootInstant::now())).unwrap();
        assert!(is_due(20));
        timer.set(None).unwrap();
        assert!(!is_due(0));
    }
}
