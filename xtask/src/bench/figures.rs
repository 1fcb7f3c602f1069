//! Line figures for the report, as SVG whose colours are the page's own, light or dark.

use super::html::escape;
use anyhow::{anyhow, Result};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// One measured point with its spread.
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub least: f64,
    pub most: f64,
}

pub struct Line {
    pub name: &'static str,
    pub colour: Colour,
    pub points: Vec<Point>,
}

/// How the horizontal axis grows.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    Linear,
    Logarithmic,
}

/// Small enough that its letters can be read on a phone.
const SIZE: (u32, u32) = (500, 310);

/// Whose line it is, dark or light: told apart by people who see few colours, too.
#[derive(Clone, Copy)]
pub enum Colour {
    Ours,
    OursLight,
    Linux,
    LinuxLight,
}

impl Colour {
    /// The class in `report.css`.
    fn class(self) -> &'static str {
        match self {
            Colour::Ours => "ours",
            Colour::OursLight => "ours-light",
            Colour::Linux => "linux",
            Colour::LinuxLight => "linux-light",
        }
    }

    /// What stands for the page's colour until [`themed`] puts that there.
    fn value(self) -> RGBColor {
        RGBColor(1, 2, 3 + self as u8)
    }
}

/// The drawing with the page's colours.
fn themed(svg: &str) -> String {
    let mut svg =
        svg.replace("\"#FFFFFF\"", "\"var(--paper)\"").replace("\"#000000\"", "\"var(--ink)\"");
    for colour in [Colour::Ours, Colour::OursLight, Colour::Linux, Colour::LinuxLight] {
        let RGBColor(red, green, blue) = colour.value();
        let name = format!("\"var(--{})\"", colour.class());
        svg = svg.replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &name);
    }
    svg
}

fn legend(lines: &[Line]) -> String {
    let line = |line: &Line| {
        format!("<span class=\"{}\">{}</span>", line.colour.class(), escape(line.name))
    };
    let shown: String = lines.iter().filter(|line| !line.points.is_empty()).map(line).collect();
    format!("<div class=\"legend\">{shown}</div>\n")
}

/// The figure with its legend; none where nothing was measured.
pub fn draw(lines: &[Line], scale: Scale, x_name: &str, y_name: &str) -> Result<Option<String>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|point| point.most).fold(0.0, f64::max) * 1.08;
    let first = points().map(|point| point.x).fold(f64::INFINITY, f64::min);
    let last = points().map(|point| point.x).fold(0.0, f64::max);
    if !first.is_finite() || most <= 0.0 {
        return Ok(None);
    }
    let svg = match scale {
        Scale::Linear => {
            let margin = ((last - first) * 0.04).max(0.1);
            let x = first - margin..last + margin;
            chart(lines, x, most, [x_name, y_name])?
        }
        Scale::Logarithmic => {
            let x = (first * 0.85..last * 1.2).log_scale();
            chart(lines, x, most, [x_name, y_name])?
        }
    };
    Ok(Some(themed(&svg) + &legend(lines)))
}

/// A number beside an axis, without the digits that adding up has left.
fn label(value: f64) -> String {
    ((value * 1000.0).round() / 1000.0).to_string()
}

fn chart<X>(lines: &[Line], x: X, most: f64, names: [&str; 2]) -> Result<String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let broken = |error: &dyn std::fmt::Display| anyhow!("can't draw a figure: {error}");
        area.fill(&WHITE).map_err(|error| broken(&error))?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(x, 0.0..most)
            .map_err(|error| broken(&error))?;
        chart
            .configure_mesh()
            .x_desc(names[0])
            .y_desc(names[1])
            .light_line_style(WHITE)
            .x_label_formatter(&|x| label(*x))
            .y_label_formatter(&|y| label(*y))
            .axis_desc_style(("sans-serif", 15))
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(|error| broken(&error))?;
        for line in lines {
            let colour = line.colour.value();
            let style = colour.stroke_width(2);
            let points = line.points.iter().map(|point| (point.x, point.y));
            chart
                .draw_series(LineSeries::new(points.clone(), style))
                .map_err(|error| broken(&error))?;
            let dots = points.map(|at| Circle::new(at, 4, colour.filled()));
            chart.draw_series(dots).map_err(|error| broken(&error))?;
            let spreads = line.points.iter().map(|point| {
                PathElement::new(
                    [(point.x, point.least), (point.x, point.most)],
                    colour.stroke_width(1),
                )
            });
            chart.draw_series(spreads).map_err(|error| broken(&error))?;
        }
        area.present().map_err(|error| broken(&error))?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_lines_and_names() {
        let point = |x: f64, y: f64| Point { x, y, least: y * 0.9, most: y * 1.1 };
        let lines = [Line {
            name: "ours",
            colour: Colour::Ours,
            points: vec![point(10.0, 1.0), point(1000.0, 2.0)],
        }];
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = draw(&lines, scale, "files", "time").unwrap().unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("<polyline") && svg.contains("ours"));
            assert!(svg.contains("\"var(--ours)\"") && !svg.contains("\"#"), "{svg}");
        }
        assert!(draw(&[], Scale::Linear, "files", "time").unwrap().is_none());
    }
}
