//! Layout of the page of `mlgw top`: sections one below the other.
//!
//! A page that is smaller than its sections shows the first of them, the first rows of a table, and the first
//! columns.

use super::super::output::TextTable;
use super::gauges::TopGauge;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{LineGauge, Paragraph, Row, Table, Wrap};

/// Spaces between columns.
const GAP: u16 = 2;
/// Minimum width of the bar of a gauge.
const BAR_MIN: u16 = 10;
/// Minimum height of a page with empty rows between its sections.
const ROOMY: u16 = 20;

pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const WARNING: Style = Style::new().fg(Color::Yellow);
pub(super) const CRITICAL: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// A part of the page.
pub(super) enum PageSection {
    Lines(Vec<Line<'static>>),
    /// Groups of figures, each in as many lines as the width requires.
    Figures(Vec<(Vec<String>, Style)>),
    Gauges(Vec<TopGauge>),
    Columns(TextTable),
    /// Text that is wrapped, until the end of the page.
    Prose(String),
}

/// Draws sections from the top. The last row shows the key to quit, if there is room for it.
pub(super) fn draw(frame: &mut Frame<'_>, sections: impl IntoIterator<Item = PageSection>) {
    let mut left = frame.area();
    if left.height > 1 {
        let [body, foot] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(left);
        frame.render_widget(Line::raw("q: quit"), foot);
        left = body;
    }
    let gap = u16::from(frame.area().height >= ROOMY);
    for section in sections {
        let height = section.height(left.width);
        if height == 0 {
            continue;
        }
        section.render(frame, Rect { height: height.min(left.height), ..left });
        let used = height.saturating_add(gap).min(left.height);
        left = Rect { y: left.y + used, height: left.height - used, ..left };
    }
}

impl PageSection {
    fn height(&self, width: u16) -> u16 {
        let rows = match self {
            Self::Lines(lines) => lines.len(),
            Self::Figures(groups) => groups.iter().map(|(figures, _)| flow(figures, width).len()).sum(),
            Self::Gauges(gauges) => gauges.len().div_ceil(gauge_columns(gauges, width).into()),
            Self::Columns(table) => 1 + table.rows.len(),
            Self::Prose(_) => usize::MAX,
        };
        u16::try_from(rows).unwrap_or(u16::MAX)
    }

    fn render(self, frame: &mut Frame<'_>, area: Rect) {
        match self {
            Self::Lines(lines) => frame.render_widget(Text::from(lines), area),
            Self::Figures(groups) => {
                let group = |(figures, style): &(Vec<String>, Style)| {
                    let lines = flow(figures, area.width).into_iter();
                    lines.map(|line| Line::styled(line, *style)).collect::<Vec<_>>()
                };
                frame.render_widget(Text::from_iter(groups.iter().flat_map(group)), area);
            }
            Self::Gauges(gauges) => render_gauges(frame, area, &gauges),
            Self::Columns(table) => frame.render_widget(columns(table, area.width), area),
            Self::Prose(text) => frame.render_widget(Paragraph::new(text).wrap(Wrap::default()), area),
        }
    }
}

fn width(text: &str) -> u16 {
    u16::try_from(Line::raw(text).width()).unwrap_or(u16::MAX)
}

/// Joins figures to lines that fit a width.
fn flow(figures: &[String], most: u16) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for figure in figures {
        let fits = |line: &&mut String| width(line) + GAP + width(figure) <= most;
        match lines.last_mut().filter(fits) {
            Some(line) => line.extend(["  ", figure]),
            None => lines.push(figure.clone()),
        }
    }
    lines
}

/// Returns a table of the columns that fit a width, at least the first.
fn columns(TextTable { head, rows }: TextTable, most: u16) -> Table<'static> {
    let width_of = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| width(cell));
        cells.chain([width(head[at])]).max().unwrap_or(0)
    };
    let mut end = 0_u16;
    let fits = |(at, width): &(usize, u16)| {
        end = end.saturating_add(*width).saturating_add(if *at == 0 { 0 } else { GAP });
        *at == 0 || end <= most
    };
    let widths = (0..head.len()).map(width_of).enumerate().take_while(fits);
    let widths: Vec<u16> = widths.map(|(_, width)| width).collect();
    let cells = |row: Vec<String>| Row::new(row.into_iter().take(widths.len()).collect::<Vec<_>>());
    let header = Row::new(head[..widths.len()].to_vec()).style(BOLD);
    let rows: Vec<_> = rows.into_iter().map(cells).collect();
    Table::new(rows, widths).header(header).column_spacing(GAP)
}

/// Formats what is left of the bar of each gauge, all with the same width.
fn gauge_labels(gauges: &[TopGauge], has_text: bool) -> Vec<String> {
    let widest = |of: fn(&TopGauge) -> &str| gauges.iter().map(of).map(|text| width(text)).max().unwrap_or(0);
    let (names, texts) = (widest(|gauge| &gauge.name), widest(|gauge| &gauge.text));
    let label = |gauge: &TopGauge| {
        let text =
            if has_text { format!("  {:texts$}", gauge.text, texts = texts.into()) } else { String::new() };
        format!("{:names$}  {:3.0} %{text} ", gauge.name, gauge.ratio * 100.0, names = names.into())
    };
    gauges.iter().map(label).collect()
}

/// Returns the number of gauges side by side: two if both have room for their text and a bar.
fn gauge_columns(gauges: &[TopGauge], most: u16) -> u16 {
    let widest = gauge_labels(gauges, true).iter().map(|label| width(label)).max().unwrap_or(0);
    if most >= 2 * (widest + BAR_MIN) + GAP { 2 } else { 1 }
}

fn render_gauges(frame: &mut Frame<'_>, area: Rect, gauges: &[TopGauge]) {
    let columns = gauge_columns(gauges, area.width);
    let places = Layout::horizontal(vec![Constraint::Fill(1); columns.into()]).spacing(GAP).split(area);
    let long = gauge_labels(gauges, true);
    let is_wide = long.iter().all(|label| width(label) + BAR_MIN <= places[0].width);
    let labels = if is_wide { long } else { gauge_labels(gauges, false) };
    for (at, (gauge, label)) in gauges.iter().zip(labels).enumerate() {
        let (row, column) = (at / usize::from(columns), at % usize::from(columns));
        let row = u16::try_from(row).unwrap_or(u16::MAX);
        if row >= area.height {
            return;
        }
        let place = Rect { y: area.y + row, height: 1, ..places[column] };
        let bar =
            LineGauge::default().ratio(gauge.ratio).label(label).filled_symbol("█").unfilled_symbol("░");
        frame.render_widget(bar.filled_style(Color::Cyan), place);
    }
}
