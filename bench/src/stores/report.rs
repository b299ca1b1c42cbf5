//! The report on the stores.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::contestant::StoreKind;
use crate::metric::Metric;
use crate::options::StoreOptions;
use crate::results::Results;

/// What is known of a run besides its figures.
pub(super) struct StoreReport {
    /// What runs, for each store.
    pub(super) servers: Vec<(StoreKind, String)>,
    /// The settings of each contestant, as printed by it.
    pub(super) settings: Vec<(StoreKind, &'static str, String)>,
    /// The contestants that could not take part, and the reasons.
    pub(super) absent: Vec<(StoreKind, &'static str, String)>,
}

impl StoreReport {
    pub(super) fn new() -> Self {
        Self { servers: Vec::new(), settings: Vec::new(), absent: Vec::new() }
    }

    /// Formats the whole report.
    pub(super) fn write<'a>(
        &self,
        options: &StoreOptions,
        took: Duration,
        workloads: impl Iterator<Item = (&'static str, &'a Results)>,
    ) -> Result<String, fmt::Error> {
        let mut text = String::from(
            "# Stores\n\nWritten by `scripts/bench stores`. The [README](README.md#stores) describes the measurements.\n\n",
        );
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kind = if options.quick { "A quick run" } else { "A run" };
        let minutes = (took.as_secs_f64() / 60.0).ceil();
        writeln!(
            text,
            "{kind} of {minutes:.0} minutes on {cores} cores, with the servers on the same machine; rates over {:?} on a hot key, \
             and over half of that without contention, in {} turns per round; medians over all turns, in which the contestants \
             of a store run one after the other. Compare only figures of one run.\n\n| store | servers | failover |\n|---|---|---|",
            options.time(),
            options.turns(),
        )?;
        for (store, about) in &self.servers {
            writeln!(text, "| {} | {about} | {} |", store.title(), store.fault())?;
        }
        for (title, results) in workloads {
            writeln!(text, "\n## {title}\n")?;
            table(&mut text, results)?;
        }
        writeln!(
            text,
            "\n## Contestants and settings\n\n| store | contestant | version | settings |\n|---|---|---|---|"
        )?;
        for (store, name, about) in &self.settings {
            let (version, settings) = about.split_once('|').unwrap_or((about, ""));
            let version = version.trim().strip_prefix(name).unwrap_or(version).trim();
            writeln!(text, "| {} | {name} | {version} | {} |", store.title(), settings.trim())?;
        }
        for (store, name, why) in &self.absent {
            writeln!(text, "| {} | {name} | | left out: {why} |", store.title())?;
        }
        Ok(text)
    }
}

/// The results of one workload, for all stores.
fn table(text: &mut String, results: &Results) -> fmt::Result {
    write!(text, "| store | contestant |")?;
    results.metrics.iter().try_for_each(|metric| write!(text, " {} |", metric.name))?;
    write!(text, " ours, against the best peer | ours, against the limit |\n|---|---|")?;
    results.metrics.iter().try_for_each(|_| write!(text, "---:|"))?;
    writeln!(text, "---:|---:|")?;
    let mut remarks = Vec::new();
    for store in results.shapes() {
        for contestant in results.contestants(store) {
            let name = contestant.name;
            write!(text, "| {store} | {name} |")?;
            let figure = |metric: &Metric| match results.median(store, name, *metric) {
                None => String::new(),
                Some(value) if results.overlaps(store, name) > 0 => {
                    format!("~~{}~~", metric.write(value))
                }
                Some(value) => metric.write(value),
            };
            results.metrics.iter().try_for_each(|metric| write!(text, " {} |", figure(metric)))?;
            let main = results.main_metric();
            for ratio in
                [results.lead(store, name, main), results.share_of_limit(store, name, main)]
            {
                let ratio = ratio.filter(|_| name == "ours");
                write!(text, " {} |", ratio.map(|ratio| ratio.to_string()).unwrap_or_default())?;
            }
            writeln!(text)?;
            let overlaps = results.overlaps(store, name);
            if overlaps > 0 {
                remarks.push(format!(
                    "**{store}, {name}: {overlaps} grants while the lock was held; its figures do not count.**"
                ));
            }
            let notes = results.notes(store, name);
            remarks.extend(notes.iter().map(|note| format!("{store}, {name}: {note}.")));
        }
    }
    if !remarks.is_empty() {
        write!(text, "\n{}\n", remarks.join("  \n"))?;
    }
    Ok(())
}
