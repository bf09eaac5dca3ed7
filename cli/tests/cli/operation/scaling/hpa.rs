//! The documented algorithm of a Kubernetes HorizontalPodAutoscaler with one external metric of type AverageValue.

use std::collections::VecDeque;

#[derive(Debug, Clone, Copy)]
pub struct Hpa {
    pub replicas_min: u32,
    pub replicas_max: u32,
    /// The slots of a pod times the target utilization.
    pub per_pod: f64,
    /// A ratio of metric to target within this distance of 1 changes nothing. Kubernetes' default is 0.1.
    pub tolerance: f64,
    /// A scale-up adds at most this percentage of pods or `up_pods` pods in one period, whichever is more.
    pub up_percent: u32,
    pub up_pods: u32,
    pub up_period_ms: u64,
    /// A scale-down stops at the highest recommendation within this time.
    pub down_window_ms: u64,
    /// A scale-down removes at most this percentage of pods in one period.
    pub down_percent: u32,
    pub down_period_ms: u64,
}

#[derive(Debug, Default)]
pub struct Memory {
    recommended: VecDeque<(u64, u32)>,
    changed: VecDeque<(u64, i64)>,
}

impl Hpa {
    /// Returns the recommendation before policies and windows limit it.
    pub fn recommend(&self, current: u32, metric: f64) -> u32 {
        let ratio = metric / (self.per_pod * f64::from(current.max(1)));
        if current > 0 && (ratio - 1.0).abs() <= self.tolerance {
            return current;
        }
        (metric / self.per_pod).ceil() as u32
    }

    pub fn decide(&self, memory: &mut Memory, now_ms: u64, current: u32, metric: f64) -> u32 {
        let bounded = |count: u32| count.clamp(self.replicas_min, self.replicas_max);
        let recommended = bounded(self.recommend(current, metric));
        memory.recommended.push_back((now_ms, recommended));
        while memory.recommended.front().is_some_and(|(at, _)| at + self.down_window_ms < now_ms) {
            memory.recommended.pop_front();
        }
        let highest = memory.recommended.iter().map(|(_, count)| *count).max().unwrap_or(recommended);
        let stable = if recommended > current { recommended } else { highest.min(current) };
        let limited = if stable > current {
            let start = self.at_the_start(memory, now_ms, self.up_period_ms, current, 1);
            let by_percent = (f64::from(start) * (1.0 + f64::from(self.up_percent) / 100.0)).ceil() as u32;
            stable.min(by_percent.max(start + self.up_pods).max(current))
        } else {
            let start = self.at_the_start(memory, now_ms, self.down_period_ms, current, -1);
            let floor = (f64::from(start) * (1.0 - f64::from(self.down_percent) / 100.0)) as u32;
            stable.max(floor.min(current))
        };
        let decided = bounded(limited);
        if decided != current {
            memory.changed.push_back((now_ms, i64::from(decided) - i64::from(current)));
        }
        decided
    }

    /// Returns the number of pods at the start of the policy's period. Considers only the changes in `direction`: 1 is
    /// up, and -1 is down.
    fn at_the_start(&self, memory: &mut Memory, now_ms: u64, period_ms: u64, current: u32, direction: i64) -> u32 {
        let longest = self.up_period_ms.max(self.down_period_ms);
        while memory.changed.front().is_some_and(|(at, _)| at + longest < now_ms) {
            memory.changed.pop_front();
        }
        let within = memory.changed.iter().filter(|(at, by)| at + period_ms > now_ms && by.signum() == direction);
        let changed: i64 = within.map(|(_, by)| *by).sum();
        u32::try_from(i64::from(current) - changed).unwrap_or(0)
    }
}
