//! The report: text and tables.

use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Result;

use crate::contestant::Contestant;
use crate::contestant::ServerKind;
use crate::figures::median;
use crate::metric::{GRANTS, IDLE_P50, Metric, Unit};
use crate::results::Results;
use crate::targets::targets;
use crate::workloads::Workload;

/// Information about the whole run.
pub(crate) struct RunInfo {
    /// One paragraph: machine, server, duration.
    pub(crate) about: String,
    /// The name and the settings of each contestant, as printed by it.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// The contestants that could not take part, and the reasons.
    pub(crate) absent: Vec<(&'static str, String)>,
}

/// Formats the results of a workload as tables.
pub(crate) fn tables(workload: &Workload, results: &Results) -> Result<String, fmt::Error> {
    let mut text = String::new();
    writeln!(text, "## {}\n", workload.title)?;
    if let Some(round_trip) = median(&results.round_trips).filter(|nanos| *nanos > 0.0) {
        writeln!(text, "Round trip to the idle server: {}.\n", IDLE_P50.write(round_trip))?;
    }
    for failure in results.failures() {
        writeln!(text, "{failure}\n")?;
    }
    for shape in results.shapes() {
        if !shape.is_empty() {
            writeln!(text, "### {shape}\n")?;
        }
        let contestants = results.contestants(shape);
        let has = |metric: &&Metric| {
            contestants.iter().any(|c| results.median(shape, c.name, **metric).is_some())
        };
        let metrics: Vec<&Metric> = results.metrics.iter().filter(has).collect();
        write!(text, "| contestant |")?;
        metrics.iter().try_for_each(|metric| write!(text, " {} |", metric.name))?;
        write!(text, "\n|---|")?;
        metrics.iter().try_for_each(|_| write!(text, "---:|"))?;
        writeln!(text)?;
        for contestant in &contestants {
            row(&mut text, results, shape, contestant, &metrics)?;
        }
        writeln!(text)?;
        remarks(&mut text, results, shape, &contestants)?;
    }
    Ok(text)
}

fn row(
    text: &mut String,
    results: &Results,
    shape: &str,
    contestant: &Contestant,
    metrics: &[&Metric],
) -> fmt::Result {
    let overlaps = results.overlaps(shape, contestant.name);
    write!(text, "| {} |", contestant.name)?;
    for metric in metrics {
        match results.median(shape, contestant.name, **metric) {
            None => write!(text, " |")?,
            Some(value) if overlaps > 0 => write!(text, " ~~{}~~ |", metric.write(value))?,
            Some(value) => write!(text, " {} |", metric.write(value))?,
        }
    }
    writeln!(text)
}

fn remarks(
    text: &mut String,
    results: &Results,
    shape: &str,
    contestants: &[&'static Contestant],
) -> fmt::Result {
    let mut lines = Vec::new();
    for contestant in contestants {
        let name = contestant.name;
        let overlaps = results.overlaps(shape, name);
        if overlaps > 0 {
            lines.push(format!(
                "**{name}: {overlaps} grants while the lock was held; its figures do not count.**"
            ));
        }
        lines.extend(results.notes(shape, name).iter().map(|note| format!("{name}: {note}.")));
    }
    let metric = results.main_metric();
    let lead = results.lead(shape, "ours", metric).filter(|_| metric.unit != Unit::Share);
    if let Some(lead) = lead {
        let what = if metric == GRANTS { "grants" } else { metric.name };
        lines.push(format!("Ours against the best peer in {what}: {lead}."));
    }
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(text, "{}\n", lines.join("  \n"))
}

/// Formats the targets as a table.
pub(crate) fn target_table(servers: ServerKind, results: &[Results]) -> Result<String, fmt::Error> {
    let mut text = String::from("| figure | target | measured | |\n|---|---:|---:|---|\n");
    for target in targets(servers, results) {
        let verdict = match target.measured {
            None => "",
            Some(_) if target.is_met => "met",
            Some(_) => "**missed**",
        };
        let (what, wanted, written) = (target.what, target.wanted, target.written);
        writeln!(text, "| {what} | {wanted} | {written} | {verdict} |")?;
    }
    Ok(text)
}

/// Formats the whole report.
pub(crate) fn document(
    run: &RunInfo,
    workloads: &[(&Workload, &Results)],
    targets: &str,
    plots: &[(String, String)],
) -> Result<String> {
    let mut text = String::from(
        "# Results\n\nWritten by `scripts/bench`. The [README](README.md) describes the \
         measurements.\n\n",
    );
    writeln!(text, "{}\n", run.about)?;
    writeln!(text, "## Targets\n\n{targets}")?;
    for (workload, results) in workloads {
        text.push_str(&tables(workload, results)?);
        for (_, file) in plots.iter().filter(|(name, _)| name == workload.name) {
            writeln!(text, "![{}](plots/{file})\n", workload.title)?;
        }
    }
    writeln!(
        text,
        "## Contestants and settings\n\n| contestant | version | settings |\n|---|---|---|"
    )?;
    for (name, about) in &run.settings {
        let (version, settings) = about.split_once('|').unwrap_or((about, ""));
        let version = version.trim().strip_prefix(name).unwrap_or(version).trim();
        writeln!(text, "| {name} | {version} | {} |", settings.trim())?;
    }
    for (name, why) in &run.absent {
        writeln!(text, "| {name} | | left out: {why} |")?;
    }
    Ok(text)
}

/// Writes the report to a file.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    Ok(std::fs::write(path, text)?)
}
