//! A picture of one contended lock: when each task of several processes waits for it and holds it.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::contestant::OURS;
use crate::figures::ProcessGrant;
use crate::workloads::Bench;
use crate::workloads::run::{Load, run};

const PROCESSES: usize = 3;
const TASKS: usize = 3;
/// How long a task holds the lock.
const WORK: Duration = Duration::from_millis(4);
/// What the picture shows, in milliseconds.
const SHOWN: f64 = 240.0;
/// The milliseconds between two marks of the time.
const MARK: f64 = 40.0;

// In pixels.
const LEFT: f64 = 150.0;
const TOP: f64 = 56.0;
const ROW: f64 = 18.0;
const GAP: f64 = 12.0;
const WIDTH: f64 = 900.0;
const RIGHT: f64 = 32.0;

const STYLE: &str = "\
    text { font: 13px system-ui, sans-serif; fill: #24292f }\n\
    .title { font-weight: 600; font-size: 15px }\n\
    .faint { fill: #6e7781 }\n\
    .mark { stroke: #d0d7de }\n\
    .waits { fill: #cfe2f5 }\n\
    .holds { fill: #1f6fb4 }\n\
    @media (prefers-color-scheme: dark) {\n\
    text { fill: #e6edf3 }\n\
    .faint { fill: #8b949e }\n\
    .mark { stroke: #30363d }\n\
    .waits { fill: #1c3a57 }\n\
    .holds { fill: #58a6ff }\n\
    }\n";

/// Lets the tasks compete, and draws them.
pub(crate) fn draw(bench: &mut Bench, file: &Path) -> Result<()> {
    let mut processes = (0..PROCESSES).map(|_| bench.start(&OURS)).collect::<Result<Vec<_>>>()?;
    let load = Load { tasks: TASKS, work: WORK, keys: "order:42", one_more: None };
    let outcome = run(bench, &mut processes, &load)?;
    ensure!(outcome.history.overlaps == 0, "two tasks held the lock at the same time");
    // In the middle of the run, when all processes compete.
    let middle = outcome.period.start + (outcome.period.end - outcome.period.start) / 2;
    let text = picture(&outcome.grants, middle);
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The picture of the grants after this time.
fn picture(grants: &[ProcessGrant], from: u64) -> String {
    let row_of = |process: usize, task: usize| {
        TOP + (process * TASKS + task) as f64 * ROW + process as f64 * GAP
    };
    let bottom = row_of(PROCESSES - 1, TASKS - 1) + ROW;
    let millis = |at: u64| (at as f64 - from as f64) / 1e6;
    let x = |millis: f64| LEFT + millis.clamp(0.0, SHOWN) / SHOWN * (WIDTH - LEFT - RIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\">\n\
         <title>Nine tasks of three processes take turns with one lock</title>\n\
         <style>\n{STYLE}</style>\n\
         <text class=\"title\" x=\"10\" y=\"22\">One lock, {PROCESSES} processes with {TASKS} tasks each</text>\n\
         <rect class=\"waits\" x=\"{LEFT}\" y=\"33\" width=\"26\" height=\"10\"/>\
         <text x=\"{}\" y=\"43\">waits</text>\n\
         <rect class=\"holds\" x=\"{}\" y=\"33\" width=\"26\" height=\"10\"/>\
         <text x=\"{}\" y=\"43\">holds the lock for {} ms</text>\n",
        bottom + 34.0,
        LEFT + 32.0,
        LEFT + 90.0,
        LEFT + 122.0,
        WORK.as_millis(),
    );
    // Writing to a string cannot fail.
    let mut mark = 0.0;
    while mark <= SHOWN {
        let x = x(mark);
        let _ = writeln!(
            svg,
            "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"faint\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{}\">{mark} ms</text>",
            bottom + 20.0
        );
        mark += MARK;
    }
    for process in 0..PROCESSES {
        let y = row_of(process, 0) + TASKS as f64 * ROW / 2.0 + 4.0;
        let _ = writeln!(svg, "<text x=\"10\" y=\"{y:.1}\">process {}</text>", process + 1);
        for task in 0..TASKS {
            let y = row_of(process, task) + ROW / 2.0 + 4.0;
            let _ = writeln!(
                svg,
                "<text class=\"faint\" text-anchor=\"end\" x=\"{}\" y=\"{y:.1}\">task {}</text>",
                LEFT - 8.0,
                task + 1
            );
        }
    }
    for ProcessGrant { process, record } in grants {
        let y = row_of(*process, record.task as usize) + 3.0;
        let mut bar = |class: &str, begin: u64, end: u64| {
            let (begin, end) = (x(millis(begin)), x(millis(end)));
            if end > begin {
                let (width, height) = (end - begin, ROW - 6.0);
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{begin:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\"/>"
                );
            }
        };
        bar("waits", record.requested, record.granted);
        bar("holds", record.granted, record.released);
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn only_what_is_in_the_window_is_drawn() {
        let at = |millis: u64| 1_000_000_000 + millis * 1_000_000;
        let grant = |requested, granted, released| ProcessGrant {
            process: 1,
            record: Record {
                requested: at(requested),
                granted: at(granted),
                released: at(released),
                task: 2,
                key: 0,
            },
        };
        let none = picture(&[], at(100));
        let bars = |grants: &[ProcessGrant]| picture(grants, at(100)).matches("<rect").count();
        assert_eq!(none.matches("<rect").count(), 2, "the legend");
        assert_eq!(bars(&[grant(110, 120, 124)]), 4);
        assert_eq!(bars(&[grant(90, 96, 99), grant(400, 401, 402)]), 2, "before and after");
        assert_eq!(bars(&[grant(90, 98, 102)]), 3, "its end is in the window");
    }
}
