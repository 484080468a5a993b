//! Draws the display for any width, with as many lines as fit the height.

mod bar;
mod chart;
mod help;
mod list;
mod pools;
mod process;
mod row;

use super::app::App;
use crate::text::steers;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Widget;

/// The styles, with or without colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    colours: bool,
}

impl Palette {
    fn style(self, style: Style) -> Style {
        if self.colours { style } else { Style::new() }
    }

    fn colour(self, colour: Color) -> Style {
        self.style(Style::new().fg(colour))
    }

    /// The style of the most important text, which also works without colours.
    fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        self.colour(Color::DarkGray)
    }

    fn good(self) -> Style {
        self.colour(Color::Green)
    }

    fn notable(self) -> Style {
        self.colour(Color::Yellow)
    }

    fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn course(self) -> Style {
        self.colour(Color::Cyan)
    }

    /// The style of a selected row.
    fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style for the used share of a limited resource.
    fn fullness(self, share: f64) -> Style {
        if share >= 0.9 {
            self.bad()
        } else if share >= 0.8 {
            self.notable()
        } else {
            self.good()
        }
    }
}

/// A part of the screen: its lines, and the fewest lines that it needs.
struct Section {
    lines: Vec<Line<'static>>,
    least: usize,
    /// The number of fixed lines at the top, and the line that must stay visible.
    window: Option<(usize, usize)>,
}

impl Section {
    fn new(lines: Vec<Line<'static>>, least: usize) -> Self {
        Self {
            least: least.min(lines.len()),
            lines,
            window: None,
        }
    }

    /// Removes `cut` lines.
    fn cut(&mut self, cut: usize) {
        let left = self.lines.len().saturating_sub(cut);
        if let Some((head, chosen)) = self.window.filter(|(head, _)| left > *head) {
            let first = chosen.saturating_sub(left - head - 1).min(cut);
            self.lines.drain(head..head + first);
        }
        self.lines.truncate(left);
    }
}

/// Draws the whole display.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    render(app, area, frame.buffer_mut(), true);
}

/// Returns the frame as plain text with this width, as high as necessary.
pub(crate) fn plain(app: &App, width: usize) -> String {
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(500);
    let height: usize = sections(app, usize::from(width))
        .iter()
        .map(|section| section.lines.len())
        .sum();
    let area = Rect::new(0, 0, width, u16::try_from(height).unwrap_or(u16::MAX).min(2000));
    let mut buffer = Buffer::empty(area);
    render(app, area, &mut buffer, false);
    text_of(&buffer)
}

fn text_of(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut covered = 0;
        for x in area.left()..area.right() {
            // A wide character covers the cell after it.
            if covered == 0
                && let Some(cell) = buffer.cell((x, y))
            {
                line.push_str(cell.symbol());
                covered = console::measure_text_width(cell.symbol()).saturating_sub(1);
            } else {
                covered = covered.saturating_sub(1);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn sections(app: &App, width: usize) -> Vec<Section> {
    let palette = Palette { colours: app.colours };
    match &app.watched {
        None => list::sections(app, width, palette),
        Some(watched) => process::sections(app, watched, width, palette),
    }
}

fn render(app: &App, area: Rect, buffer: &mut Buffer, keys: bool) {
    if area.width == 0 || area.height == 0 {
        return;
    }
    let palette = Palette { colours: app.colours };
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let room = height.saturating_sub(usize::from(keys && height > 3));
    let mut sections = sections(app, width);
    let used: usize = sections.iter().map(|section| section.lines.len()).sum();
    sections.extend(chart::section(app, width, room.saturating_sub(used), palette).filter(|_| keys));
    for (y, line) in (area.top()..).zip(fit(sections, room)) {
        line.render(Rect::new(area.left(), y, area.width, 1), buffer);
    }
    if keys && height > 3 {
        let line = help::keys(app, palette);
        line.render(Rect::new(area.left(), area.bottom() - 1, area.width, 1), buffer);
    }
    if app.help && keys {
        help::draw(area, buffer, palette);
    }
    // Names come from other processes. A zero-width character is stored in the cell of the character before it.
    for cell in &mut buffer.content {
        if cell.symbol().contains(steers) {
            let plain: String = cell.symbol().chars().filter(|c| !steers(*c)).collect();
            cell.set_symbol(if plain.is_empty() { " " } else { &plain });
        }
    }
}

/// Returns as many lines of each section as fit. Later sections are shortened first, down to their minimum. If that is still
/// too much, sections with a selected line are shortened last, and the first section is never shortened.
fn fit(mut sections: Vec<Section>, room: usize) -> Vec<Line<'static>> {
    let all: usize = sections.iter().map(|section| section.lines.len()).sum();
    let mut over = all.saturating_sub(room);
    let mut cut = |section: &mut Section, least: usize| {
        let cut = over.min(section.lines.len().saturating_sub(least));
        section.cut(cut);
        over -= cut;
    };
    for section in sections.iter_mut().rev() {
        cut(section, section.least);
    }
    for section in sections.iter_mut().skip(1).rev().filter(|of| of.window.is_none()) {
        cut(section, 0);
    }
    for section in sections.iter_mut() {
        let least = section.window.map_or(section.lines.len(), |(head, _)| head + 1);
        cut(section, least);
    }
    let mut lines: Vec<Line<'static>> = sections.into_iter().flat_map(|section| section.lines).collect();
    lines.truncate(room);
    lines
}

#[cfg(test)]
mod tests {
    use super::super::find::Target;
    use super::super::stats::{PoolStats, Stats};
    use super::*;

    fn app() -> App {
        let stats: Stats = serde_json::from_str(include_str!("view/example.json")).expect("an example");
        let mut app = App::new(Some(Target::Process(stats.process.id)));
        app.take_stats(Ok(stats));
        app
    }

    #[test]
    fn a_frame_shows_all_sections() {
        let text = plain(&app(), 100);
        for part in [
            "trainer",
            "pid 4242",
            "rank 3",
            "node-7",
            "weights",
            "cuda:0",
            "NVIDIA",
            "job/step",
            "activations",
            "hit rate falling",
            "64.0 %",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(
            text.lines().all(|line| console::measure_text_width(line) <= 100),
            "{text}"
        );
    }

    #[test]
    fn every_size_can_be_drawn_and_keeps_the_first_lines() {
        let mut app = app();
        for help in [false, true] {
            app.help = help;
            for colours in [false, true] {
                app.colours = colours;
                for (width, height) in [
                    (0, 0),
                    (1, 1),
                    (3, 40),
                    (10, 3),
                    (40, 10),
                    (80, 24),
                    (120, 40),
                    (300, 100),
                ] {
                    let area = Rect::new(0, 0, width, height);
                    let mut buffer = Buffer::empty(area);
                    render(&app, area, &mut buffer, true);
                    if width >= 40 && !help {
                        assert!(text_of(&buffer).contains("trainer"), "{width}x{height}");
                    }
                }
            }
        }
        let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
        app.help = false;
        render(&app, buffer.area, &mut buffer, true);
        let text = text_of(&buffer);
        assert!(
            text.contains("weights") && text.contains("cuda:0") && text.contains("q quit"),
            "{text}"
        );
        assert!(
            text.contains("hit rate falling"),
            "warnings are not what is cut\n{text}"
        );
    }

    #[test]
    fn the_selected_pool_is_visible_at_every_height() {
        let mut app = app();
        let now = app
            .watched
            .as_mut()
            .and_then(|watched| watched.now.as_mut())
            .expect("it was seen");
        let pool = now.pools[0].clone();
        now.pools = (0..50)
            .map(|id| PoolStats {
                id,
                name: format!("pool-{id:02}"),
                reserved: 1000 - id,
                ..pool.clone()
            })
            .collect();
        for height in [12, 24, 60] {
            for chosen in [0, 1, 25, 49] {
                app.pool = chosen;
                let mut buffer = Buffer::empty(Rect::new(0, 0, 80, height));
                render(&app, buffer.area, &mut buffer, true);
                let text = text_of(&buffer);
                assert!(
                    text.contains(&format!("pool-{chosen:02}")) && text.contains("RESERVED"),
                    "{height}\n{text}"
                );
            }
        }
    }

    #[test]
    fn control_characters_in_names_are_not_sent_to_the_terminal() {
        let mut app = app();
        let watched = app.watched.as_mut().expect("it is watched");
        let now = watched.now.as_mut().expect("it was seen");
        now.pools[0].name = "\u{1b}[2Jnasty\r\n\u{202e}".to_owned();
        let mut live = Buffer::empty(Rect::new(0, 0, 100, 30));
        render(&app, live.area, &mut live, true);
        for text in [plain(&app, 100), text_of(&live)] {
            assert!(text.contains("nasty"), "{text:?}");
            assert!(!text.contains(|c| c != '\n' && steers(c)), "{text:?}");
        }
    }
}
