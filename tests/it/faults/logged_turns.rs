//! The long turns of a scheduler's loop by its log, which names the part of each that took the
//! longest.
//!
//! Invariant: with [`LOG_FILTER`] the log has a line for each turn that the metric counts as long.

use jiff::Timestamp;

use crate::process::OrlojProcess;

/// Turns of up to a second are logged at this level only.
pub(super) const LOG_FILTER: &str = "info,orloj_core::scheduler::turn=debug";

/// What the line of such a turn says.
const WORDS: &str = "a long turn of the loop";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedTurn {
    /// When it ended, in ms since the epoch.
    pub(super) ended: u64,
    /// How long it took, and its longest part.
    pub(super) figures: String,
}

/// Those that ended at this time or later, in ms since the epoch.
pub(super) fn logged_turns(process: &OrlojProcess, since: u64) -> Vec<LoggedTurn> {
    let turns = turns_of(&process.log_text());
    turns.into_iter().filter(|turn| turn.ended >= since).collect()
}

fn turns_of(log: &str) -> Vec<LoggedTurn> {
    let turns = log.lines().filter_map(|line| {
        let (before, figures) = line.split_once(WORDS)?;
        let at: Timestamp = before.split(' ').next()?.parse().ok()?;
        let ended = u64::try_from(at.as_millisecond()).ok()?;
        Some(LoggedTurn { ended, figures: figures.trim().to_owned() })
    });
    turns.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_turn_is_found_in_a_log() {
        let log = "1970-01-01T00:00:01.000000Z  INFO orloj: started\n\
            1970-01-01T00:00:02.345678Z DEBUG orloj_core::scheduler::turn: a long turn of the \
            loop took_ms=131 part=\"reading\" part_ms=90\n";
        let figures = "took_ms=131 part=\"reading\" part_ms=90".to_owned();
        assert_eq!(turns_of(log), [LoggedTurn { ended: 2_345, figures }]);
    }
}
