//! The results in words and tables.

use std::fmt::{self, Write};
use std::path::Path;

use anyhow::Result;

use crate::column::{Column, GRANTS, IDLE_P50, Unit};
use crate::contestant::Contestant;
use crate::figures::median;
use crate::results::Results;
use crate::targets::targets;
use crate::workloads::Workload;

/// What is to be known about the run as a whole.
pub(crate) struct Run {
    /// One line: machine, server, time.
    pub(crate) about: String,
    /// What each contestant says of itself.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// Who could not take part, and why.
    pub(crate) absent: Vec<(&'static str, String)>,
}

/// One workload as tables.
pub(crate) fn tables(workload: &Workload, results: &Results) -> Result<String, fmt::Error> {
    let mut text = String::new();
    writeln!(text, "## {}\n", workload.title)?;
    if let Some(round_trip) = median(&results.round_trips).filter(|nanos| *nanos > 0.0) {
        writeln!(text, "The round trip to the idle server: {}.\n", IDLE_P50.write(round_trip))?;
    }
    for failure in results.failures() {
        writeln!(text, "{failure}\n")?;
    }
    for shape in results.shapes() {
        if !shape.is_empty() {
            writeln!(text, "### {shape}\n")?;
        }
        let contestants = results.contestants(shape);
        let has = |column: &&Column| {
            contestants.iter().any(|c| results.median(shape, c.name, **column).is_some())
        };
        let columns: Vec<&Column> = results.columns.iter().filter(has).collect();
        write!(text, "| contestant |")?;
        columns.iter().try_for_each(|column| write!(text, " {} |", column.name))?;
        write!(text, "\n|---|")?;
        columns.iter().try_for_each(|_| write!(text, "---:|"))?;
        writeln!(text)?;
        for contestant in &contestants {
            row(&mut text, results, shape, contestant, &columns)?;
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
    columns: &[&Column],
) -> fmt::Result {
    let overlaps = results.overlaps(shape, contestant.name);
    write!(text, "| {} |", contestant.name)?;
    for column in columns {
        match results.median(shape, contestant.name, **column) {
            None => write!(text, " |")?,
            Some(value) if overlaps > 0 => write!(text, " ~~{}~~ |", column.write(value))?,
            Some(value) => write!(text, " {} |", column.write(value))?,
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
                "**{name}: {overlaps} grants while another had the lock; its figures do not count.**"
            ));
        }
        lines.extend(results.notes(shape, name).iter().map(|note| format!("{name}: {note}.")));
    }
    let column = results.main_column();
    let lead = results.lead(shape, "ours", column).filter(|_| column.unit != Unit::Share);
    if let Some((peer, lead)) = lead {
        let what = if column == GRANTS { "grants" } else { column.name };
        lines.push(format!("Ours against the best peer, {peer}, in {what}: {lead:.2} ×."));
    }
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(text, "{}\n", lines.join("  \n"))
}

/// The targets as a table.
pub(crate) fn target_table(results: &[Results]) -> Result<String, fmt::Error> {
    let mut text = String::from("| figure | wanted | measured | |\n|---|---:|---:|---|\n");
    for target in targets(results) {
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

/// Everything.
pub(crate) fn document(
    run: &Run,
    workloads: &[(&Workload, &Results)],
    targets: &str,
    plots: &[(String, String)],
) -> Result<String> {
    let mut text = String::from(
        "# Results\n\nWritten by `scripts/bench`; how it measures is in the [README](README.md).\n\n",
    );
    writeln!(text, "{}\n", run.about)?;
    writeln!(text, "## What is to be shown\n\n{targets}")?;
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

/// Writes the document.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    Ok(std::fs::write(path, text)?)
}
