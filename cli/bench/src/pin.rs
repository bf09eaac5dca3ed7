//! `--pin`: Redis has one core to itself, so that no other process delays a command.

#[cfg(not(target_os = "linux"))]
use anyhow::{Result, bail};
#[cfg(target_os = "linux")]
pub(super) use on_linux::Cores;

#[cfg(not(target_os = "linux"))]
pub(super) struct Cores(std::convert::Infallible);

#[cfg(not(target_os = "linux"))]
impl Cores {
    pub(super) fn leave_the_first() -> Result<Self> {
        bail!("--pin needs Linux: this system cannot bind a process to a core")
    }

    pub(super) const fn give_the_first(&self, _process: u32) -> Result<()> {
        match self.0 {}
    }
}

#[cfg(target_os = "linux")]
mod on_linux {
    use std::fs::read_dir;

    use anyhow::{Context, Result, bail, ensure};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(in super::super) struct Cores {
        first: CpuSet,
        others: CpuSet,
    }

    impl Cores {
        fn split() -> Result<Self> {
            let all = sched_getaffinity(None).context("asking for this process' cores")?;
            let mut found = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
            let mut first = CpuSet::new();
            let mut others = CpuSet::new();
            if let Some(core) = found.next() {
                first.set(core);
            }
            found.for_each(|core| others.set(core));
            ensure!(others.count() > 0, "--pin needs two cores: one for Redis, the others for the rest");
            Ok(Self { first, others })
        }

        pub(in super::super) fn leave_the_first() -> Result<Self> {
            let cores = Self::split()?;
            each_thread(std::process::id(), &cores.others)?;
            Ok(cores)
        }

        pub(in super::super) fn give_the_first(&self, process: u32) -> Result<()> {
            each_thread(process, &self.first)
        }
    }

    /// Threads that start later inherit the restriction.
    fn each_thread(process: u32, cores: &CpuSet) -> Result<()> {
        let threads = read_dir(format!("/proc/{process}/task")).with_context(|| format!("process {process}"))?;
        for thread in threads {
            let name = thread?.file_name();
            let Some(thread) = name.to_str().and_then(|name| rustix::thread::Pid::from_raw(name.parse().ok()?)) else {
                bail!("the system names a thread {}", name.display());
            };
            match sched_setaffinity(Some(thread), cores) {
                // The thread ended after the list was read.
                Err(rustix::io::Errno::SRCH) => {}
                done => done.with_context(|| format!("choosing the cores of process {process}"))?,
            }
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use std::collections::BTreeSet;
        use std::process::{Child, Command};

        use super::*;

        struct Waiting(Child);

        impl Waiting {
            fn start() -> Self {
                Self(Command::new("sleep").arg("60").spawn().unwrap())
            }

            fn cores(&self) -> BTreeSet<usize> {
                let id = rustix::thread::Pid::from_raw(self.0.id().try_into().unwrap());
                let may = sched_getaffinity(id).unwrap();
                (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).collect()
            }
        }

        impl Drop for Waiting {
            fn drop(&mut self) {
                drop(self.0.kill());
                drop(self.0.wait());
            }
        }

        #[test]
        fn the_first_core_is_reserved_for_one_process() {
            let one = Waiting::start();
            let other = Waiting::start();
            let all = one.cores();
            let Ok(cores) = Cores::split() else {
                assert_eq!(all.len(), 1, "only where there is one core is there none for the rest");
                return;
            };
            cores.give_the_first(one.0.id()).unwrap();
            each_thread(other.0.id(), &cores.others).unwrap();
            assert_eq!(one.cores().len(), 1);
            assert!(one.cores().is_disjoint(&other.cores()));
            assert_eq!(&one.cores() | &other.cores(), all);
        }
    }
}
