//! The line that a terminal shows while the models load: a bar, the number of loaded models, and
//! each running load with its time. Pure.

use std::fmt::Write;
use std::time::Duration;

/// Characters of the bar.
const BAR: usize = 20;

/// Returns a line of at most `columns - 1` characters, such as `Loading [=====>    ] 3 of 12: bert
/// 2.3 s, vad 0.4 s`. Models that do not fit are counted.
pub fn status_line(done: usize, all: usize, running: &[(&str, Duration)], columns: usize) -> String {
    let filled = BAR * done.min(all) / all.max(1);
    let tip = if filled < BAR { ">" } else { "" };
    let mut line = format!("Loading [{}{tip:<rest$}] {done} of {all}", "=".repeat(filled), rest = BAR - filled);
    let width_max = columns.saturating_sub(1);
    for (index, (name, took)) in running.iter().enumerate() {
        let mut part = if index == 0 { ": " } else { ", " }.to_owned();
        // A name may have any characters; those that control a terminal are not shown.
        part.extend(name.chars().map(|c| if c.is_control() { '?' } else { c }));
        let _ = write!(part, " {:.1} s", took.as_secs_f32());
        let left = running.len() - index;
        let more = format!(" and {left} more");
        let needs = if left > 1 { more.len() } else { 0 };
        if width(&line) + width(&part) + needs > width_max {
            if index > 0 && width(&line) + more.len() <= width_max {
                line += &more;
            }
            break;
        }
        line += &part;
    }
    let end = line.char_indices().nth(width_max).map_or(line.len(), |(at, _)| at);
    line.truncate(end);
    line
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_how_far_the_loads_are_and_fits() {
        let running = |names: &[&'static str]| -> Vec<(&'static str, Duration)> {
            names.iter().map(|name| (*name, Duration::from_millis(2340))).collect()
        };
        let check = |done, all, names: &[&'static str], columns, want: &str| {
            let line = status_line(done, all, &running(names), columns);
            assert_eq!(line, want);
            assert!(line.chars().count() < columns, "{line}");
        };
        check(0, 2, &["a"], 80, "Loading [>                   ] 0 of 2: a 2.3 s");
        check(6, 12, &["bert", "vad"], 80, "Loading [==========>         ] 6 of 12: bert 2.3 s, vad 2.3 s");
        check(2, 2, &[], 80, "Loading [====================] 2 of 2");
        check(0, 9, &["first", "second", "third"], 64, "Loading [>                   ] 0 of 9: first 2.3 s and 2 more");
        check(0, 9, &["a-name-that-is-longer-than-the-line"], 50, "Loading [>                   ] 0 of 9");
        check(0, 9, &["a\x1b[2Jb"], 80, "Loading [>                   ] 0 of 9: a?[2Jb 2.3 s");
        check(1, 9, &["a"], 20, "Loading [==>       ");
        check(0, 0, &[], 80, "Loading [>                   ] 0 of 0");
    }
}
