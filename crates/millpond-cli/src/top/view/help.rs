//! Draws the help for keys.

use super::super::app::App;
use super::Palette;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

/// Returns the line at the bottom.
pub(super) fn keys(app: &App, palette: Palette) -> Line<'static> {
    let pause = if app.paused { "go on" } else { "pause" };
    let keys: &[(&str, &str)] = if app.watched.is_some() {
        &[
            ("q", "quit"),
            ("p", pause),
            ("←→", "sort"),
            ("r", "reverse"),
            ("↑↓", "choose"),
            ("l", "list"),
            ("?", "help"),
        ]
    } else {
        &[
            ("q", "quit"),
            ("p", pause),
            ("↑↓", "choose"),
            ("Enter", "look"),
            ("?", "help"),
        ]
    };
    let mut spans = Vec::new();
    for (key, what) in keys {
        spans.push(Span::styled((*key).to_owned(), palette.strong()));
        spans.push(Span::styled(format!(" {what}  "), palette.faint()));
    }
    Line::from(spans)
}

const TEXT: &str = "\
q            quit
p, blank     pause, and go on
left, right  sort the pools by the next column
r            the other way round
up, down     choose a pool to be drawn below, or a process
l, Esc       the list of processes
Enter        look at the process that is chosen

IN USE       bytes of live blocks
RESERVED     bytes taken from the source
COURSE       what was in use, against what was reserved
USED         in use of reserved
HITS         allocations served without calling the source
CALLS/S      allocations a second
unexplained  used on a device outside this process's pools

Watching does not affect the process.";

/// Draws a window that explains all keys and terms.
pub(super) fn draw(area: Rect, buffer: &mut Buffer, palette: Palette) {
    let width = TEXT.lines().map(console::measure_text_width).max().unwrap_or(0) as u16 + 4;
    let height = TEXT.lines().count() as u16 + 2;
    let (width, height) = (width.min(area.width), height.min(area.height));
    let window = Rect::new(
        area.left() + (area.width - width) / 2,
        area.top() + (area.height - height) / 2,
        width,
        height,
    );
    Clear.render(window, buffer);
    let block = Block::bordered().title(" help ").border_style(palette.faint());
    Paragraph::new(TEXT).block(block).render(window, buffer);
}
