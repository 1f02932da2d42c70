//! What a process says of itself among the metrics: under the names that Prometheus gives to that
//! everywhere, and the version of the program.

use std::fs;
use std::path::PathBuf;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use rustix::param::clock_ticks_per_second;

use crate::counters::Gauge;
use crate::descriptors;
use crate::metrics::Metrics;

/// Reads something that can change.
type Read = fn() -> Option<f64>;

/// Shows what this process uses, since when it runs, and as what, in which version.
pub fn export(metrics: &Metrics, role: &'static str) {
    let meter = metrics.meter("process");
    let about = vec![
        KeyValue::new("version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("role", role),
    ];
    let build = "Always 1: the version of the program, and the role that it has.";
    Gauge::show_all(&meter, "attune_build_info", build, move || {
        [(1.0, about.clone())]
    });
    meter
        .f64_observable_counter("process_cpu_seconds_total")
        .with_description(
            "Seconds of processor time that were used, of the user and of the system.",
        )
        .with_callback(|observer| {
            if let Some(seconds) = Stat::read().and_then(|stat| stat.cpu_seconds()) {
                observer.observe(seconds, &[]);
            }
        })
        .build();
    let begun = Stat::read().and_then(|stat| stat.begun());
    let gauges: [(_, _, Read); 5] = [
        (
            "process_resident_memory_bytes",
            "Memory that is in use, in bytes.",
            || status_bytes("VmRSS:"),
        ),
        (
            "process_virtual_memory_bytes",
            "Addresses that are in use, in bytes.",
            || status_bytes("VmSize:"),
        ),
        ("process_threads", "Threads that there are.", || {
            status_number("Threads:")
        }),
        (
            "process_open_fds",
            "Files and sockets that are open.",
            || Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64),
        ),
        (
            "process_max_fds",
            "Files and sockets that may be open at once.",
            || Some(descriptors::limit() as f64),
        ),
    ];
    for (name, help, read) in gauges {
        Gauge::show(&meter, name, help, read);
    }
    let help = "When the process began, in seconds since 1970.";
    Gauge::show(&meter, "process_start_time_seconds", help, move || begun);
}

/// Shows how much room there is where the process keeps its own files, each place with a word for it.
pub fn export_room(meter: &Meter, places: Vec<(&'static str, PathBuf)>) {
    let (free, size) = (places.clone(), places);
    let help = "Bytes that can still be written where the process keeps its files.";
    Gauge::show_all(meter, "disk_free_bytes", help, move || {
        room(&free, |disk| disk.f_bavail)
    });
    let help = "Bytes of the file systems where the process keeps its files.";
    Gauge::show_all(meter, "disk_size_bytes", help, move || {
        room(&size, |disk| disk.f_blocks)
    });
}

fn room(
    places: &[(&'static str, PathBuf)],
    blocks: fn(&rustix::fs::StatVfs) -> u64,
) -> Vec<(f64, Vec<KeyValue>)> {
    let rooms = places.iter().filter_map(|(place, path)| {
        let disk = rustix::fs::statvfs(path).ok()?;
        let bytes = blocks(&disk).saturating_mul(disk.f_frsize);
        Some((bytes as f64, vec![KeyValue::new("place", *place)]))
    });
    rooms.collect()
}

/// The third field of `/proc/self/stat` and those after it: the name before them may hold anything.
struct Stat(Vec<u64>);

impl Stat {
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = text.rsplit_once(')')?;
        let numbers = fields.split_whitespace().skip(1);
        Some(Self(numbers.map(|it| it.parse().unwrap_or(0)).collect()))
    }

    /// A field by the number that `man 5 proc` gives it, of those that are times, in seconds.
    fn seconds(&self, field: usize) -> Option<f64> {
        let ticks = *self.0.get(field - 4)?;
        Some(ticks as f64 / clock_ticks_per_second() as f64)
    }

    fn cpu_seconds(&self) -> Option<f64> {
        Some(self.seconds(14)? + self.seconds(15)?)
    }

    /// When the process began, in seconds since 1970.
    fn begun(&self) -> Option<f64> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let booted = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        Some(booted.trim().parse::<f64>().ok()? + self.seconds(22)?)
    }
}

fn status_number(name: &str) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn status_bytes(name: &str) -> Option<f64> {
    status_number(name).map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn value(text: &str, name: &str) -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("{name} is missing:\n{text}"));
        value.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_process_says_what_it_uses_and_what_it_is() {
        let metrics = Metrics::new();
        export(&metrics, "worker");
        let place = vec![("data_dir", std::env::temp_dir())];
        export_room(&metrics.meter("disk"), place);
        let text = metrics.render();
        let version = env!("CARGO_PKG_VERSION");
        let build = format!("attune_build_info{{role=\"worker\",version=\"{version}\"}} 1");
        assert!(text.contains(&build), "{text}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - value(&text, "process_start_time_seconds ");
        assert!((-2.0..3_600.0).contains(&age), "{age}");
        assert!(value(&text, "process_cpu_seconds_total ") >= 0.0);
        assert!(value(&text, "process_threads ") >= 1.0);
        let (resident, all) = (
            "process_resident_memory_bytes ",
            "process_virtual_memory_bytes ",
        );
        assert!(value(&text, resident) > 100_000.0);
        assert!(value(&text, all) >= value(&text, resident));
        assert!(value(&text, "process_open_fds ") >= 3.0);
        assert!(value(&text, "process_max_fds ") >= value(&text, "process_open_fds "));
        let (free, size) = (
            "disk_free_bytes{place=\"data_dir\"}",
            "disk_size_bytes{place=\"data_dir\"}",
        );
        assert!(value(&text, size) >= value(&text, free));
    }
}
