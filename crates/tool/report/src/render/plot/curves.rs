//! Curves between two axes.

use super::{Canvas, Failure, INK, Plane, letters, rgb};
use crate::document::{Curves, Series, SeriesForm};
use plotters::chart::ChartContext;
use plotters::prelude::*;

type CurveChart<'c, 'a> = ChartContext<'c, SVGBackend<'a>, Plane>;

/// Half the width of an interval's ends, as a part of the horizontal axis.
const END: f64 = 0.006;

pub(super) fn draw(canvas: &Canvas<'_>, curves: &Curves) -> Result<(), Failure> {
    let (x, y) = (curves.x, curves.y);
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 124)
        .set_label_area_size(LabelAreaPosition::Bottom, 52)
        .margin_top(14)
        .margin_right(44)
        .build_cartesian_2d(x.start..x.end, y.start..y.end)?;
    // Areas would hide the lines of the mesh, which hides nothing.
    let has_areas = curves.series.iter().any(|series| series.form == SeriesForm::Area);
    if !has_areas {
        mesh(&mut chart, curves)?;
    }
    for series in &curves.series {
        draw_series(&mut chart, series, curves)?;
    }
    if has_areas { mesh(&mut chart, curves) } else { Ok(()) }
}

fn mesh(chart: &mut CurveChart<'_, '_>, curves: &Curves) -> Result<(), Failure> {
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_max_light_lines(0)
        .x_labels(curves.labels.0)
        .y_labels(curves.labels.1)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|at| curves.x.label(*at))
        .y_label_formatter(&|at| curves.y.label(*at))
        .label_style(letters(0.7))
        .draw()?;
    Ok(())
}

fn draw_series(chart: &mut CurveChart<'_, '_>, series: &Series, curves: &Curves) -> Result<(), Failure> {
    let (x, y, colour) = (curves.x, curves.y, rgb(series.colour));
    let points: Vec<(f64, f64)> = series.points.iter().map(|&(at, value)| (x.place(at), y.place(value))).collect();
    match series.form {
        SeriesForm::Area => {
            chart.draw_series(AreaSeries::new(points, 0.0, colour.filled()))?;
        }
        SeriesForm::Line => {
            chart.draw_series(LineSeries::new(points, colour.stroke_width(4)))?;
        }
        SeriesForm::LineAndPoints => {
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(4)))?;
            chart.draw_series(points.into_iter().map(|at| Circle::new(at, 6, colour.filled())))?;
        }
        SeriesForm::Intervals => {
            let half = END * (x.end - x.start);
            let style = INK.mix(0.7).stroke_width(3);
            for (&(at, _), &(low, high)) in points.iter().zip(&series.intervals) {
                let (low, high) = (y.place(low), y.place(high));
                let end = |value: f64| vec![(at - half, value), (at + half, value)];
                let paths = [vec![(at, low), (at, high)], end(low), end(high)];
                chart.draw_series(paths.map(|path| PathElement::new(path, style)))?;
            }
            chart.draw_series(points.into_iter().map(|at| Circle::new(at, 9, colour.filled())))?;
        }
    }
    Ok(())
}
