//! Bar charts of the results.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contestant::Role;
use crate::metric::Metric;
use crate::results::Results;

const WIDTH: u32 = 760;
const ROW: i32 = 20;
const TITLE: i32 = 34;
const HEADING: i32 = 26;
const NAMES: i32 = 140;
const FIGURES: i32 = 110;

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const PEERS: RGBColor = RGBColor(0xb0, 0xb7, 0xbf);
const LIMITS: RGBColor = RGBColor(0xe0, 0xa0, 0x3c);

struct Bar {
    name: &'static str,
    role: Role,
    value: f64,
}

/// Draws a panel of bars for each shape. All panels share a logarithmic scale. Returns whether
/// there was anything to draw.
pub(crate) fn plot(file: &Path, title: &str, results: &Results, metric: Metric) -> Result<bool> {
    let panels: Vec<(&str, Vec<Bar>)> =
        results.shapes().into_iter().map(|shape| (shape, bars(results, shape, metric))).collect();
    let values = panels.iter().flat_map(|(_, bars)| bars.iter().map(|bar| bar.value));
    let Some(scale) = Scale::over(values) else { return Ok(false) };
    let height =
        panels.iter().map(|(_, bars)| HEADING + bars.iter().map(|_| ROW).sum::<i32>()).sum::<i32>();
    let height = TITLE + height + 10;

    let area = SVGBackend::new(file, (WIDTH, height.unsigned_abs())).into_drawing_area();
    let drawn = |error: DrawingAreaErrorKind<_>| anyhow!("cannot draw: {error}");
    area.fill(&WHITE).map_err(drawn)?;
    let better = if metric.rises() { "more is better" } else { "less is better" };
    let caption = format!("{title}: {}, {better}, logarithmic", metric.name);
    area.draw(&Text::new(caption, (10, 10), ("sans-serif", 18).into_font())).map_err(drawn)?;
    let mut y = TITLE;
    for (shape, bars) in &panels {
        let heading = ("sans-serif", 16).into_font().style(FontStyle::Bold);
        area.draw(&Text::new((*shape).to_owned(), (10, y + 4), heading)).map_err(drawn)?;
        y += HEADING;
        for bar in bars {
            let end = NAMES + scale.length(bar.value);
            let rectangle =
                Rectangle::new([(NAMES, y + 2), (end, y + ROW - 3)], bar.color().filled());
            area.draw(&rectangle).map_err(drawn)?;
            let text = ("sans-serif", 15).into_font().color(&BLACK);
            let name = text.pos(Pos::new(HPos::Right, VPos::Center));
            let figure = text.pos(Pos::new(HPos::Left, VPos::Center));
            let middle = y + ROW / 2;
            area.draw(&Text::new(bar.name, (NAMES - 6, middle), name)).map_err(drawn)?;
            area.draw(&Text::new(metric.write(bar.value), (end + 6, middle), figure))
                .map_err(drawn)?;
            y += ROW;
        }
    }
    area.present().map_err(drawn)?;
    Ok(true)
}

/// The bars of a shape. Figures that do not count are left out.
fn bars(results: &Results, shape: &str, metric: Metric) -> Vec<Bar> {
    let contestants = results.contestants(shape).into_iter();
    let bar = |contestant: &'static crate::contestant::Contestant| {
        let value = results.counted(shape, contestant.name, metric)?;
        Some(Bar { name: contestant.name, role: contestant.role, value })
    };
    contestants.filter_map(bar).filter(|bar| bar.value > 0.0).collect()
}

impl Bar {
    fn color(&self) -> RGBColor {
        match self.role {
            Role::Ours => OURS,
            Role::Peer | Role::Baseline => PEERS,
            Role::Limit => LIMITS,
        }
    }
}

/// Converts values to pixels.
#[derive(Debug, Clone, Copy)]
struct Scale {
    lowest: f64,
    highest: f64,
}

impl Scale {
    /// A scale from half of the lowest value to the highest value.
    fn over(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (lowest, highest) = values
            .fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        (highest > 0.0).then_some(Self { lowest: lowest / 2.0, highest })
    }

    fn length(&self, value: f64) -> i32 {
        let share = (value / self.lowest).ln() / (self.highest / self.lowest).ln();
        let longest = f64::from(WIDTH) - f64::from(NAMES + FIGURES);
        (share * longest) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_width_and_the_shortest_is_visible() {
        let scale = Scale::over([100.0, 1.0].into_iter()).unwrap();
        assert_eq!(scale.length(100.0), WIDTH.cast_signed() - NAMES - FIGURES);
        assert!(scale.length(1.0) > 20);
        assert!(Scale::over(std::iter::empty()).is_none());
    }
}
