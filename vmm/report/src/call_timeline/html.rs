//! The timeline of calls as a figure of the page.

use nodescope_page::Page;

use super::encode::encode;
use super::{CallTimeline, MOST_LANES};
use crate::WindowReport;
use crate::units::{grouped, time};

/// Style rules of the figure.
pub(crate) const STYLE: &str = include_str!("timeline.css");

/// Adds a program's timeline to the page, under a title. `still` writes the picture that the page shows without a script and on paper. `number`
/// distinguishes the timelines of a page.
pub(crate) fn write(
    page: &mut Page,
    title: &str,
    timeline: &CallTimeline,
    windows: &[WindowReport],
    number: usize,
    still: impl FnOnce(&mut Page),
) {
    page.raw(&format!(
        "<figure class=\"timeline\" id=\"timeline-{number}\">"
    ));
    page.element("h3", "", title);
    for line in lines(timeline) {
        page.element("p", "caption", &line);
    }
    page.raw("<div class=\"still\">");
    still(page);
    page.raw("</div>");
    if !timeline.is_empty() {
        page.raw("<script type=\"application/octet-stream\" class=\"calls\">");
        page.raw(&encode(timeline, windows));
        page.raw("</script>");
    }
    page.raw("</figure>\n");
}

/// Adds the script that brings the page's timelines to life, after the last of them.
pub(crate) fn script(page: &mut Page) {
    let parts = [
        include_str!("data.js"),
        include_str!("drawing.js"),
        include_str!("interval.js"),
        include_str!("timeline.js"),
    ];
    // The parts share their names with each other, and with no other script.
    page.script(&format!(
        "(() => {{\n\"use strict\";\n{}}})();\n",
        parts.concat()
    ));
}

/// Returns sentences on what the timeline leaves out.
fn lines(timeline: &CallTimeline) -> Vec<String> {
    let mut lines = Vec::new();
    if timeline.rank_step > 1 {
        lines.push(format!(
            "One of {} ranks is drawn, at most {MOST_LANES} lanes.",
            timeline.rank_step
        ));
    }
    if timeline.undrawn > 0 {
        lines.push(format!(
            "{} calls of further threads are not drawn: there are {MOST_LANES} lanes at most.",
            grouped(timeline.undrawn.into())
        ));
    }
    if timeline.merged_below_ps > 0 {
        lines.push(format!(
            "Calls shorter than {} that follow each other are merged; their sums are exact, and their messages are not drawn.",
            time(timeline.merged_below_ps as f64)
        ));
    }
    lines
}
