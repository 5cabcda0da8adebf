//! Work that waits for all other work: a thread that takes the lowest priority gets a core when no other thread wants
//! one. Threads and processes that it starts are like it, for good.

use std::cell::Cell;
use std::io;

thread_local! {
    static IS_LOW: Cell<bool> = const { Cell::new(false) };
}

/// Gives the calling thread the lowest priority, for good.
///
/// On Linux this is the policy for idle threads: any other thread interrupts it at once. With `nice` 19 alone, it would
/// keep the core for some milliseconds each time.
///
/// # Errors
/// The system's refusal. The thread then goes on as before.
pub fn take() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    let policy = set_idle_policy();
    #[cfg(not(target_os = "linux"))]
    let policy: io::Result<()> = Err(io::ErrorKind::Unsupported.into());
    policy.or_else(|_| rustix::process::setpriority_process(None, 19))?;
    IS_LOW.set(true);
    Ok(())
}

/// Whether the calling thread has taken the lowest priority.
pub fn is_taken() -> bool {
    IS_LOW.get()
}

#[cfg(target_os = "linux")]
fn set_idle_policy() -> io::Result<()> {
    let own_thread: libc::pid_t = 0;
    // The policy has no levels.
    let level: libc::c_int = 0;
    // SAFETY: sched_setscheduler(2) reads one `struct sched_param`, which is one int, and stores nothing. Not through
    // the C library: musl has no such function.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            own_thread,
            libc::SCHED_IDLE,
            &raw const level,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The scheduling policy of the calling thread (proc(5), field 41 of stat).
    fn policy() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("proc");
        // The second field is a name in parentheses, which may hold anything.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let policy = fields.split_whitespace().nth(38).expect("41 fields");
        policy.parse().expect("a number")
    }

    #[test]
    fn only_the_thread_that_asks_and_its_processes_are_low() {
        let low = std::thread::spawn(|| {
            take().expect("allowed");
            let child = std::process::Command::new("cat").arg("/proc/self/stat").output();
            let child = String::from_utf8(child.expect("cat").stdout).expect("text");
            (
                is_taken(),
                policy(),
                child.split_whitespace().nth(40).map(str::to_owned),
            )
        });
        let child = Some(libc::SCHED_IDLE.to_string());
        assert_eq!(low.join().expect("no panic"), (true, libc::SCHED_IDLE, child));
        assert_eq!((is_taken(), policy()), (false, libc::SCHED_OTHER));
    }
}
