//! Memory over time as stacked areas, one a page size; and memory by permission, as bars.

use super::{Axis, Canvas, Failure, INK, Plot, SIZES, letters};
use crate::quantity::{bytes, seconds, share};
use crate::{Error, Footprint, FootprintPoint, PermissionShare};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Points beyond this cannot be told apart on the page; the largest of each stretch is kept.
const MOST_POINTS: usize = 360;

/// Memory of one watched run over time. All runs share the axes, which end at `end_s` and `end_bytes`, so that their
/// plots can be compared. None if it was watched too shortly to draw.
pub(crate) fn footprint(
    id: &'static str,
    footprint: &Footprint,
    end_s: f64,
    end_bytes: u64,
) -> Result<Option<String>, Error> {
    let points = thinned(&footprint.points, |point| point.resident_bytes);
    let (Some(peak), true) = (footprint.peak(), points.len() > 1) else { return Ok(None) };
    let title = format!("Memory of {} over time, by page size", footprint.kind);
    let description = format!("Largest at {}: {} resident.", seconds(peak.t_s), bytes(peak.resident_bytes));
    let plot = Plot { id, title: &title, description: &description, size: (740, 400) };
    let (x, y) = (Axis::of_seconds(end_s), Axis::of_bytes(end_bytes).with_room(0.06));
    plot.svg(|canvas| draw_footprint(canvas, &points, x, y)).map(Some)
}

fn draw_footprint(canvas: &Canvas<'_>, points: &[FootprintPoint], x: Axis, y: Axis) -> Result<(), Failure> {
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 124)
        .set_label_area_size(LabelAreaPosition::Bottom, 52)
        .margin_top(14)
        .margin_right(44)
        .build_cartesian_2d(0.0..x.end, 0.0..y.end)?;
    // Each area reaches down to zero, so the whole is drawn first and its lower layers over it.
    for layers in (0..SIZES.len()).rev() {
        let height = |point: &FootprintPoint| {
            let by_size = [point.huge_1g_bytes, point.huge_2m_bytes, point.folio_bytes, point.small_bytes];
            y.place(by_size[..=layers].iter().map(|bytes| *bytes as f64).sum())
        };
        if points.iter().any(|point| height(point) > 0.0) {
            let line = points.iter().map(|point| (x.place(point.t_s), height(point)));
            chart.draw_series(AreaSeries::new(line, 0.0, SIZES[SIZES.len() - 1 - layers].1.filled()))?;
        }
    }
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_max_light_lines(0)
        .x_labels(4)
        .y_labels(5)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|value| x.label(*value))
        .y_label_formatter(&|value| y.label(*value))
        .label_style(letters(0.7))
        .draw()?;
    Ok(())
}

/// At most [`MOST_POINTS`] of `points`: of each stretch the one where `size` is largest, so that no peak is lost.
pub(super) fn thinned(points: &[FootprintPoint], size: fn(&FootprintPoint) -> u64) -> Vec<FootprintPoint> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    points.chunks(stretch).filter_map(|chunk| chunk.iter().max_by_key(|point| size(point)).copied()).collect()
}

/// Memory by permission: mapped as a pale bar, resident as a full one on it. None if nothing is known.
pub(crate) fn permissions(shares: &[PermissionShare]) -> Result<Option<String>, Error> {
    let all: f64 = shares.iter().map(|share| share.bytes as f64).sum();
    let mut sorted: Vec<&PermissionShare> = shares.iter().filter(|share| share.bytes > 0).collect();
    sorted.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    sorted.truncate(8);
    let Some(largest) = sorted.first() else { return Ok(None) };
    let axis = Axis::of_bytes(largest.bytes.max(largest.resident_bytes)).with_room(0.15);
    let words = sorted.iter().map(|of| format!("{}: {}.", of.permission, share(of.bytes as f64 / all)));
    let description = words.collect::<Vec<_>>().join(" ");
    let rows = u32::try_from(sorted.len()).unwrap_or(8);
    let plot = Plot {
        id: "plot-permissions",
        title: "Mapped memory by permission",
        description: &description,
        size: (1520, 64 * rows + 56),
    };
    plot.svg(|canvas| draw_permissions(canvas, &sorted, all, axis)).map(Some)
}

fn draw_permissions(canvas: &Canvas<'_>, shares: &[&PermissionShare], all: f64, axis: Axis) -> Result<(), Failure> {
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 90)
        .set_label_area_size(LabelAreaPosition::Bottom, 56)
        .margin_right(12)
        .build_cartesian_2d(0.0..axis.end, shares.len() as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_max_light_lines(0)
        .x_labels(6)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|value| axis.label(*value))
        .x_label_style(letters(0.7))
        .draw()?;
    let plot = chart.plotting_area();
    for (row, of) in shares.iter().enumerate() {
        let middle = row as f64 + 0.5;
        let (left, height) = plot.map_coordinate(&(0.0, middle));
        let name = letters(1.0).pos(Pos::new(HPos::Right, VPos::Center));
        canvas.draw(&Text::new(of.permission.clone(), (left - 18, height), name))?;
        let colour = if of.permission == "rw-" { SIZES[2].1 } else { SIZES[0].1 };
        let bar = |of: u64, strength: f64| {
            Rectangle::new(
                [(0.0, middle - 0.28), (axis.place(of as f64), middle + 0.28)],
                colour.mix(strength).filled(),
            )
        };
        plot.draw(&bar(of.bytes, 0.35))?;
        plot.draw(&bar(of.resident_bytes.min(of.bytes), 1.0))?;
        let label = share(of.bytes as f64 / all);
        let style = letters(1.0).pos(Pos::new(HPos::Left, VPos::Center));
        plot.draw(&(EmptyElement::at((axis.place(of.bytes as f64), middle)) + Text::new(label, (16, 0), style)))?;
    }
    Ok(())
}
