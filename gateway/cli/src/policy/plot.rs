//! Line plots of ratios, as SVG: no background, and colors that are readable on white and on black.

use std::fmt::Write as _;

/// A plot whose vertical axis goes from 0 to 1.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    /// Label of the horizontal axis.
    pub(super) x: &'static str,
    /// Label of the vertical axis.
    pub(super) y: &'static str,
    pub(super) lines: Vec<PlotLine>,
}

/// A line of the plot.
#[derive(Debug)]
pub(super) struct PlotLine {
    pub(super) name: &'static str,
    /// Points from left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Color and dashes of each line, in order: of middle lightness, and distinct also for color-blind readers.
const STYLES: [(&str, &str); 6] = [
    ("#e0457b", "none"),
    ("#3d8bd4", "none"),
    ("#c98500", "8 4"),
    ("#2e9e6b", "2 4"),
    ("#9a6fd0", "10 3 2 3"),
    ("#808080", "4 3"),
];
/// Color of axes and text, with equal contrast to white and to black.
const GREY: &str = "#808080";
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
const TICKS: u32 = 5;

impl Plot {
    /// Returns the plot as an SVG document.
    pub(super) fn svg(&self) -> String {
        let most = self.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max);
        let right = (most * f64::from(TICKS)).ceil().max(1.0) / f64::from(TICKS);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"{GREY}\">\n"
        );
        text(&mut svg, LEFT, TOP - 18.0, "start", &self.title);
        text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", self.x);
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        put(
            &mut svg,
            format_args!(
                "<text x=\"18\" y=\"{middle}\" text-anchor=\"middle\" \
                 transform=\"rotate(-90 18 {middle})\">{}</text>",
                escaped(self.y)
            ),
        );
        axes(&mut svg, right);
        for (number, line) in self.lines.iter().enumerate() {
            draw(&mut svg, number, line, right);
        }
        svg + "</svg>\n"
    }
}

/// Appends an element. Writing to a `String` cannot fail.
fn put(svg: &mut String, element: std::fmt::Arguments<'_>) {
    let _ = writeln!(svg, "{element}");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    put(
        svg,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(words)),
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the document coordinates of a point of the plot.
fn place(x: f64, y: f64, right: f64) -> (f64, f64) {
    let across = LEFT + x / right * (WIDTH - LEFT - RIGHT);
    (across, HEIGHT - BOTTOM - y.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM))
}

fn axes(svg: &mut String, right: f64) {
    for tick in 0..=TICKS {
        let part = f64::from(tick) / f64::from(TICKS);
        let (x, y) = place(part * right, part, right);
        let (begin, end, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
        let opacity = if tick == 0 { "1" } else { ".3" };
        put(
            svg,
            format_args!(
                "<path d=\"M{begin:.1} {y:.1}H{end:.1}M{x:.1} {TOP:.1}V{bottom:.1}\" stroke=\"{GREY}\" \
                 stroke-opacity=\"{opacity}\"/>"
            ),
        );
        text(svg, begin - 8.0, y + 4.0, "end", &format!("{part:.1}"));
        text(svg, x, bottom + 18.0, "middle", &format!("{:.2}", part * right));
    }
}

/// Draws a line, its points, and its entry in the legend.
fn draw(svg: &mut String, number: usize, line: &PlotLine, right: f64) {
    let (colour, dashes) = STYLES[number % STYLES.len()];
    let points: Vec<_> = line.points.iter().map(|(x, y)| place(*x, *y, right)).collect();
    let list: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let style =
        format!("stroke=\"{colour}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\" fill=\"none\"");
    put(svg, format_args!("<polyline points=\"{}\" {style}/>", list.join(" ")));
    for (x, y) in points {
        put(svg, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
    }
    let (begin, y) = (WIDTH - RIGHT + 20.0, TOP + 10.0 + 24.0 * number as f64);
    put(svg, format_args!("<path d=\"M{begin:.1} {y:.1}h28\" {style}/>"));
    text(svg, begin + 36.0, y + 4.0, "start", line.name);
}

#[cfg(test)]
mod tests {
    use super::{Plot, PlotLine};

    #[test]
    fn a_small_plot_to_the_letter() {
        let lines = vec![PlotLine { name: "lru", points: vec![(0.1, 0.25), (0.2, 1.0)] }];
        let svg = Plot { title: "a<b".to_owned(), x: "x", y: "y", lines }.svg();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
        for part in [
            "<text x=\"64.0\" y=\"26.0\" text-anchor=\"start\">a&lt;b</text>",
            "<polyline points=\"317.0,299.0 570.0,44.0\" stroke=\"#e0457b\"",
            "<circle cx=\"570.0\" cy=\"44.0\" r=\"3\" fill=\"#e0457b\"/>",
            "<text x=\"570.0\" y=\"402.0\" text-anchor=\"middle\">0.20</text>",
            "<text x=\"626.0\" y=\"58.0\" text-anchor=\"start\">lru</text>",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn a_plot_without_lines_has_axes_only() {
        let svg = Plot { title: String::new(), x: "x", y: "y", lines: Vec::new() }.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
