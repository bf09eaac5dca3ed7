mod counters;
mod faults;
mod journal;
