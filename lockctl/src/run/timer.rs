//! A timer that does not stand still while the machine is suspended, as leases do not either.

use std::io;
use std::time::Duration;

/// A timer whose clock counts the time for which the machine is suspended. On systems other than Linux, that of the
/// runtime, which may stand still then.
pub(super) struct BootTimer {
    #[cfg(target_os = "linux")]
    timer: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl BootTimer {
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        use tokio::io::Interest;
        use tokio::io::unix::AsyncFd;

        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // Its successor is an unsafe function, for types whose descriptors may change; this one does not.
        #[allow(deprecated)]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Self { timer })
    }

    /// Waits for this time. If the machine was suspended meanwhile, until it continues at the latest.
    ///
    /// Cancel safe: the next call sets the timer anew.
    pub(super) async fn sleep(&mut self, pause: Duration) -> io::Result<()> {
        use std::os::fd::OwnedFd;

        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        use tokio::io::unix::AsyncFd;

        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would stop the timer.
        let pause = Timespec::try_from(pause.max(Duration::from_nanos(1)));
        let pause = pause.unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let once = Itimerspec { it_interval: never, it_value: pause };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            // Nothing can be read if an earlier call was ready.
            let read =
                |timer: &AsyncFd<OwnedFd>| Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8])?);
            if let Ok(read) = ready.try_io(read) {
                return read.map(drop);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl BootTimer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(super) async fn sleep(&mut self, pause: Duration) -> io::Result<()> {
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::since_boot;

    #[tokio::test]
    async fn each_sleep_takes_its_own_time() {
        let mut timer = BootTimer::new().expect("a timer");
        let short = Duration::from_millis(20);
        for pause in [short, Duration::ZERO, short * 2] {
            let began = since_boot();
            timer.sleep(pause).await.expect("a timer");
            assert!(since_boot() >= began + pause);
        }
        let long = Duration::from_secs(3600);
        assert!(tokio::time::timeout(short, timer.sleep(long)).await.is_err());
        assert!(tokio::time::timeout(long, timer.sleep(short)).await.is_ok(), "it is set anew");
        let endless = timer.sleep(Duration::MAX);
        assert!(tokio::time::timeout(short, endless).await.is_err());
    }
}
