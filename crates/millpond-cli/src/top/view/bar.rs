//! Draws bars and sparklines from block characters with eight levels.

use ratatui::style::Style;
use ratatui::text::Span;

const RISING: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const GROWING: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Draws a sparkline with the newest value at the right. Each value is at most `full`. If there are more values than
/// columns, only the newest are shown.
pub(super) fn course(values: &[u64], full: u64, width: usize) -> String {
    let shown = &values[values.len().saturating_sub(width)..];
    let blanks = " ".repeat(width - shown.len());
    let mark = |value: &u64| {
        let eighth = u128::from((*value).min(full)) * 8 / u128::from(full.max(1));
        // Zero is drawn as the lowest block, because a blank means that there is no sample.
        RISING[(eighth as usize).saturating_sub(1).min(7)]
    };
    blanks.chars().chain(shown.iter().map(mark)).collect()
}

/// Draws the parts of a whole one after the other, and then the rest.
pub(super) fn bar(parts: &[(u64, Style)], whole: u64, width: usize, rest: Style) -> Vec<Span<'static>> {
    let eighths = |bytes: u64| {
        let all = width as u128 * 8;
        (u128::from(bytes) * all / u128::from(whole.max(1))).min(all) as usize
    };
    let mut spans = Vec::new();
    let (mut sum, mut filled) = (0u64, 0);
    for (place, (bytes, style)) in parts.iter().enumerate() {
        sum = sum.saturating_add(*bytes);
        let end = eighths(sum);
        let is_last = place + 1 == parts.len();
        // Only the last part may end within a column, because a column has one colour.
        let columns = if is_last { end / 8 } else { (end + 4) / 8 };
        let mut text = "█".repeat(columns.saturating_sub(filled));
        filled = filled.max(columns);
        let left = end % 8;
        if is_last && filled < width && (left > 0 || (filled == 0 && sum > 0)) {
            text.push(GROWING[left.saturating_sub(1)]);
            filled += 1;
        }
        spans.push(Span::styled(text, *style));
    }
    spans.push(Span::styled("·".repeat(width - filled.min(width)), rest));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(parts: &[u64], whole: u64, width: usize) -> String {
        let parts: Vec<(u64, Style)> = parts.iter().map(|bytes| (*bytes, Style::new())).collect();
        bar(&parts, whole, width, Style::new())
            .iter()
            .map(|span| span.content.as_ref())
            .collect()
    }

    #[test]
    fn bars_have_the_requested_width() {
        assert_eq!(drawn(&[50], 100, 10), "█████·····");
        assert_eq!(drawn(&[55], 100, 10), "█████▌····");
        assert_eq!(drawn(&[1], 1_000_000, 4), "▏···", "what is not nothing is seen");
        assert_eq!(drawn(&[0], 100, 4), "····");
        assert_eq!(drawn(&[30, 30], 100, 10), "██████····");
        assert_eq!(drawn(&[u64::MAX, u64::MAX], 1, 5), "█████");
        assert_eq!(drawn(&[0], 0, 5), "·····");
        for width in 0..20 {
            for (a, b) in [(0, 0), (1, 98), (33, 33), (99, 0), (50, 51)] {
                let text = drawn(&[a, b], 100, width);
                assert_eq!(text.chars().count(), width, "{a} {b} {text}");
            }
        }
    }

    #[test]
    fn sparklines_end_at_the_right() {
        assert_eq!(course(&[0, 50, 100], 100, 5), "  ▁▄█");
        assert_eq!(course(&[100, 0, 0], 100, 2), "▁▁");
        assert_eq!(course(&[], 0, 3), "   ");
        assert_eq!(course(&[7], 0, 1), "▁");
    }
}
