//! Charts, one SVG a file.
//!
//! Invariant: an axis begins at zero, so that what looks twice as large is, or its marks are each
//! as many times the one before. Pending counts are drawn evenly apart: they grow tenfold each
//! time.

use std::path::Path;

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::amount;

const SIZE: (u32, u32) = (800, 450);
/// Distinct also to those who do not tell red from green (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const FONT: &str = "sans-serif";
/// Room above the highest value.
const HEADROOM: f64 = 1.15;

/// A picture of some figures.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// Of the file, without its ending.
    pub(crate) name: String,
    pub(crate) title: String,
    kind: ChartKind,
}

#[derive(Clone, Debug)]
enum ChartKind {
    Bars(Vec<(String, f64)>),
    Lines { axes: Axes, lines: Vec<ChartLine> },
}

/// What the axes are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes {
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    /// Whether each mark of the upright one is as many times the one before, from 1 on.
    pub(crate) logarithmic: bool,
}

/// A line of a chart; all lines of one have the same x, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct ChartLine {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether it is there to be compared with: a thin line in the colour of the one before.
    pub(crate) is_reference: bool,
}

impl ChartLine {
    /// A line without points.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), points: Vec::new(), is_reference: false }
    }
}

impl Chart {
    /// Quantities side by side.
    pub(crate) fn bars(name: &str, title: &str, bars: &[(String, f64)]) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            kind: ChartKind::Bars(bars.to_vec()),
        }
    }

    /// How quantities change.
    pub(crate) fn lines(name: &str, title: &str, axes: Axes, lines: Vec<ChartLine>) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            kind: ChartKind::Lines { axes, lines },
        }
    }

    /// Draws it into a folder.
    pub(crate) fn draw(&self, folder: &Path) {
        let file = folder.join(&self.name).with_extension("svg");
        let area = SVGBackend::new(&file, SIZE).into_drawing_area();
        area.fill(&WHITE).unwrap();
        let mut builder = ChartBuilder::on(&area);
        builder.caption(&self.title, (FONT, 20)).margin(16).x_label_area_size(44);
        builder.y_label_area_size(72);
        match &self.kind {
            ChartKind::Bars(bars) => draw_bars(&mut builder, bars),
            ChartKind::Lines { axes, lines } => draw_lines(&mut builder, *axes, lines),
        }
        area.present().unwrap();
    }
}

type SvgChartBuilder<'a, 'b> = ChartBuilder<'a, 'b, SVGBackend<'b>>;

fn draw_bars(builder: &mut SvgChartBuilder<'_, '_>, bars: &[(String, f64)]) {
    let top = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max) * HEADROOM;
    let places = (0..bars.len() - 1).into_segmented();
    let mut chart = builder.build_cartesian_2d(places, 0.0..top).unwrap();
    let name = |place: &SegmentValue<usize>| match place {
        SegmentValue::CenterOf(at) => bars.get(*at).map_or_else(String::new, |bar| bar.0.clone()),
        _ => String::new(),
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(TRANSPARENT).label_style((FONT, 14));
    mesh.x_labels(bars.len()).x_label_formatter(&name);
    mesh.y_label_formatter(&|value| amount(*value)).draw().unwrap();
    let drawn = bars.iter().enumerate().map(|(at, (_, value))| {
        let (left, right) = (SegmentValue::Exact(at), SegmentValue::Exact(at + 1));
        let mut bar = Rectangle::new([(left, 0.0), (right, *value)], COLOURS[0].filled());
        bar.set_margin(0, 0, 24, 24);
        bar
    });
    chart.draw_series(drawn).unwrap();
    let values = bars.iter().enumerate().map(|(at, (_, value))| {
        let place = EmptyElement::at((SegmentValue::CenterOf(at), *value));
        let middle = Pos::new(HPos::Center, VPos::Bottom);
        place + Text::new(amount(*value), (0, -4), (FONT, 14).into_text_style(&SIZE).pos(middle))
    });
    chart.draw_series(values).unwrap();
}

fn draw_lines(builder: &mut SvgChartBuilder<'_, '_>, axes: Axes, lines: &[ChartLine]) {
    let height = |value: f64| if axes.logarithmic { value.max(1.0).log2() } else { value };
    let values = lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| height(*y)));
    let top = values.fold(1.0, f64::max) * HEADROOM;
    let places: Vec<f64> = lines[0].points.iter().map(|(x, _)| *x).collect();
    let count = places.len();
    let mut chart = builder.build_cartesian_2d(-0.3..count as f64 - 0.7, 0.0..top).unwrap();
    let name = |at: &f64| {
        let place = (at.fract() == 0.0 && *at >= 0.0).then(|| places.get(*at as usize));
        place.flatten().map_or_else(String::new, |x| amount(*x))
    };
    let mark = |at: &f64| amount(if axes.logarithmic { at.exp2() } else { *at });
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(TRANSPARENT).label_style((FONT, 14));
    mesh.x_desc(axes.x).x_labels(2 * count).x_label_formatter(&name);
    mesh.y_desc(axes.y).y_labels(12).y_label_formatter(&mark).draw().unwrap();
    let mut colours = COLOURS.iter().cycle();
    let mut colour = COLOURS[0];
    for line in lines {
        if !line.is_reference {
            colour = *colours.next().expect("a cycle does not end");
        }
        let style = colour.stroke_width(if line.is_reference { 1 } else { 3 });
        let points = || line.points.iter().enumerate().map(|(at, (_, y))| (at as f64, height(*y)));
        let drawn = chart.draw_series(LineSeries::new(points(), style)).unwrap();
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style);
        drawn.label(&line.name).legend(legend);
        if !line.is_reference {
            let dots = points().map(|point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(dots).unwrap();
        }
    }
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperLeft).label_font((FONT, 14));
    labels.background_style(WHITE.mix(0.8)).draw().unwrap();
}
